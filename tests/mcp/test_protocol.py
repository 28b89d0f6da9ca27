"""The whole protocol with its official client: on stdio without a server and with one, over HTTP, in both eras."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp import Client, MCPError
from mcp_types import BlobResourceContents, ImageContent, Request, RequestParams, Result, TextResourceContents
from pydantic import ConfigDict

from tests.api.conftest import RunningServer
from tests.mcp.clients import ERAS, fields, on_http, on_stdio, words
from tests.mcp.test_answers import PNG
from tidebox.mcp import catalog

WAYS = ("embedded", "server", "http")


@asynccontextmanager
async def connected(way: str, era: str, server: RunningServer) -> AsyncIterator[Client]:
    if way == "http":
        async with on_http(server, era) as client:
            yield client
    else:
        async with on_stdio(era, server if way == "server" else None) as client:
            yield client


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", WAYS)
async def test_every_tool_and_resource(way: str, era: str, mcp_server: RunningServer) -> None:
    async with connected(way, era, mcp_server) as client:
        assert client.protocol_version == ("2025-11-25" if era == "legacy" else era)
        await check_list(client)
        await check_run_code(client)
        await check_sandbox_run(client)
        await check_environment(client, way, mcp_server)
        await check_methods(client)


async def check_list(client: Client) -> None:
    listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == [tool.name for tool in catalog.tools()]
    size = sum(len(tool.name) + len(tool.description or "") + len(json.dumps(tool.input_schema)) for tool in listed)
    assert size <= 8000, size
    code = next(tool for tool in listed if tool.name == "run_code")
    assert "python, javascript, shell" in (code.description or "")
    templates = (await client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == [
        "tidebox://runs/{id}/log",
        "tidebox://runs/{id}/artifacts/{+path}",
    ]
    assert (await client.list_resources()).resources == []


async def check_run_code(client: Client) -> None:
    seen: list[tuple[float, str]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message or ""))

    code = (
        "import sys, time, base64\n"
        "print('first', flush=True)\n"
        "time.sleep(0.5)\n"
        "print('wrong', file=sys.stderr)\n"
        f"open('dot.png', 'wb').write(base64.b64decode({base64.b64encode(PNG).decode()!r}))\n"
        "open('given.txt', 'a').write('!')\n"
        "open('raw.bin', 'wb').write(bytes([255, 0]))\n"
        "sys.exit(3)\n"
    )
    result = await client.call_tool(
        "run_code",
        {"code": code, "files": [{"path": "given.txt", "content": "hello"}], "timeout_sec": 20},
        progress_callback=note,
    )
    found = fields(result)
    assert not result.is_error
    assert (found["stdout"], found["stderr"], found["exit_code"], found["phase"]) == ("first\n", "wrong\n", 3, "failed")
    assert "error" in found["reason"]
    assert len(found["policy_hash"]) == 64
    assert found["image_digest"].startswith("sha256:")
    assert found["log_stream_url"].startswith("ws://")
    assert "truncated" not in found
    assert any("first" in text for _, text in seen)
    assert [amount for amount, _ in seen] == sorted({amount for amount, _ in seen})
    # The picture is there to be seen, and all files are there to be read.
    assert [block.mime_type for block in result.content if isinstance(block, ImageContent)] == ["image/png"]
    uris = {item["path"]: item["uri"] for item in found["artifacts"]}
    assert set(uris) == {"dot.png", "given.txt", "raw.bin"}
    text, raw, log = [
        (await client.read_resource(uri)).contents[0]
        for uri in (uris["given.txt"], uris["raw.bin"], f"tidebox://runs/{found['run_id']}/log")
    ]
    assert isinstance(text, TextResourceContents)
    assert text.text == "hello!"
    assert isinstance(raw, BlobResourceContents)
    assert base64.b64decode(raw.blob) == bytes([255, 0])
    assert isinstance(log, TextResourceContents)
    assert sorted(log.text.splitlines()) == ["first", "wrong"]
    noise = fields(await client.call_tool("run_code", {"code": "import os; os.write(1, bytes([255, 254]))"}))
    assert (noise["stdout_b64"], "stdout" in noise, noise["stderr"]) == ("//4=", False, "")
    for language, program in (("javascript", "console.log(6 * 7)"), ("shell", "echo $((6 * 7))")):
        assert fields(await client.call_tool("run_code", {"code": program, "language": language}))["stdout"] == "42\n"
    # Longer than an argument of a command may be.
    long = "print('long')\n" + "# filling\n" * 20_000
    found = fields(await client.call_tool("run_code", {"code": long}))
    assert (found["stdout"], found["artifacts"]) == ("long\n", [])


async def check_sandbox_run(client: Client) -> None:
    for name in ("sandbox_run", "sandbox.run"):
        arguments: dict[str, Any] = {
            "base_image": "host",
            "command": ["sh", "-c", "cat in.txt; echo $WHO > out.txt; echo no > not.txt"],
            "files": [{"path": "in.txt", "content_b64": base64.b64encode(b"given").decode()}],
            "env": {"WHO": "me"},
            "capture_patterns": ["out.*"],
        }
        found = fields(await client.call_tool(name, arguments))
        assert (found["stdout"], found["phase"]) == ("given", "completed")
        assert [(item["path"], item["size"]) for item in found["artifacts"]] == [("out.txt", 3)]
    refusal = words(await client.call_tool("sandbox_run", {"command": ["true"]}))
    assert "session_id" in refusal
    assert "base_image" in refusal


async def check_environment(client: Client, way: str, server: RunningServer) -> None:
    granted = fields(await client.call_tool("environment_acquire", {"thread_id": f"thread-{id(client)}"}))
    assert granted.keys() >= {"session_id", "sandbox", "expires_at"}
    assert "token" not in granted
    session = {"session_id": granted["session_id"]}
    written = await client.call_tool("environment_write_file", {**session, "path": "a/b.txt", "content": "grün"})
    assert fields(written) == {"path": "a/b.txt", "size": 5}
    read = fields(await client.call_tool("environment_read_file", {**session, "path": "a/b.txt"}))
    assert read["content"] == "grün"
    encoded = base64.b64encode(PNG).decode()
    await client.call_tool("environment_write_file", {**session, "path": "dot.png", "content_b64": encoded})
    picture = (await client.call_tool("environment_read_file", {**session, "path": "dot.png"})).content[1]
    assert isinstance(picture, ImageContent)
    assert base64.b64decode(picture.data) == PNG
    listed = fields(await client.call_tool("environment_list_files", session))
    assert [(item["name"], item["type"]) for item in listed["entries"]] == [("a", "directory"), ("dot.png", "file")]
    line = "cat a/b.txt; echo no >&2; exit 4"
    done = fields(await client.call_tool("environment_exec", {**session, "command": line}))
    assert (done["stdout"], done["stderr"], done["exit_code"]) == ("grün", "no\n", 4)
    plain = fields(await client.call_tool("environment_exec", {**session, "command": ["echo", "$HOME"], "cwd": "/tmp"}))
    assert plain["stdout"] == "$HOME\n"
    slow = fields(await client.call_tool("environment_exec", {**session, "command": "sleep 30", "timeout_sec": 0.3}))
    assert slow["exit_code"] == 137
    assert "timeout_sec" in slow["reason"]
    big = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end"
    cut = fields(await client.call_tool("environment_exec", {**session, "command": big}))
    assert cut["truncated"]
    assert cut["stdout"].endswith("x\nend\n")
    await client.call_tool("environment_exec", {**session, "command": f"({big}) > big.txt"})
    part = fields(await client.call_tool("environment_read_file", {**session, "path": "big.txt"}))
    assert (part["truncated"], part["size"], part["content"][:3]) == (True, 3000005, "xxx")
    for tool in ("environment_heartbeat", "environment_refresh"):
        assert fields(await client.call_tool(tool, session))["session_id"] == granted["session_id"]
    assert fields(await client.call_tool("environment_release", session))["released"]
    assert words(await client.call_tool("environment_exec", {**session, "command": "true"})).startswith("not found: ")
    assert words(await client.call_tool("environment_read_file", {**session, "path": "x"})).startswith("not found: ")


class _Params(RequestParams):
    model_config = ConfigDict(alias_generator=None, extra="allow")


class _Anything(Result):
    model_config = ConfigDict(extra="allow")


class _Own(Request[_Params, str]):
    method: str
    params: _Params


async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
    """The answer to a method that is not the protocol's own."""
    request = _Own(method=method, params=_Params(**params))
    answer = await client.session.send_request(request, _Anything)
    return dict(answer.model_extra or {})


async def check_methods(client: Client) -> None:
    thread = f"methods-{id(client)}"
    with pytest.raises(MCPError, match="not found") as missing:
        await ask(client, "environment/acquire", thread_id=thread, mode="get")
    assert missing.value.error.code == mcp_types.INVALID_PARAMS
    granted = await ask(client, "environment/acquire", thread_id=thread, mode="ensure")
    assert granted["thread_id"] == thread
    # A client that is given this needs nothing else of the protocol.
    bearer = {"Authorization": f"Bearer {granted['token']}"}
    async with httpx2.AsyncClient(headers=bearer, verify=False, timeout=60) as http:
        done = await http.post(f"{granted['sandbox']['http_base_url']}/exec", json={"command": ["echo", "hi"]})
    assert done.json()["stdout"] == "hi\n"
    session = granted["session_id"]
    assert (await ask(client, "environment/refresh", session_id=session))["token"]
    assert (await ask(client, "environment/heartbeat", session_id=session))["lease_expires_at"]
    assert (await ask(client, "environment/release", session_id=session))["released"]
    with pytest.raises(MCPError, match="not found"):
        await ask(client, "environment/refresh", session_id=session)
    with pytest.raises(MCPError) as unknown:
        await ask(client, "environment/destroy", session_id=session)
    assert unknown.value.error.code == mcp_types.METHOD_NOT_FOUND
    with pytest.raises(MCPError) as wrong:
        await ask(client, "environment/refresh", sessionId=session)
    assert wrong.value.error.code == mcp_types.INVALID_PARAMS
    assert "session_id" in wrong.value.error.message


@pytest.mark.parametrize("era", ERAS)
async def test_bad_arguments_are_answered_with_what_to_do(era: str, mcp_server: RunningServer) -> None:
    async with on_http(mcp_server, era) as client:

        async def refusal(name: str, arguments: dict[str, Any]) -> str:
            return words(await client.call_tool(name, arguments))

        assert "'kode'; this tool takes code, language" in await refusal("run_code", {"kode": "1"})
        assert "'context'" in await refusal("run_code", {"code": "1", "context": "c"})
        assert "`code`" in await refusal("run_code", {})
        assert "$.timeout_sec" in await refusal("run_code", {"code": "1", "timeout_sec": "soon"})
        assert "cobol" in await refusal("run_code", {"code": "1", "language": "cobol"})
        assert "SANDBOX_EGRESS_ALLOWLIST" in await refusal("run_code", {"code": "1", "allow_hosts": ["example.com"]})
        assert "egress.hosts" in await refusal(
            "sandbox_run", {"command": ["true"], "base_image": "host", "allow_hosts": ["*"]}
        )
        assert "packages" in await refusal("run_code", {"code": "1", "language": "shell", "packages": ["x"]})
        wrong_file = {"code": "1", "files": [{"path": "a", "content_b64": "%%"}]}
        assert "content_b64 is not valid base64" in await refusal("run_code", wrong_file)
        both = {"code": "1", "files": [{"path": "a"}]}
        assert "either content (text) or content_b64" in await refusal("run_code", both)
        outside = {"code": "1", "files": [{"path": "../a", "content": ""}]}
        assert "leads out of the workspace" in await refusal("run_code", outside)
        unknown = {"session_id": "ses-nobody", "command": ["true"]}
        assert (await refusal("sandbox_run", unknown)).startswith("not found: ")
        with pytest.raises(MCPError, match="unknown tool") as error:
            await client.call_tool("rm", {})
        assert error.value.error.code == mcp_types.INVALID_PARAMS
        for uri in ("tidebox://runs/run-nobody/log", "tidebox://elsewhere", "file:///etc/passwd"):
            with pytest.raises(MCPError, match="not found") as error:
                await client.read_resource(uri)
            assert error.value.error.code == mcp_types.INVALID_PARAMS


async def test_calls_run_side_by_side_and_a_cancelled_one_is_killed(mcp_server: RunningServer) -> None:
    for era in ERAS:
        async with on_http(mcp_server, era) as client:
            sleeping = asyncio.create_task(client.call_tool("run_code", {"code": "import time; time.sleep(50)"}))
            quick = await client.call_tool("run_code", {"code": "print(1)"})
            assert fields(quick)["stdout"] == "1\n"
            assert not sleeping.done()
            sleeping.cancel()
            await asyncio.wait({sleeping})
            await nothing_runs(mcp_server)


async def nothing_runs(server: RunningServer) -> None:
    """Wait until the server has nothing to do."""
    async with httpx2.AsyncClient(headers=server.headers, verify=False, timeout=60) as http:
        for _ in range(400):
            load = (await http.get(f"{server.url}/api/v1/sandbox/health")).json()["load"]
            if load["active"] == load["queued"] == 0:
                return
            await asyncio.sleep(0.05)
    pytest.fail("something still runs")
