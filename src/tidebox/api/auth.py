"""Authentication of requests: by the single user's API key, or by a signed bearer token (JWT)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable

from tidebox.errors import Unauthorized
from tidebox.model.principal import ADMIN_ROLE, Principal

LOCAL_USER = "local"
"""The user who holds the API key; no token may be issued to this name."""
_LOCAL = Principal(LOCAL_USER, frozenset({ADMIN_ROLE}))
# More than any token needs, and little enough to be parsed without thinking.
_MAX_CREDENTIAL_BYTES = 8192

TokenVerifier = Callable[[str], Principal]


class Authenticator:
    """Verifies the credentials of requests: the API key, and tokens where they are accepted."""

    def __init__(self, api_key: str, verify_token: TokenVerifier | None = None) -> None:
        self._key_digest = _digest(api_key.encode())
        self._verify_token = verify_token

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal:
        """The principal that the headers of a request prove; raises Unauthorized."""
        keys, tokens = [], []
        for name, value in headers:
            name = name.lower()
            if name == b"x-api-key":
                keys.append(value.strip())
            elif name == b"authorization":
                tokens.append(value.strip())
        if len(keys) > 1 or len(tokens) > 1:
            raise Unauthorized("the same kind of credential was given twice")
        if keys:
            return self._of_key(keys[0])
        if tokens:
            return self._of_authorization(tokens[0])
        raise Unauthorized("give the API key as X-API-KEY, or a token as Authorization: Bearer")

    def _of_key(self, key: bytes) -> Principal:
        if not self._is_key(key):
            raise Unauthorized("the API key is wrong")
        return _LOCAL

    def _of_authorization(self, value: bytes) -> Principal:
        scheme, _, credential = value.partition(b" ")
        credential = credential.strip()
        if scheme.lower() != b"bearer" or not credential:
            raise Unauthorized("the Authorization header must be: Bearer, a space, and a key or token")
        if self._is_key(credential):
            return _LOCAL
        if self._verify_token is None or len(credential) > _MAX_CREDENTIAL_BYTES:
            raise Unauthorized("the key or token is wrong")
        return self._verify_token(credential.decode("latin-1"))

    def _is_key(self, given: bytes) -> bool:
        # Digests, so that the time depends on nothing but the length that was sent.
        return hmac.compare_digest(_digest(given), self._key_digest)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
