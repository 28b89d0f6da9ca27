"""Clients of the protocol: the official one, and one that can do what no client should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests.api.conftest import RunningServer
from tests.cli.command import TIDEBOX

ERAS = ("legacy", "2026-07-28")
"""The protocol with its handshake, and the one without."""
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("SANDBOX_", "TIDEBOX_"))}


def server_arguments(server: RunningServer | None) -> tuple[list[str], dict[str, str]]:
    """What ``tidebox mcp`` is told to use this server, or none."""
    if server is None:
        return [], {}
    return ["--server", server.url], {"TIDEBOX_API_KEY": server.key}


def on_stdio(era: str, server: RunningServer | None = None, **options: Any) -> Client:
    """The official client of ``tidebox mcp``; without a server, of its own."""
    words, variables = server_arguments(server)
    command = StdioServerParameters(command=TIDEBOX, args=["mcp", *words], env=_CLEAN | variables)
    return Client(stdio_client(command, errlog=sys.__stderr__ or sys.stderr), mode=era, **options)


@asynccontextmanager
async def on_http(server: RunningServer, era: str, bearer: str | None = None, **options: Any) -> AsyncIterator[Client]:
    """The official client of a server's ``/mcp``."""
    headers = {"Authorization": f"Bearer {bearer or server.key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, verify=False) as http:
        async with Client(streamable_http_client(f"{server.url}/mcp", http_client=http), mode=era, **options) as client:
            yield client


def fields(result: CallToolResult) -> dict[str, Any]:
    """The structured part of an answer, after a look at its text, which says the same."""
    assert result.structured_content is not None
    text = result.content[0]
    assert isinstance(text, TextContent)
    if not result.is_error or "error" not in result.structured_content:
        assert json.loads(text.text) == result.structured_content
    found: dict[str, Any] = result.structured_content
    return found


def words(result: CallToolResult) -> str:
    """What a tool says against a call."""
    assert result.is_error
    text = result.content[0]
    assert isinstance(text, TextContent)
    return text.text


class RawPeer:
    """``tidebox mcp`` and its two pipes."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [TIDEBOX, "mcp", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_CLEAN | variables,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self.stdin.write(data)
        self.stdin.flush()

    def send(self, method: str, params: dict[str, Any] | None = None, *, id: int | str | None = None) -> None:
        """Send a request, or without an id a notification."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        if id is not None:
            message["id"] = id
        self.write(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """The next message; whatever else is on its standard output fails the test."""
        line = self.stdout.readline()
        assert line.endswith(b"\n"), line
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def greet(self) -> None:
        """Shake hands."""
        about = {"name": "raw", "version": "1"}
        self.send("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}, id=0)
        assert self.receive()["result"]["serverInfo"]["name"] == "tidebox"
        self.send("notifications/initialized")

    def call(self, name: str, arguments: dict[str, Any], id: int, meta: dict[str, Any] | None = None) -> None:
        """Call a tool, and do not wait."""
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        if meta is not None:
            params["_meta"] = meta
        self.send("tools/call", params, id=id)

    def leave(self) -> int:
        """Close its input, and give its exit code; nothing more may be on its output but messages."""
        self.stdin.close()
        rest = self.stdout.read()
        for line in rest.splitlines():
            assert json.loads(line)["jsonrpc"] == "2.0"
        self.stdout.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return self.process.wait(30)


def eventually(happens: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def private_directories() -> set[Path]:
    """Those of every embedded server on the machine."""
    import tempfile

    return set(Path(tempfile.gettempdir()).glob("tidebox-mcp-*"))
