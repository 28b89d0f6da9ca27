"""``/mcp`` on a server: the same users, rules and records as REST."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from mcp_types import Implementation

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import JWT_SECRET, Service, token
from tests.mcp.clients import ERAS, eventually, fields, on_http, words

HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


def post(server: RunningServer, body: Any, **headers: str) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    # Without certificates, which nobody asks for here and which take longer to read than all the rest.
    return httpx2.post(f"{server.url}/mcp", content=content, headers=HEADERS | headers, timeout=30, verify=False)


@functools.cache
def bearer(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(user)}"}


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_somebody_else_s_is_not_there(era: str, mcp_server: RunningServer) -> None:
    async with (
        on_http(mcp_server, era, token("ada")) as ada,
        on_http(mcp_server, era, token("bob")) as bob,
    ):
        run_id = fields(await ada.call_tool("run_code", {"code": "open('f','w').write('x')"}))["run_id"]
        thread = f"ada-{era}"
        granted = fields(await ada.call_tool("environment_acquire", {"thread_id": thread}))
        with Service.of(mcp_server, "ada") as service:
            # REST and MCP are one: what was run here is there.
            assert service.get(f"/runs/{run_id}").json()["phase"] == "completed"
            session = service.post("/sessions", json={"spec_version": "1.0", "base_image": "host"}).json()["session_id"]

        async def told(name: str, arguments: dict[str, Any]) -> str:
            return words(await bob.call_tool(name, arguments))

        for name, arguments in (
            ("environment_exec", {"command": "true"}),
            ("environment_read_file", {"path": "x"}),
            ("environment_heartbeat", {}),
            ("environment_refresh", {}),
            ("environment_release", {}),
            ("sandbox_run", {"command": ["true"]}),
        ):
            mine = session if name == "sandbox_run" else granted["session_id"]
            strange = await told(name, {"session_id": mine, **arguments})
            missing = await told(name, {"session_id": "nobody-s", **arguments})
            assert strange == missing.replace("nobody-s", mine)
            assert strange.startswith("not found: ")
        strange = await told("environment_acquire", {"thread_id": thread, "mode": "get"})
        missing = await told("environment_acquire", {"thread_id": "nobody-s", "mode": "get"})
        assert strange == missing.replace("nobody-s", thread)
        for path in ("log", "artifacts/f"):
            texts = []
            for wanted in (run_id, "run-nobody-s"):
                with pytest.raises(MCPError) as refused:
                    await bob.read_resource(f"tidebox://runs/{wanted}/{path}")
                texts.append(refused.value.error.message.replace(wanted, "?"))
            assert texts[0] == texts[1]
        assert (await ada.read_resource(f"tidebox://runs/{run_id}/log")).contents
        await ada.call_tool("environment_release", {"session_id": granted["session_id"]})


def test_without_a_credential_or_from_a_strange_page_nothing_is_served(mcp_server: RunningServer) -> None:
    refused = post(mcp_server, INITIALIZE)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert post(mcp_server, INITIALIZE, **{"X-API-KEY": "wrong"}).status_code == 401
    strange = post(mcp_server, INITIALIZE, Origin="https://evil.example", **mcp_server.headers)
    assert strange.status_code == 403
    # A name that somebody else lets mean this machine is not the server's own, although both headers have it.
    rebound = post(mcp_server, INITIALIZE, Origin="http://evil.example", Host="evil.example", **mcp_server.headers)
    assert rebound.status_code == 403
    own = post(mcp_server, INITIALIZE, Origin=mcp_server.url, **mcp_server.headers)
    assert own.status_code == 200


def test_a_session_is_for_the_user_who_opened_it_by_any_of_their_tokens(mcp_server: RunningServer) -> None:
    opened = post(mcp_server, INITIALIZE, **bearer("ada"))
    session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
    assert post(mcp_server, LIST, **session, **bearer("ada")).status_code == 200
    assert post(mcp_server, LIST, **session, **bearer("bob")).status_code == 404
    url = f"{mcp_server.url}/mcp"
    assert httpx2.delete(url, headers=HEADERS | session | bearer("bob"), timeout=60).status_code == 404
    assert httpx2.delete(url, headers=HEADERS | session | bearer("ada"), timeout=60).status_code == 200
    assert post(mcp_server, LIST, **session, **bearer("ada")).status_code == 404


def test_one_user_has_a_share_of_the_sessions(mcp_server: RunningServer) -> None:
    opened = [post(mcp_server, INITIALIZE, **bearer("eve")) for _ in range(100)]
    assert {answer.status_code for answer in opened} == {200}
    assert post(mcp_server, INITIALIZE, **bearer("eve")).status_code == 429
    assert post(mcp_server, INITIALIZE, **bearer("ada")).status_code == 200
    for answer in opened:
        session = {"Mcp-Session-Id": answer.headers["mcp-session-id"]}
        httpx2.delete(f"{mcp_server.url}/mcp", headers=HEADERS | session | bearer("eve"), verify=False, timeout=60)
    assert post(mcp_server, INITIALIZE, **bearer("eve")).status_code == 200


def test_an_error_in_a_session_does_not_free_its_place(mcp_server: RunningServer) -> None:
    session: dict[str, str] = {}
    for _ in range(100):
        opened = post(mcp_server, INITIALIZE, **bearer("mallory"))
        assert opened.status_code == 200
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        assert post(mcp_server, b"garbage", **session, **bearer("mallory")).status_code == 400
        # Of no session, whatever it names; answered with 404.
        modern = session | {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "x"}
        assert post(mcp_server, {**LIST, "method": "x"}, **modern, **bearer("mallory")).status_code >= 400
    assert post(mcp_server, LIST, **session, **bearer("mallory")).status_code == 200
    assert post(mcp_server, INITIALIZE, **bearer("mallory")).status_code == 429


def test_sessions_that_are_opened_at_once_have_no_more_places(mcp_server: RunningServer) -> None:
    with ThreadPoolExecutor(40) as pool:
        opened = list(pool.map(lambda _: post(mcp_server, INITIALIZE, **bearer("oscar")).status_code, range(140)))
    assert opened.count(200) == 100
    assert set(opened) == {200, 429}


async def test_an_id_that_is_in_use_is_refused(mcp_server: RunningServer) -> None:
    headers = HEADERS | bearer("ida")
    async with httpx2.AsyncClient(verify=False, headers=headers, timeout=30) as client:
        url = f"{mcp_server.url}/mcp"
        opened = await client.post(url, json=INITIALIZE)
        client.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        call = {"name": "run_code", "arguments": {"code": "import time; time.sleep(2); print('done')"}}
        request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call}
        async with client.stream("POST", url, json=request) as first:
            assert first.status_code == 200
            for same in (7, "7"):
                second = await client.post(url, json={**request, "id": same})
                assert (second.status_code, second.json()["error"]["code"]) == (400, -32600)
            assert "done" in (await first.aread()).decode()
        # The id is free when the server has let the request go, which is a little after its last byte has arrived here.
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        eventually(lambda: post(mcp_server, {**LIST, "id": 7}, **session, **bearer("ida")).status_code == 200)


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://[v1.x]"])
def test_an_origin_that_is_none_is_refused(mcp_server: RunningServer, origin: str) -> None:
    host = {"Host": origin.removeprefix("http://")}
    answer = post(mcp_server, INITIALIZE, **bearer("ada"), **host, Origin=origin)
    assert answer.status_code in (400, 403), answer.text


def test_bodies_are_bounded_in_bytes_and_in_values(mcp_server: RunningServer) -> None:
    known = mcp_server.headers
    assert post(mcp_server, b"x" * (5 * 1024 * 1024), **known).status_code == 413
    assert post(mcp_server, b"[" * 500_000, **known).status_code == 413
    assert post(mcp_server, b"garbage", **known).status_code == 400
    assert post(mcp_server, b"[]", **known, **{"Mcp-Protocol-Version": "2026-07-28"}).status_code == 400


@pytest.mark.parametrize("era", ERAS)
async def test_the_audit_log_has_the_source_and_the_client(era: str, mcp_server: RunningServer) -> None:
    about = Implementation(name=f"an-editor-{era}", version="7.1")
    async with on_http(mcp_server, era, token("ada"), client_info=about) as client:
        run_id = fields(await client.call_tool("run_code", {"code": "pass"}))["run_id"]
    events: list[dict[str, Any]] = []

    def recorded() -> bool:
        lines = [line for file in (mcp_server.data_dir / "audit").iterdir() for line in file.read_text().splitlines()]
        events[:] = [event for event in map(json.loads, lines) if event.get("run_id") == run_id]
        return any(event["event"] == "sandbox.run.completed" for event in events)

    eventually(recorded)
    assert {(event["source"], event["client"], event["user_id"]) for event in events} == {
        ("MCP", f"an-editor-{era}/7.1", "ada")
    }
    assert {event["address"] for event in events} == {"127.0.0.1"}


async def test_quotas_and_policies_hold(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(
        auth_jwt_secret=JWT_SECRET,
        max_sandboxes_per_user="1",
        max_exec_timeout_sec="1",
        mcp_dotted_names="true",
        pool_sandboxes="0",
    )
    async with on_http(server, "legacy", token("ada")) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "sandbox_run" not in listed
        assert "oneOf" in listed["sandbox.run"].input_schema
        await client.call_tool("environment_acquire", {"thread_id": "one"})
        assert "release sandboxes" in words(await client.call_tool("environment_acquire", {"thread_id": "two"}))
        found = fields(await client.call_tool("run_code", {"code": "while True: pass", "timeout_sec": 1}))
        assert (found["phase"], found["exit_code"]) == ("timed_out", 137)
        assert "timeout_sec" in found["reason"]
    off = start_server(enable_execution="false")
    async with on_http(off, "2026-07-28") as client:
        assert "execution is turned off" in words(await client.call_tool("run_code", {"code": "1"}))
