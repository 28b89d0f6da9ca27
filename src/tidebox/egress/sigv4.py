"""AWS Signature Version 4 of one request. Pure: the caller has the time, the keys and the body's hash."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from tidebox.egress.secrets import AwsKeys

Headers = list[tuple[bytes, bytes]]

UNSIGNED = "UNSIGNED-PAYLOAD"
CONTENT_HASH = b"x-amz-content-sha256"
_ALGORITHM = "AWS4-HMAC-SHA256"
_REPLACED = {b"authorization", b"x-amz-date", b"x-amz-security-token"}
_SCOPE = re.compile(rb"AWS4-HMAC-SHA256 +Credential=[^/,\s]*/[0-9]{8}/([a-z0-9-]{1,64})/([a-z0-9-]{1,64})/aws4_request")


@dataclass(frozen=True, slots=True)
class SigningScope:
    """The region and service that a signature is for."""

    region: str
    service: str


def scope_in(headers: Headers) -> SigningScope | None:
    """Read the scope of the program's own signature: a client of AWS signs with any keys it has."""
    for name, value in headers:
        if name == b"authorization" and (found := _SCOPE.match(value)):
            return SigningScope(found[1].decode(), found[2].decode())
    return None


def sign(
    method: str, target: str, headers: Headers, keys: AwsKeys, scope: SigningScope, content_hash: str, stamp: str
) -> Headers:
    """The headers of the request with a signature made at ``stamp`` (``20150830T123600Z``) in place of the old one."""
    kept = [(name, value) for name, value in headers if name not in _REPLACED]
    kept.append((b"x-amz-date", stamp.encode()))
    if keys.session_token is not None:
        kept.append((b"x-amz-security-token", keys.session_token.encode()))
    signed: dict[str, list[str]] = {}
    for name, value in kept:
        if name in (b"host", b"content-type") or name.startswith(b"x-amz-"):
            signed.setdefault(name.decode("ascii"), []).append(" ".join(value.decode("latin-1").split()))
    names = ";".join(sorted(signed))
    path, _, query = target.partition("?")
    lines = [
        method,
        _path(path, once=scope.service == "s3"),
        _query(query),
        *(f"{name}:{','.join(signed[name])}" for name in sorted(signed)),
        "",
        names,
        content_hash,
    ]
    request = "\n".join(lines).encode("latin-1")
    day = stamp[:8]
    credential = f"{day}/{scope.region}/{scope.service}/aws4_request"
    text = "\n".join([_ALGORITHM, stamp, credential, hashlib.sha256(request).hexdigest()])
    key = ("AWS4" + keys.secret_access_key).encode()
    for part in (day, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    authorization = (
        f"{_ALGORITHM} Credential={keys.access_key_id}/{credential}, SignedHeaders={names}, Signature={signature}"
    )
    return [*kept, (b"authorization", authorization.encode())]


def _path(path: str, *, once: bool) -> str:
    """The path as it is signed: for S3 as it was sent, for others encoded once more."""
    plain = quote(unquote_to_bytes(path or "/"), safe="/~") if once else quote(path or "/", safe="/~")
    return plain if once else _without_dots(plain)


def _without_dots(path: str) -> str:
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            kept[1:] and kept.pop()
        elif part != ".":
            kept.append(part)
    joined = re.sub("/+", "/", "/".join(kept))
    return joined if joined.startswith("/") else "/" + joined


def _query(query: str) -> str:
    pairs: Sequence[tuple[str, str]] = [
        (_encoded(name), _encoded(value))
        for name, _, value in (part.partition("=") for part in query.split("&") if part)
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _encoded(text: str) -> str:
    return quote(unquote_to_bytes(text), safe="-_.~")
