"""Signed tokens for sandboxes: short-lived, each for one sandbox, verifiable with the public keys.

The key that signs is replaced from time to time; the one before still verifies until its last token has expired. In an
emergency every key is thrown away, and with them every token there is. Which algorithm a token may use is fixed here
and never read from a token. Tokens are not kept anywhere; that one was found good is, under its digest.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tidebox.errors import InvalidRequest, Unauthorized

ALGORITHM = "EdDSA"
ISSUER = "tidebox"
AUDIENCE = "tidebox-dataplane"
MAX_TOKEN_LENGTH = 4096
# Signatures are checked once: it takes longer than all else that a small request needs.
_REMEMBERED = 4096


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of an access token (JWT)."""

    sub: str
    sandbox_id: str
    binding: str
    capabilities: list[str]
    scopes: list[str]
    iat: int
    exp: int
    jti: str
    epoch: int
    """Tokens of an earlier epoch of their binding were revoked."""
    iss: str = ISSUER
    aud: str = AUDIENCE
    actor: str = "human"
    thread_id: str | None = None
    address: str | None = None
    """Where given, the token may be used from this address only."""


class _StoredKey(msgspec.Struct):
    kid: str
    secret: str
    made: float


@dataclass(frozen=True, slots=True)
class _SigningKey:
    id: str
    private: Ed25519PrivateKey
    public: Ed25519PublicKey
    made: float

    @classmethod
    def new(cls, now: float) -> _SigningKey:
        private = Ed25519PrivateKey.generate()
        return cls(secrets.token_hex(8), private, private.public_key(), now)

    @classmethod
    def of(cls, stored: _StoredKey) -> _SigningKey:
        private = Ed25519PrivateKey.from_private_bytes(_decoded(stored.secret))
        return cls(stored.kid, private, private.public_key(), stored.made)

    def stored(self) -> _StoredKey:
        raw = self.private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        return _StoredKey(self.id, _encoded(raw), self.made)

    def published(self) -> dict[str, str]:
        raw = self.public.public_bytes(Encoding.Raw, PublicFormat.Raw)
        return {"kty": "OKP", "crv": "Ed25519", "x": _encoded(raw), "kid": self.id, "alg": ALGORITHM, "use": "sig"}


class KeyRing:
    """The keys, newest first, in a file that only the server can read. Blocking, for moments."""

    def __init__(self, path: Path, *, token_ttl: float, rotation: float) -> None:
        self._path = path
        self._token_ttl = token_ttl
        self._rotation = rotation
        self._good: dict[bytes, Claims] = {}
        self._keys = self._read()
        self.rotate_if_due()

    def sign(self, claims: Claims) -> str:
        """Sign ``claims``: return the token (JWT)."""
        key = self._keys[0]
        said = {name: value for name, value in msgspec.structs.asdict(claims).items() if value is not None}
        return jwt.encode(said, key.private, ALGORITHM, headers={"kid": key.id})

    def verify(self, token: str) -> Claims:
        """Return the claims of a token; raises ``Unauthorized`` for one that is foreign, changed or expired."""
        if len(token) > MAX_TOKEN_LENGTH:
            raise Unauthorized("the token is wrong")
        digest = hashlib.sha256(token.encode()).digest()
        claims = self._good.get(digest)
        if claims is None:
            claims = self._check(token)
            if len(self._good) >= _REMEMBERED:
                del self._good[next(iter(self._good))]
            self._good[digest] = claims
        elif claims.exp <= time.time():
            raise Unauthorized("the token has expired")
        return claims

    def _check(self, token: str) -> Claims:
        try:
            named = jwt.get_unverified_header(token).get("kid")
            key = next((key for key in self._keys if key.id == named), None)
            if key is None:
                raise Unauthorized("the token was signed with a key that is no longer used")
            found = jwt.decode(
                token,
                key.public,
                algorithms=[ALGORITHM],
                audience=AUDIENCE,
                issuer=ISSUER,
                options={"require": ["exp", "iat", "sub", "jti"]},
            )
            return msgspec.convert(found, Claims)
        except jwt.ExpiredSignatureError:
            raise Unauthorized("the token has expired") from None
        except (jwt.PyJWTError, msgspec.ValidationError, ValueError, TypeError):
            raise Unauthorized("the token is wrong") from None

    def jwks(self) -> dict[str, Any]:
        """Return the public keys (JWKS), for verifiers elsewhere."""
        return {"keys": [key.published() for key in self._keys]}

    def rotate_if_due(self) -> None:
        """Sign with a new key from time to time, and drop keys whose last token has expired."""
        now = time.time()
        kept = self._keys
        if not kept or now - kept[0].made >= self._rotation:
            kept = [_SigningKey.new(now), *kept]
        # A key signed its last token when the next one was made.
        kept = [kept[0], *(key for newer, key in itertools.pairwise(kept) if self._verifies(newer, now))]
        if kept != self._keys:
            self._keep(kept)

    def _verifies(self, newer: _SigningKey, now: float) -> bool:
        return now - newer.made < self._token_ttl + 1

    def rotate(self, *, emergency: bool = False) -> None:
        """Sign with a new key from now on; in an emergency no token made before is accepted any more."""
        self._keep([_SigningKey.new(time.time()), *([] if emergency else self._keys)])

    def _keep(self, keys: list[_SigningKey]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Renamed into place: a server that is killed in between must not leave half a file.
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode([key.stored() for key in keys]))
            file.flush()
            os.fsync(descriptor)
        fresh.rename(self._path)
        self._keys = keys
        self._good.clear()

    def _read(self) -> list[_SigningKey]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InvalidRequest(f"the key file {self._path} cannot be used: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
                raise InvalidRequest(f"the key file {self._path} can be used by others: give it mode 600")
            content = file.read()
        try:
            return [_SigningKey.of(stored) for stored in msgspec.json.decode(content, type=list[_StoredKey])]
        except (msgspec.DecodeError, ValueError):
            raise InvalidRequest(f"the key file {self._path} is damaged: remove it, and new keys are made") from None


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
