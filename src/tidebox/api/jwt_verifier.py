"""Signed bearer tokens. Which algorithm a token may use is said by the key, never by the token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import msgspec

from tidebox.api.auth import LOCAL_USER
from tidebox.errors import InvalidRequest, Unauthorized
from tidebox.model.principal import Principal

# Clocks of two machines differ by this much without anybody's fault.
_LEEWAY_SECONDS = 10
_MIN_SECRET_BYTES = 32  # RFC 7518, 3.2: a key of the size of the hash output or larger
_MIN_RSA_BITS = 2048
_MAX_USER_LENGTH = 128
_ALGORITHMS = {"RSA": "RS256", "OKP": "EdDSA"}


@dataclass(frozen=True, slots=True)
class _VerificationKey:
    algorithm: str
    key: Any
    id: str | None = None


class JwtVerifier:
    """Verifies tokens against a shared secret, against the keys of a JWKS file, or both."""

    def __init__(
        self,
        *,
        secret: str | None = None,
        jwks_file: Path | None = None,
        audience: str | None = None,
        issuer: str | None = None,
    ) -> None:
        self._audience = audience
        self._issuer = issuer
        self._keys: list[_VerificationKey] = []
        if secret is not None:
            if len(secret.encode()) < _MIN_SECRET_BYTES:
                raise InvalidRequest(f"SANDBOX_AUTH_JWT_SECRET: give at least {_MIN_SECRET_BYTES} bytes")
            self._keys.append(_VerificationKey("HS256", secret))
        if jwks_file is not None:
            self._keys += _read_jwks(jwks_file)

    def __call__(self, token: str) -> Principal:
        """The principal a token names; raises Unauthorized."""
        try:
            head = jwt.get_unverified_header(token)
            key = self._key_for(head.get("alg"), head.get("kid"))
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthorized("the token has expired") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise Unauthorized("the key or token is wrong") from None
        return _principal(claims)

    def _key_for(self, algorithm: object, key_id: object) -> _VerificationKey:
        keys = [key for key in self._keys if key.algorithm == algorithm]
        named = [key for key in keys if key.id is not None and key.id == key_id]
        if len(named) == 1:
            return named[0]
        if len(keys) == 1 and (key_id is None or keys[0].id is None):
            return keys[0]
        raise Unauthorized("the key or token is wrong")


def _principal(claims: dict[str, Any]) -> Principal:
    user = claims["sub"]
    if not isinstance(user, str) or not 0 < len(user) <= _MAX_USER_LENGTH or not user.isprintable():
        raise Unauthorized("the token names no user")
    if user == LOCAL_USER:
        raise Unauthorized(f"the user {LOCAL_USER!r} is the holder of the API key")
    roles = claims.get("roles", [])
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise Unauthorized("the roles of the token are not a list of texts")
    return Principal(user, frozenset(roles))


def _read_jwks(path: Path) -> list[_VerificationKey]:
    def wrong(what: str) -> InvalidRequest:
        return InvalidRequest(f"SANDBOX_AUTH_JWKS_FILE: {path}: {what}")

    try:
        document = msgspec.json.decode(path.read_bytes())
        entries = [entry for entry in document["keys"] if entry.get("use", "sig") == "sig"]
        found = [_read_key(entry) for entry in entries]
    except OSError as error:
        raise wrong(error.strerror or "cannot be read") from None
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        raise wrong("not a JWKS document") from None
    except (jwt.PyJWTError, ValueError) as error:
        raise wrong(str(error)) from None
    if not found:
        raise wrong("holds no key")
    names = [key.id for key in found if key.id is not None]
    if len(names) != len(set(names)):
        raise wrong("two keys have the same kid")
    return found


def _read_key(entry: dict[str, Any]) -> _VerificationKey:
    algorithm = _ALGORITHMS.get(entry["kty"])
    if algorithm is None or entry.get("alg", algorithm) != algorithm:
        raise ValueError("only RSA keys for RS256 and Ed25519 keys for EdDSA are accepted")
    if "d" in entry:
        raise ValueError("holds a private key; only the public part belongs here")
    key = jwt.PyJWK(entry, algorithm).key
    if algorithm == "RS256" and key.key_size < _MIN_RSA_BITS:
        raise ValueError(f"an RSA key is shorter than {_MIN_RSA_BITS} bits")
    return _VerificationKey(algorithm, key, entry.get("kid"))
