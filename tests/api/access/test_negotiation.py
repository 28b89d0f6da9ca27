"""Server-driven negotiation, walked through over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import jwt

from tests.api.access.clients import JWT_SECRET, Client, error_of, found, use
from tests.api.conftest import NO_CELLS, RunningServer


def refreshed(server: RunningServer, token: str) -> httpx.Response:
    return httpx.post(f"{server.url}/sandbox/refresh", headers={"Authorization": f"Bearer {token}"}, timeout=60)


def test_acquire_refresh_and_release(ada: Client, server: RunningServer, thread: str) -> None:
    grant = ada.acquire(thread, "asst_1")
    sandbox_id = grant["sandbox_id"]
    assert grant["protocol_version"] == "1.0"
    assert sandbox_id.startswith("sb-")
    assert grant["ws_url"] == f"{server.url}/ws/{sandbox_id}".replace("http", "ws", 1)
    assert grant["http_url"] == f"{server.url}/api/{sandbox_id}"
    assert grant["scopes"] == ["fs:read", "fs:write", "shell:exec"]
    assert grant["refresh_url"] == "/sandbox/refresh"
    assert use(server, grant["token"], f"/api/{sandbox_id}/exec").json()["stdout"] == "used\n"

    again = ada.acquire(thread, "asst_1")
    assert again["sandbox_id"] == sandbox_id
    assert again["token"] != grant["token"]

    fresh = found(refreshed(server, grant["token"]))
    assert fresh["sandbox_id"] == sandbox_id
    assert fresh["thread_id"] == thread
    beside = found(ada.http.post("/sandbox/refresh", json={"token": grant["token"]}))
    assert beside["sandbox_id"] == sandbox_id
    for token in (grant["token"], again["token"], fresh["token"], beside["token"]):
        assert use(server, token).status_code == 200

    released = found(ada.http.post("/sandbox/release", json={"sandbox_id": sandbox_id}))
    assert released == {"sandbox_id": sandbox_id, "released": True}
    error_of(use(server, fresh["token"]), 401, "UNAUTHENTICATED")
    error_of(refreshed(server, fresh["token"]), 401, "UNAUTHENTICATED")
    error_of(ada.http.post("/sandbox/release", json={"sandbox_id": sandbox_id}), 404, "SESSION_NOT_FOUND")


def test_it_shares_bindings_with_the_session_protocol(ada: Client, thread: str) -> None:
    grant = ada.acquire(thread)
    session = ada.ensure(thread)
    assert session["session_id"] == grant["session_id"]
    assert session["sandbox"]["id"] == grant["sandbox_id"]
    ada.of_session("DELETE", session["session_id"])


def test_other_users_are_refused_the_sandbox_of_a_thread(
    ada: Client, bob: Client, server: RunningServer, thread: str
) -> None:
    grant = ada.acquire(thread)
    error_of(bob.http.post("/sandbox/acquire", json={"thread_id": thread}), 403, "FORBIDDEN")
    error_of(bob.http.post("/sandbox/release", json={"sandbox_id": grant["sandbox_id"]}), 403, "FORBIDDEN")
    error_of(bob.http.post("/sandbox/refresh", json={"token": grant["token"]}), 403, "FORBIDDEN")
    stranger = httpx.post(f"{server.url}/sandbox/refresh", json={"token": grant["token"]}, timeout=60)
    error_of(stranger, 401, "UNAUTHENTICATED")
    assert use(server, grant["token"]).status_code == 200
    ada.http.post("/sandbox/release", json={"sandbox_id": grant["sandbox_id"]})


def test_invalid_acquire_requests_are_refused(ada: Client) -> None:
    bodies: list[Any] = [{}, {"assistant_id": "a"}, {"thread_id": ""}, {"thread_id": ["t"]}, [], "t"]
    for body in bodies:
        error_of(ada.http.post("/sandbox/acquire", json=body), 400, "INVALID_REQUEST")
    error_of(ada.http.post("/sandbox/release", json={}), 400, "INVALID_REQUEST")


def test_tokens_of_an_ended_thread_are_refused(ada: Client, server: RunningServer, thread: str) -> None:
    grant = ada.acquire(thread)
    assert ada.http.delete(f"/v1/sandbox/scopes/thread/{thread}").status_code == 204
    error_of(refreshed(server, grant["token"]), 401, "UNAUTHENTICATED")
    error_of(use(server, grant["token"]), 401, "UNAUTHENTICATED")


def test_threads_of_one_assistant_share_a_sandbox(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(scoping="assistant", **NO_CELLS)
    with Client(server) as client:
        first, second = client.acquire("t1", "a"), client.acquire("t2", "a")
        assert first["sandbox_id"] == second["sandbox_id"]
        assert client.acquire("t1", "b")["sandbox_id"] != first["sandbox_id"]
        threads = [
            jwt.decode(grant["token"], options={"verify_signature": False})["thread_id"] for grant in (first, second)
        ]
        assert threads == ["t1", "t2"]
        error_of(client.http.post("/sandbox/acquire", json={"thread_id": "t1"}), 400, "INVALID_REQUEST")
        # A thread's end does not end what others share, but nobody goes on in its name.
        assert client.http.delete("/v1/sandbox/scopes/thread/t1").status_code == 204
        error_of(refreshed(server, first["token"]), 401, "UNAUTHENTICATED")
        assert found(refreshed(server, second["token"]))["sandbox_id"] == second["sandbox_id"]
        assert found(refreshed(server, client.acquire("t1", "a")["token"]))["sandbox_id"] == first["sandbox_id"]


def test_assistants_that_were_promoted(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(scoping_assistants="a,b", **NO_CELLS)
    with Client(server) as client:
        assert client.acquire("t1", "a")["sandbox_id"] == client.acquire("t2", "a")["sandbox_id"]
        assert client.acquire("t1", "c")["sandbox_id"] != client.acquire("t2", "c")["sandbox_id"]


def test_one_sandbox_for_each_user(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(scoping="user", auth_jwt_secret=JWT_SECRET, **NO_CELLS)
    with Client(server, "ada") as ada, Client(server, "bob") as bob:
        assert ada.acquire("t1")["sandbox_id"] == ada.acquire("t2", "a")["sandbox_id"]
        assert bob.acquire("t1")["sandbox_id"] != ada.acquire("t1")["sandbox_id"]


def test_one_sandbox_for_each_run(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(scoping="run", **NO_CELLS)
    with Client(server) as client:
        first, second = client.acquire("t1"), client.acquire("t1")
        assert first["sandbox_id"] != second["sandbox_id"]
        found(client.http.post("/sandbox/release", json={"sandbox_id": first["sandbox_id"]}))
        error_of(use(server, first["token"]), 401, "UNAUTHENTICATED")
        assert use(server, second["token"]).status_code == 200
