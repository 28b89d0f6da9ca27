"""Signed URLs of log streams: bearer URLs (HMAC) that let one stream be read until they expire."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import math
import time
from collections.abc import Mapping
from urllib.parse import urlencode

from tidebox.api.asgi import Scope, header
from tidebox.api.interpreter.paths import STREAM
from tidebox.errors import Unauthorized

_CONTEXT = b"tidebox log stream v1\n"
_MAX_EXPIRY_LENGTH = 64


class UrlSigner:
    """Signs and verifies URLs of log streams."""

    def __init__(self, secret: str, *, ttl: float, enabled: bool = True) -> None:
        self._key = hmac.digest(secret.encode(), _CONTEXT, hashlib.sha256)
        self._ttl = ttl
        self._enabled = enabled

    def url(self, base: str, run_id: str, *, from_seq: int | None = None) -> str:
        """Return the URL of a run's log stream; ``base`` is the server's address as its client sees it."""
        query: dict[str, str | int] = {}
        if self._enabled:
            expires = math.ceil(time.time() + self._ttl)
            moment = datetime.datetime.fromtimestamp(expires, datetime.UTC)
            query = {"token": self._token(run_id, expires), "exp": moment.strftime("%Y-%m-%dT%H:%M:%SZ")}
        if from_seq is not None:
            query["from_seq"] = from_seq
        address = base.replace("http", "ws", 1).rstrip("/") + STREAM.format(run_id=run_id)
        return f"{address}?{urlencode(query)}" if query else address

    def verify(self, run_id: str, query: Mapping[str, str]) -> None:
        """Raise ``Unauthorized`` unless the token of a query is right for this run and not too old."""
        expires = _expiry(query.get("exp"))
        if not self._enabled or expires is None:
            raise Unauthorized("the signed URL is not valid")
        given = query.get("token", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._token(run_id, expires).encode()):
            raise Unauthorized("the signed URL is not valid")
        if expires <= time.time():
            raise Unauthorized("the signed URL has expired")

    def _token(self, run_id: str, expires: int) -> str:
        signature = hmac.digest(self._key, f"{run_id}\n{expires}".encode("utf-8", "surrogatepass"), hashlib.sha256)
        return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


def base_url(scope: Scope, public_url: str | None) -> str:
    """The server's address as the client of a request sees it."""
    if public_url is not None:
        return public_url
    host = (header(scope, b"host") or b"").decode("latin-1")
    if not host:
        name, port = scope.get("server") or ("localhost", None)
        host = f"{name}:{port}" if port else name
    return f"{scope['scheme']}://{host}"


def _expiry(text: str | None) -> int | None:
    """A time in seconds since the epoch, given as such or in ISO 8601."""
    if text is None or len(text) > _MAX_EXPIRY_LENGTH:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        # A plus sign that was not encoded comes as a space.
        moment = datetime.datetime.fromisoformat(text.replace(" ", "+"))
        return int(moment.timestamp()) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
