"""Which credentials prove what, rule by rule."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from tidebox.api.auth import Authenticator
from tidebox.api.jwt_verifier import JwtVerifier
from tidebox.errors import InvalidRequest, Unauthorized
from tidebox.model.principal import Principal

KEY = "tb_the-key"
SECRET = "a secret of at least thirty-two bytes"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: Any, algorithm: Any, **fields: str) -> dict[str, Any]:
    return {**json.loads(algorithm.to_jwk(key.public_key())), **fields}


RSA_JWK = public_jwk(RSA_KEY, jwt.algorithms.RSAAlgorithm, kid="r1")
ED_JWK = public_jwk(ED_KEY, jwt.algorithms.OKPAlgorithm, kid="e1")


@pytest.fixture
def jwks_file(tmp_path: Path) -> Path:
    return write_jwks(tmp_path, RSA_JWK, ED_JWK)


def write_jwks(directory: Path, *keys: dict[str, Any]) -> Path:
    path = directory / "jwks.json"
    path.write_text(json.dumps({"keys": keys}))
    return path


def claims(**changes: Any) -> dict[str, Any]:
    """Claims that are all right, but for ``changes``; None removes one."""
    plain = {"sub": "ada", "exp": int(time.time()) + 60, **changes}
    return {name: value for name, value in plain.items() if value is not None}


def hs256(secret: str = SECRET, **changes: Any) -> str:
    return jwt.encode(claims(**changes), secret, algorithm="HS256")


# The key


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-api-key", KEY.encode())],
        [(b"X-API-KEY", KEY.encode())],
        [(b"x-api-key", b" " + KEY.encode() + b" ")],
        [(b"authorization", b"Bearer " + KEY.encode())],
        [(b"authorization", b"bearer  " + KEY.encode())],
        [(b"x-api-key", KEY.encode()), (b"authorization", b"Bearer something else")],
    ],
)
def test_the_key_proves_the_local_admin(headers: list[tuple[bytes, bytes]]) -> None:
    principal = Authenticator(KEY).authenticate(headers)
    assert principal == Principal("local", frozenset({"sandbox_admin"}))


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-api-key", b"")],
        [(b"x-api-key", KEY.encode()[:-1])],
        [(b"x-api-key", KEY.encode() + b"x")],
        [(b"x-api-key", KEY.upper().encode())],
        [(b"x-api-key", b"\xff\xfe\x00")],
        [(b"x-api-key", b"wrong"), (b"authorization", b"Bearer " + KEY.encode())],
        [(b"x-api-key", KEY.encode()), (b"x-api-key", KEY.encode())],
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", b"Bearer " + KEY.encode()), (b"authorization", b"Bearer " + KEY.encode())],
        [(b"cookie", b"x-api-key=" + KEY.encode())],
    ],
)
def test_nothing_else_does(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Unauthorized):
        Authenticator(KEY).authenticate(headers)


def test_a_refusal_does_not_quote_what_was_sent() -> None:
    with pytest.raises(Unauthorized) as refusal:
        Authenticator(KEY, JwtVerifier(secret=SECRET)).authenticate([(b"authorization", b"Bearer sesame.open.now")])
    assert "sesame" not in refusal.value.message


# Tokens signed with a secret


def test_a_token_names_user_and_roles() -> None:
    verify = JwtVerifier(secret=SECRET)
    assert verify(hs256()) == Principal("ada")
    assert verify(hs256(roles=["sandbox_admin", "x"])) == Principal("ada", frozenset({"sandbox_admin", "x"}))


def test_clocks_may_differ_a_little() -> None:
    verify = JwtVerifier(secret=SECRET)
    verify(hs256(exp=int(time.time()) - 5))
    with pytest.raises(Unauthorized, match="expired"):
        verify(hs256(exp=int(time.time()) - 30))


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "local"},
        {"sub": "a\nb"},
        {"sub": "x" * 129},
        {"exp": "soon"},
        {"nbf": int(time.time()) + 86_400},
        {"roles": "sandbox_admin"},
        {"roles": {"sandbox_admin": True}},
        {"roles": [1]},
        {"aud": "another service"},
    ],
)
def test_claims_that_are_not_accepted(changes: dict[str, Any]) -> None:
    # By hand: the library refuses to make some of these.
    head = jwt.utils.base64url_encode(b'{"alg":"HS256","typ":"JWT"}')
    body = jwt.utils.base64url_encode(json.dumps(claims(**changes)).encode())
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = jwt.utils.base64url_encode(algorithm.sign(head + b"." + body, SECRET.encode()))
    with pytest.raises(Unauthorized):
        JwtVerifier(secret=SECRET)(b".".join((head, body, signature)).decode())


def test_another_secret_is_refused() -> None:
    with pytest.raises(Unauthorized):
        JwtVerifier(secret=SECRET)(hs256("another secret, which is as long as the first"))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE"])
def test_an_unsigned_token_is_refused(algorithm: str, jwks_file: Path) -> None:
    head = jwt.utils.base64url_encode(json.dumps({"alg": algorithm, "typ": "JWT"}).encode()).decode()
    body = jwt.utils.base64url_encode(json.dumps(claims()).encode()).decode()
    verify = JwtVerifier(secret=SECRET, jwks_file=jwks_file)
    for signature in ("", "AAAA"):
        with pytest.raises(Unauthorized):
            verify(f"{head}.{body}.{signature}")


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "é.é.é", "eyJhbGciOiJIUzI1NiJ9..", "x" * 100])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(Unauthorized):
        JwtVerifier(secret=SECRET)(token)


@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
def test_only_the_algorithm_of_the_secret_is_accepted(algorithm: str) -> None:
    secret = SECRET * 2
    with pytest.raises(Unauthorized):
        JwtVerifier(secret=secret)(jwt.encode(claims(), secret, algorithm=algorithm))


def test_a_short_secret_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidRequest, match="32 bytes") as refusal:
        JwtVerifier(secret="hunter2")
    assert "hunter2" not in refusal.value.message


def test_audience_and_issuer_are_required_where_set() -> None:
    verify = JwtVerifier(secret=SECRET, audience="tidebox", issuer="https://id.example")
    assert verify(hs256(aud="tidebox", iss="https://id.example")).user == "ada"
    for changes in ({}, {"aud": "tidebox"}, {"iss": "https://id.example"}, {"aud": "x", "iss": "https://id.example"}):
        with pytest.raises(Unauthorized):
            verify(hs256(**changes))


# Tokens signed by a key of a JWKS file


def rs256(key: Any = RSA_KEY, kid: str | None = "r1") -> str:
    return jwt.encode(claims(), key, algorithm="RS256", headers={"kid": kid} if kid else None)


def eddsa(kid: str | None = "e1") -> str:
    return jwt.encode(claims(), ED_KEY, algorithm="EdDSA", headers={"kid": kid} if kid else None)


def test_rs256_and_eddsa_are_accepted(jwks_file: Path) -> None:
    verify = JwtVerifier(jwks_file=jwks_file)
    assert verify(rs256()).user == verify(eddsa()).user == "ada"


def test_a_token_without_a_key_id_needs_a_single_key_of_its_kind(tmp_path: Path, jwks_file: Path) -> None:
    assert JwtVerifier(jwks_file=jwks_file)(rs256(kid=None)).user == "ada"
    second = public_jwk(OTHER_RSA_KEY, jwt.algorithms.RSAAlgorithm, kid="r2")
    verify = JwtVerifier(jwks_file=write_jwks(tmp_path, RSA_JWK, second))
    with pytest.raises(Unauthorized):
        verify(rs256(kid=None))


@pytest.mark.parametrize("kid", ["r2", "e1", "", "../r1"])
def test_an_unknown_key_id_is_refused(kid: str, jwks_file: Path) -> None:
    token = jwt.encode(claims(), RSA_KEY, algorithm="RS256", headers={"kid": kid})
    with pytest.raises(Unauthorized):
        JwtVerifier(jwks_file=jwks_file)(token)


def test_another_key_is_refused(jwks_file: Path) -> None:
    with pytest.raises(Unauthorized):
        JwtVerifier(jwks_file=jwks_file)(rs256(OTHER_RSA_KEY))


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_public_key_is_no_secret(secret: str | None, jwks_file: Path) -> None:
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = jwt.utils.base64url_encode(b'{"alg":"HS256","kid":"r1"}')
    body = jwt.utils.base64url_encode(json.dumps(claims()).encode())
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = jwt.utils.base64url_encode(algorithm.sign(head + b"." + body, public))
    with pytest.raises(Unauthorized):
        JwtVerifier(secret=secret, jwks_file=jwks_file)(b".".join((head, body, signature)).decode())


def test_a_key_in_the_token_is_not_used(jwks_file: Path) -> None:
    own = public_jwk(OTHER_RSA_KEY, jwt.algorithms.RSAAlgorithm, kid="r1")
    token = jwt.encode(
        claims(), OTHER_RSA_KEY, algorithm="RS256", headers={"kid": "r1", "jwk": own, "jku": "https://evil.example"}
    )
    with pytest.raises(Unauthorized):
        JwtVerifier(jwks_file=jwks_file)(token)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ({"kty": "oct", "k": "c2VjcmV0"}, "only RSA"),
        ({**RSA_JWK, "alg": "RS512"}, "only RSA"),
        ({**RSA_JWK, "alg": "HS256"}, "only RSA"),
        (json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(ED_KEY)), "private key"),
        (
            public_jwk(
                rsa.generate_private_key(public_exponent=65537, key_size=1024),
                jwt.algorithms.RSAAlgorithm,
            ),
            "2048 bits",
        ),
        ({"kty": "RSA"}, "jwks.json"),
        ("nonsense", "not a JWKS"),
    ],
)
def test_keys_that_must_not_be_used_are_refused_at_the_start(key: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=says):
        JwtVerifier(jwks_file=write_jwks(tmp_path, key))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"keys": 1}', '{"keys": []}', "\xff"])
def test_what_is_no_jwks_is_refused_at_the_start(content: str, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match=r"jwks\.json"):
        JwtVerifier(jwks_file=path)


def test_two_keys_of_one_name_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="same kid"):
        JwtVerifier(jwks_file=write_jwks(tmp_path, RSA_JWK, {**ED_JWK, "kid": "r1"}))


def test_a_file_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        JwtVerifier(jwks_file=tmp_path / "jwks.json")
