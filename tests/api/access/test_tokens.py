"""Tokens: which are let in, and why the others are not."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.api.access.clients import Client, error_of, found, use, wait_for
from tests.api.conftest import RunningServer
from tidebox.model.ids import new_id


def decoded(server: RunningServer, token: str) -> dict[str, Any]:
    """What an external dataplane reads in a token."""
    keys = jwt.PyJWKSet.from_dict(httpx.get(f"{server.url}/.well-known/jwks.json", timeout=60).json())
    key = keys[jwt.get_unverified_header(token)["kid"]]
    claims: dict[str, Any] = jwt.decode(token, key, algorithms=["EdDSA"], audience="tidebox-dataplane")
    return claims


def rewritten(token: str, head: dict[str, Any] | None = None, body: dict[str, Any] | None = None) -> str:
    """A token with another head or body, and the old signature."""
    parts = token.split(".")
    for index, changes in enumerate((head, body)):
        if changes is not None:
            said = json.loads(base64.urlsafe_b64decode(parts[index] + "=="))
            parts[index] = base64.urlsafe_b64encode(json.dumps(said | changes).encode()).rstrip(b"=").decode()
    return ".".join(parts)


def test_anybody_can_verify_a_token(ada: Client, server: RunningServer, thread: str) -> None:
    session = ada.ensure(thread, requested_capabilities=["fs_read", "exec", "shell"])
    claims = decoded(server, session["token"])
    assert claims["sub"] == "ada"
    assert claims["sandbox_id"] == session["sandbox"]["id"]
    assert claims["binding"] == session["session_id"]
    assert claims["thread_id"] == thread
    assert claims["scopes"] == ["fs:read", "shell:exec"]
    assert claims["capabilities"] == ["fs_read", "exec", "shell"]
    assert claims["exp"] - claims["iat"] == 600
    again = decoded(server, ada.ensure(thread)["token"])
    assert again["jti"] != claims["jti"]
    ada.of_session("DELETE", session["session_id"])


def _with_foreign_key(token: str, algorithm: str, key: Any) -> str:
    claims = jwt.decode(token, options={"verify_signature": False})
    return jwt.encode(claims, key, algorithm, headers={"kid": jwt.get_unverified_header(token)["kid"]})


FORGERIES: dict[str, Callable[[str], str]] = {
    "tampered body": lambda token: rewritten(token, body={"sub": "bob"}),
    "more capabilities": lambda token: rewritten(token, body={"capabilities": ["exec", "shell"], "exp": 2**40}),
    "tampered signature": lambda token: token[:-8] + "A" * 8,
    "no signature": lambda token: token.rpartition(".")[0] + ".",
    "alg none": lambda token: rewritten(token, head={"alg": "none"}).rpartition(".")[0] + ".",
    "alg none, old signature": lambda token: rewritten(token, head={"alg": "none"}),
    "signed as HS256": lambda token: _with_foreign_key(token, "HS256", "k" * 32),
    "another key under the same name": lambda token: _with_foreign_key(token, "EdDSA", Ed25519PrivateKey.generate()),
    "unknown key": lambda token: rewritten(token, head={"kid": "0123456789abcdef"}),
    "no key named": lambda token: rewritten(token, head={"kid": None}),
    "key named by a number": lambda token: rewritten(token, head={"kid": 7}),
    "not a token": lambda token: "hello",
    "too long": lambda token: token + "A" * 5000,
    "twice": lambda token: token + token,
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_forged_tokens(ada: Client, server: RunningServer, kind: str) -> None:
    session = ada.ensure("forged")
    forged = FORGERIES[kind](session["token"])
    error_of(use(server, forged), 401, "UNAUTHENTICATED")
    error_of(use(server, forged, f"/api/{session['sandbox']['id']}/exec"), 401, "UNAUTHENTICATED")
    refresh = httpx.post(f"{server.url}/sandbox/refresh", headers={"Authorization": f"Bearer {forged}"}, timeout=60)
    error_of(refresh, 401, "UNAUTHENTICATED")
    assert use(server, session["token"]).status_code == 200


def test_a_token_is_for_one_sandbox(ada: Client, bob: Client, server: RunningServer) -> None:
    mine, other, theirs = ada.acquire(new_id("thr")), ada.acquire(new_id("thr")), bob.acquire(new_id("thr"))
    own = f"/api/{mine['sandbox_id']}/exec"
    assert use(server, mine["token"], own).status_code == 200
    for grant in (other, theirs):
        error_of(use(server, grant["token"], own), 403, "FORBIDDEN")
        error_of(use(server, mine["token"], f"/api/{grant['sandbox_id']}/exec"), 403, "FORBIDDEN")
    for client, grant in ((ada, mine), (ada, other), (bob, theirs)):
        client.http.post("/sandbox/release", json={"sandbox_id": grant["sandbox_id"]})


def test_what_is_in_one_sandbox_is_not_in_another(ada: Client, server: RunningServer) -> None:
    mine, other = ada.ensure(new_id("thr")), ada.ensure(new_id("thr"))
    assert use(server, mine["token"], command="echo secret > note; (sleep 100 &) ; hostname").status_code == 200
    seen = use(server, other["token"], command="ls -a /workspace /tmp; ps ax 2>/dev/null || ls /proc").json()
    assert "note" not in seen["stdout"]
    assert "sleep" not in seen["stdout"]
    for session in (mine, other):
        ada.of_session("DELETE", session["session_id"])


def test_a_credential_of_the_server_is_no_token_and_a_token_none_of_those(
    ada: Client, server: RunningServer, thread: str
) -> None:
    session = ada.ensure(thread)
    error_of(use(server, server.key), 401, "UNAUTHENTICATED")
    error_of(use(server, ada.http.headers["authorization"].partition(" ")[2]), 401, "UNAUTHENTICATED")
    bearer = {"Authorization": f"Bearer {session['token']}"}
    asked = httpx.post(
        f"{server.url}/v1/sandbox/sessions", json={"thread_id": thread, "mode": "get"}, headers=bearer, timeout=60
    )
    error_of(asked, 401, "UNAUTHENTICATED")
    ada.of_session("DELETE", session["session_id"])


def test_revoked_tokens(ada: Client, server: RunningServer, thread: str) -> None:
    session = ada.ensure(thread)
    assert ada.of_session("POST", session["session_id"], "/revoke").status_code == 204
    error_of(use(server, session["token"]), 401, "UNAUTHENTICATED")
    fresh = found(ada.of_session("POST", session["session_id"], "/refresh"))
    assert use(server, fresh["token"]).status_code == 200
    ada.of_session("DELETE", session["session_id"])


def test_expired_tokens(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(token_ttl_sec="2")
    with Client(server) as client:
        # What is loaded late is there before the time of the token runs.
        assert use(server, client.ensure("t")["token"]).status_code == 200
        session = client.ensure("t")
        claims = decoded(server, session["token"])
        assert use(server, session["token"]).status_code == 200
        wait_for(lambda: time.time() > claims["exp"])
        error_of(use(server, session["token"]), 401, "UNAUTHENTICATED")
        refresh = httpx.post(
            f"{server.url}/sandbox/refresh", headers={"Authorization": f"Bearer {session['token']}"}, timeout=60
        )
        error_of(refresh, 401, "UNAUTHENTICATED")
        fresh = found(client.of_session("POST", session["session_id"], "/refresh"))
        assert use(server, fresh["token"]).status_code == 200


def test_replaced_keys(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="off")
    with Client(server) as client:
        first = client.ensure("t")["token"]
        keys = found(client.http.post("/v1/sandbox/keys/rotate"))["keys"]
        assert len(keys) == 2
        second = client.ensure("t")["token"]
        assert jwt.get_unverified_header(first)["kid"] != jwt.get_unverified_header(second)["kid"]
        for token in (first, second):
            assert use(server, token).status_code == 200
            assert decoded(server, token)["sub"] == "local"
        left = found(client.http.post("/v1/sandbox/keys/rotate", json={"emergency": True}))["keys"]
        assert len(left) == 1
        for token in (first, second):
            error_of(use(server, token), 401, "UNAUTHENTICATED")
        assert use(server, client.ensure("t")["token"]).status_code == 200


def test_only_an_admin_replaces_keys(ada: Client) -> None:
    error_of(ada.http.post("/v1/sandbox/keys/rotate"), 403, "FORBIDDEN")


def test_keys_that_are_replaced_by_the_clock(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(token_key_rotation_sec="1", token_ttl_sec="2", reaper_interval_sec="0.2")
    with Client(server) as client:
        first = client.ensure("t")["token"]
        kid = jwt.get_unverified_header(first)["kid"]
        wait_for(lambda: jwt.get_unverified_header(client.ensure("t")["token"])["kid"] != kid)

        def known() -> bool:
            return kid in [
                key["kid"] for key in httpx.get(f"{server.url}/.well-known/jwks.json", timeout=60).json()["keys"]
            ]

        assert known(), "its tokens can still be used"
        wait_for(lambda: not known())


def test_tokens_that_are_bound_to_an_address(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(token_bind_address="yes", trusted_proxies="127.0.0.1")
    with Client(server) as client:
        client.http.headers["X-Forwarded-For"] = "192.0.2.7"
        token = client.ensure("t")["token"]
        assert decoded(server, token)["address"] == "192.0.2.7"

        def from_address(address: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": address}
            return httpx.post(f"{server.url}/v1/exec", json={"command": "true"}, headers=headers, timeout=60)

        assert from_address("192.0.2.7").status_code == 200
        error_of(from_address("192.0.2.8"), 401, "UNAUTHENTICATED")


def test_the_keys_are_the_servers_alone(server: RunningServer, ada: Client) -> None:
    file = server.data_dir / "keys" / "sandbox-tokens.json"
    assert file.stat().st_mode & 0o777 == 0o600
    published = httpx.get(f"{server.url}/.well-known/jwks.json", timeout=60)
    assert all("d" not in key for key in published.json()["keys"])
