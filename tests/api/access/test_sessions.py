"""The session access protocol, walked through over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest

from tests.api.access.clients import JWT_SECRET, Client, error_of, found, use, wait_for
from tests.api.conftest import RunningServer
from tidebox.model.ids import new_id


def test_the_session_part_of_the_protocol(ada: Client, server: RunningServer, thread: str) -> None:
    error_of(ada.negotiate(thread_id=thread, mode="get"), 404, "SESSION_NOT_FOUND")
    session = ada.ensure(thread)
    assert session["thread_id"] == thread
    assert session["session_id"] != session["sandbox"]["id"]
    assert session["sandbox"]["http_base_url"] == f"{server.url}/v1"
    assert session["sandbox"]["ws_base_url"] == f"{server.url}/v1".replace("http", "ws", 1)
    assert session["token"]
    assert session["expires_at"].endswith("Z")
    assert use(server, session["token"]).json()["stdout"] == "used\n"

    again = found(ada.negotiate(thread_id=thread, mode="get"))
    assert again["session_id"] == session["session_id"]
    assert again["sandbox"] == session["sandbox"]
    assert not again["recreated"]

    fresh = found(ada.of_session("POST", session["session_id"], "/refresh", json={}))
    assert use(server, fresh["token"]).status_code == 200
    assert use(server, session["token"]).status_code == 200, "the old one is good until it expires"

    released = ada.of_session("DELETE", session["session_id"])
    assert (released.status_code, released.content) == (204, b"")
    error_of(use(server, fresh["token"]), 401, "UNAUTHENTICATED")
    error_of(ada.of_session("DELETE", session["session_id"]), 404, "SESSION_NOT_FOUND")
    error_of(ada.of_session("POST", session["session_id"], "/refresh", json={}), 404, "SESSION_NOT_FOUND")
    error_of(ada.negotiate(thread_id=thread, mode="get"), 404, "SESSION_NOT_FOUND")


def test_sessions_are_listed_newest_first_and_per_user(ada: Client, bob: Client, admin: Client, thread: str) -> None:
    first, second = ada.ensure(thread), ada.ensure(thread + "-2")
    listed = found(ada.http.request("GET", "/v1/sandbox/sessions"))
    mine = [item for item in listed["items"] if item["scope"]["id"].startswith(thread)]
    assert [item["id"] for item in mine] == [second["session_id"], first["session_id"]]
    assert (mine[0]["state"], mine[0]["sandbox_id"]) == ("active", second["sandbox"]["id"])
    assert "token" not in json.dumps(listed)
    page = found(ada.http.request("GET", "/v1/sandbox/sessions", params={"limit": 1, "offset": 1}))
    assert (len(page["items"]), page["total"]) == (1, listed["total"])

    seen = found(bob.http.request("GET", "/v1/sandbox/sessions"))["items"]
    assert not [item for item in seen if item["scope"]["id"].startswith(thread)]
    error_of(bob.http.request("GET", "/v1/sandbox/sessions", params={"everybody": "true"}), 403, "FORBIDDEN")
    everybody = found(admin.http.request("GET", "/v1/sandbox/sessions", params={"everybody": "true", "limit": 1000}))
    assert first["session_id"] in [item["id"] for item in everybody["items"]]
    for session in (first, second):
        ada.of_session("DELETE", session["session_id"])
    left = found(ada.http.request("GET", "/v1/sandbox/sessions"))["items"]
    assert not [item for item in left if item["scope"]["id"].startswith(thread)]


def test_the_binding_part_of_the_protocol(ada: Client, thread: str) -> None:
    scope = {"type": "thread", "id": thread}
    error_of(ada.negotiate(scope=scope, mode="attach_only"), 404, "BINDING_NOT_FOUND")
    made = found(
        ada.negotiate(
            scope=scope,
            mode="create_only",
            actor={"type": "human", "id": "ada"},
            requested_capabilities=["fs_read", "shell"],
            sandbox_hint="sb-unknown",
            provider_preference="auto",
        )
    )
    binding = made["binding"]
    assert binding["scope"] == scope
    assert (binding["state"], binding["provider"]) == ("active", "local")
    assert binding["sandbox_id"] == made["sandbox"]["id"]
    assert made["credentials"]["token_type"] == "Bearer"
    assert made["credentials"]["granted_capabilities"] == ["fs_read", "shell"]
    assert made["policy"] == {"idle_timeout_seconds": 900, "hard_ttl_seconds": 28800}
    assert made["dataplane"]["ws_base_url"].startswith("ws://")
    assert made["sandbox_hint_matched"] is False
    # The same binding in the fields of the smaller protocol.
    assert (made["session_id"], made["token"]) == (binding["id"], made["credentials"]["access_token"])

    error_of(ada.negotiate(scope=scope, mode="create_only"), 409, "BINDING_CONFLICT")
    error_of(ada.negotiate(thread_id=thread, mode="create_only"), 409, "SESSION_CONFLICT")
    attached = found(ada.negotiate(scope=scope, mode="attach_only", sandbox_hint=binding["sandbox_id"]))
    assert attached["session_id"] == binding["id"]
    assert attached["sandbox_hint_matched"] is True

    shown = found(ada.of_session("GET", binding["id"]))
    assert shown["binding"]["id"] == binding["id"]
    assert "token" not in json.dumps(shown)
    lease = shown["binding"]["lease_expires_at"]
    beat = found(ada.of_session("POST", binding["id"], "/heartbeat"))
    assert beat["lease_expires_at"] > lease
    fresh = found(ada.of_session("POST", binding["id"], "/refresh-token"))
    assert fresh["credentials"]["access_token"] == fresh["token"]
    assert ada.of_session("DELETE", binding["id"]).status_code == 204
    for method, what in (("GET", ""), ("POST", "/refresh-token"), ("POST", "/heartbeat")):
        error_of(ada.of_session(method, binding["id"], what), 404, "BINDING_NOT_FOUND")


@pytest.mark.parametrize("type", ["thread", "workspace", "assistant", "deployment"])
def test_every_scope_has_its_own_sandbox(ada: Client, thread: str, type: str) -> None:
    scope = {"type": type, "id": thread}
    made = found(ada.negotiate(scope=scope, mode="ensure"))
    assert made["binding"]["scope"] == scope
    assert made["thread_id"] == (thread if type == "thread" else None)
    other = found(ada.negotiate(scope={"type": "thread", "id": new_id("thr")}, mode="ensure"))
    assert other["sandbox"]["id"] != made["sandbox"]["id"]
    assert ada.http.delete(f"/v1/sandbox/scopes/{type}/{thread}").status_code == 204
    error_of(ada.negotiate(scope=scope, mode="get"), 404, "BINDING_NOT_FOUND")
    assert ada.http.delete(f"/v1/sandbox/scopes/{type}/{thread}").status_code == 204
    ada.of_session("DELETE", other["session_id"])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"mode": "ensure"},
        {"thread_id": "t"},
        {"thread_id": "t", "mode": "destroy"},
        {"thread_id": "", "mode": "ensure"},
        {"thread_id": "t" * 257, "mode": "ensure"},
        {"thread_id": "a\nb", "mode": "ensure"},
        {"thread_id": 7, "mode": "ensure"},
        {"scope": {"type": "user", "id": "ada"}, "mode": "ensure"},
        {"scope": {"type": "thread"}, "mode": "ensure"},
        {"scope": {"type": "thread", "id": "a"}, "thread_id": "b", "mode": "ensure"},
        {"thread_id": "t", "mode": "ensure", "requested_capabilities": ["root"]},
        {"thread_id": "t", "mode": "ensure", "requested_capabilities": []},
        {"thread_id": "t", "mode": "ensure", "actor": {"type": "robot"}},
    ],
)
def test_invalid_session_requests_are_refused(ada: Client, body: dict[str, Any]) -> None:
    error_of(ada.negotiate(**body), 400, "INVALID_REQUEST")


def test_a_scope_belongs_to_who_bound_it_first(ada: Client, bob: Client, admin: Client, thread: str) -> None:
    session = ada.ensure(thread)
    for mode in ("get", "ensure", "attach_only", "create_only"):
        error_of(bob.negotiate(thread_id=thread, mode=mode), 403, "FORBIDDEN")
        error_of(admin.negotiate(thread_id=thread, mode=mode), 403, "FORBIDDEN")
    for method, what in (
        ("GET", ""),
        ("POST", "/refresh"),
        ("POST", "/refresh-token"),
        ("POST", "/heartbeat"),
        ("POST", "/revoke"),
        ("DELETE", ""),
    ):
        error_of(bob.of_session(method, session["session_id"], what), 403, "FORBIDDEN")
    error_of(bob.http.delete(f"/v1/sandbox/scopes/thread/{thread}"), 403, "FORBIDDEN")
    # An admin sees and ends everything, but gets no token for what is another's.
    assert admin.state(session["session_id"]) == "active"
    error_of(admin.of_session("POST", session["session_id"], "/refresh"), 403, "FORBIDDEN")
    assert admin.of_session("DELETE", session["session_id"]).status_code == 204
    bob.of_session("DELETE", bob.ensure(thread)["session_id"])


def test_capabilities_are_what_the_policy_grants_of_those_requested(
    ada: Client, server: RunningServer, thread: str
) -> None:
    def granted(client: Client, **body: Any) -> list[str]:
        granted: list[str] = client.ensure(thread, **body)["credentials"]["granted_capabilities"]
        return granted

    assert granted(ada) == ["fs_read", "fs_write", "exec", "shell"]
    assert granted(ada, requested_capabilities=["shell", "fs_write"]) == ["fs_write", "shell"]
    agent = {"actor": {"type": "agent", "id": "a1"}}
    assert granted(ada, **agent) == ["fs_read", "exec"]
    assert granted(ada, requested_capabilities=["shell", "exec"], **agent) == ["exec"]
    refused = ada.negotiate(thread_id=thread, mode="ensure", requested_capabilities=["shell"], **agent)
    error_of(refused, 403, "CAPABILITY_DENIED")
    with Client(server, "ada", "viewer") as viewer:
        assert granted(viewer) == ["fs_read"]
        only = viewer.ensure(thread)["token"]
        assert "exec" in error_of(use(server, only), 403, "CAPABILITY_DENIED")["message"]
    with Client(server, "ada", "viewer", "sandbox_admin") as both:
        assert granted(both) == ["fs_read", "fs_write", "exec", "shell"]
    ada.http.delete(f"/v1/sandbox/scopes/thread/{thread}")


def test_a_refreshed_token_covers_what_the_last_one_did(ada: Client, thread: str) -> None:
    session = ada.ensure(thread, requested_capabilities=["fs_read"])
    fresh = found(ada.of_session("POST", session["session_id"], "/refresh"))
    assert fresh["credentials"]["granted_capabilities"] == ["fs_read"]
    ada.of_session("DELETE", session["session_id"])


def test_who_does_not_want_to_wait_is_told_to_come_back(ada: Client, thread: str) -> None:
    response = ada.negotiate(headers={"Prefer": "respond-async"}, thread_id=thread, mode="ensure")
    error = error_of(response, 423, "SANDBOX_STARTING")
    assert error["retryable"] is True
    assert response.headers["retry-after"] == "1"

    def there() -> bool:
        again = ada.negotiate(headers={"Prefer": "respond-async"}, thread_id=thread, mode="ensure")
        return again.status_code == 200

    wait_for(there)
    session = ada.ensure(thread)
    assert session["session_id"] == error["details"]["binding_id"]
    ada.of_session("DELETE", session["session_id"])


def test_a_repeated_request_is_done_once(ada: Client, thread: str) -> None:
    key = {"Idempotency-Key": new_id("key")}
    first = found(ada.negotiate(headers=key, thread_id=thread, mode="create_only"))
    again = found(ada.negotiate(headers=key, thread_id=thread, mode="create_only"))
    assert again["session_id"] == first["session_id"]
    error_of(ada.negotiate(headers=key, thread_id=thread, mode="ensure"), 409, "SESSION_CONFLICT")
    scope = {"type": "thread", "id": thread}
    error_of(ada.negotiate(headers=key, scope=scope, mode="ensure"), 409, "BINDING_CONFLICT")
    ada.of_session("DELETE", first["session_id"])


def test_an_unknown_provider(ada: Client, thread: str) -> None:
    body: dict[str, Any] = {"mode": "ensure", "provider_preference": "elsewhere"}
    error_of(ada.negotiate(thread_id=thread, **body), 503, "PROVIDER_UNAVAILABLE")
    error_of(ada.negotiate(scope={"type": "thread", "id": thread}, **body), 503, "BACKEND_UNAVAILABLE")


def test_every_route_needs_a_credential(server: RunningServer, thread: str) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as nobody:
        for method, path in (
            ("POST", "/v1/sandbox/sessions"),
            ("GET", "/v1/sandbox/sessions/x"),
            ("POST", "/v1/sandbox/sessions/x/refresh"),
            ("POST", "/v1/sandbox/sessions/x/refresh-token"),
            ("POST", "/v1/sandbox/sessions/x/heartbeat"),
            ("POST", "/v1/sandbox/sessions/x/revoke"),
            ("DELETE", "/v1/sandbox/sessions/x"),
            ("DELETE", f"/v1/sandbox/scopes/thread/{thread}"),
            ("POST", "/v1/sandbox/keys/rotate"),
            ("POST", "/sandbox/acquire"),
            ("POST", "/sandbox/refresh"),
            ("POST", "/sandbox/release"),
        ):
            error_of(nobody.request(method, path), 401, "UNAUTHENTICATED")


def test_too_many_sandboxes_or_requests(start_server: Any) -> None:
    server = start_server(
        max_sandboxes_per_user="2", rate_limit="12/hour", pool_sandboxes="0", auth_jwt_secret=JWT_SECRET
    )
    with Client(server, "ada") as client:
        first = client.ensure("t1")
        client.ensure("t2")
        error = error_of(client.negotiate(thread_id="t3", mode="ensure"), 429, "RATE_LIMITED")
        assert error["retryable"] is True
        client.of_session("DELETE", first["session_id"])
        client.ensure("t3")
        client.ensure("t2")
        refused = [client.negotiate(thread_id="t2", mode="get") for _ in range(12)][-1]
        error_of(refused, 429, "RATE_LIMITED")
        assert int(refused.headers["retry-after"]) > 0


def test_execution_that_is_turned_off(start_server: Any) -> None:
    server = start_server(enable_execution="false")
    with Client(server) as client:
        error_of(client.negotiate(thread_id="t", mode="ensure"), 503, "PROVIDER_UNAVAILABLE")


def test_every_call_is_audited_and_no_token_is_written_down(ada: Client, server: RunningServer, thread: str) -> None:
    session = ada.ensure(thread)
    request_id = new_id("req")
    response = ada.of_session("POST", session["session_id"], "/refresh", headers={"X-Request-ID": request_id})
    tokens = [session["token"], found(response)["token"]]
    ada.of_session("DELETE", session["session_id"])
    error_of(ada.of_session("GET", session["session_id"]), 404, "BINDING_NOT_FOUND")

    def events() -> list[dict[str, Any]]:
        lines = [line for file in (server.data_dir / "audit").iterdir() for line in file.read_text().splitlines()]
        return [event for event in map(json.loads, lines) if event.get("session_id") == session["session_id"]]

    wait_for(lambda: len(events()) >= 4)
    assert [(event["event"], event["outcome"]) for event in events()] == [
        ("sandbox.access.negotiated", "ok"),
        ("sandbox.access.refreshed", "ok"),
        ("sandbox.access.released", "ok"),
        ("sandbox.access.shown", "not_found"),
    ]
    first, second = events()[:2]
    assert first["user_id"] == "ada"
    assert first["sandbox_id"] == session["sandbox"]["id"]
    assert first["thread_id"] == thread
    assert second["request_id"] == request_id
    kept = [file for file in server.data_dir.rglob("*") if file.is_file() and "images" not in file.parts]
    written = server.log.encode() + b"".join(file.read_bytes() for file in kept)
    for token in tokens:
        assert token.rpartition(".")[2].encode() not in written
