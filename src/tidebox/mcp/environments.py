"""The tools that work in sandboxes that live on, and the methods of the session access protocol."""

from __future__ import annotations

import io
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp_types import CallToolResult

from tidebox.mcp import arguments
from tidebox.mcp.progress import ProgressReporter, Report
from tidebox.mcp.tool_results import Tail, answer, fitted, picture_type, show, show_both
from tidebox.model.limits import KIB
from tidebox.model.result import Outcome
from tidebox.sdk.sandboxes.access import AsyncAccess
from tidebox.sdk.sandboxes.results import Ending
from tidebox.sdk.sandboxes.sandbox import AsyncSandbox

DEFAULT_TIMEOUT = 60.0
_MAX_ENTRIES = 1000
# So small that as many as are listed at most fit into the first attempt at an answer.
_LEAST_ENTRY_BYTES = 64
_MAX_FILE_BYTES = 400 * KIB
_MAX_PICTURE_BYTES = 700 * KIB


async def acquire(access: AsyncAccess, given: arguments.Acquire) -> CallToolResult:
    """A sandbox for a thread. Its token is not for models: the other tools use it."""
    granted = await access.sessions.acquire({"thread_id": given.thread_id, "mode": given.mode})
    shown = {name: granted.get(name) for name in ("session_id", "sandbox", "expires_at", "thread_id", "recreated")}
    return answer(shown)


async def refresh(access: AsyncAccess, given: arguments.OfSession) -> CallToolResult:
    """Longer access to a sandbox."""
    granted = await access.sessions.refresh(given.session_id)
    return answer({name: granted.get(name) for name in ("session_id", "expires_at")})


async def heartbeat(access: AsyncAccess, given: arguments.OfSession) -> CallToolResult:
    """A longer lease."""
    beaten = await access.sessions.heartbeat(given.session_id)
    return answer({name: beaten.get(name) for name in ("session_id", "lease_expires_at")})


async def release(access: AsyncAccess, given: arguments.OfSession) -> CallToolResult:
    """The end of a sandbox."""
    await access.sessions.release(given.session_id)
    return answer({"session_id": given.session_id, "released": True})


async def execute(access: AsyncAccess, given: arguments.EnvironmentExec, report: Report | None) -> CallToolResult:
    """Run a command in a sandbox; being cancelled kills it."""
    stdout, stderr, progress = Tail(), Tail(), ProgressReporter()
    async with _opened(access, given.session_id) as sandbox:
        seconds = DEFAULT_TIMEOUT if given.timeout_sec is None else given.timeout_sec
        process = await sandbox.start(given.command, cwd=given.cwd, timeout=seconds)
        async with process, progress.reported(report):
            while (chunk := await process.read()) is not None:
                (stdout if chunk.stream == "stdout" else stderr).add(chunk.data)
                progress.add(chunk.data)
            ending = await process.wait()

    def make(most: int) -> dict[str, Any]:
        output, cut = show_both(stdout, stderr, most)
        structured: dict[str, Any] = {
            **output,
            "exit_code": _exit_code(ending),
            "signal": ending.signal,
            "reason": _reason(ending, seconds),
            "session_id": given.session_id,
        }
        if cut:
            structured["truncated"] = True
            structured["rest"] = "only the end is kept: send the output to a file and read that in parts"
        return structured

    return answer(fitted(make))


async def read_file(access: AsyncAccess, given: arguments.ReadFile) -> CallToolResult:
    """Return a file's content, or its beginning."""
    async with _opened(access, given.session_id) as sandbox:
        kept = _BeginningWriter(_MAX_PICTURE_BYTES)
        try:
            await sandbox.files.download(given.path, kept)
        except _Enough:
            size = (await sandbox.files.stat(given.path)).size
        else:
            size = kept.tell()
    data = kept.getvalue()
    if size <= len(data) and picture_type(data) is not None:
        return answer({"path": given.path, "size": size}, [data])

    def make(most: int) -> dict[str, Any]:
        beginning = data[: min(most, _MAX_FILE_BYTES)]
        cut = len(beginning) < size
        head = Tail()
        head.add(_whole_characters(beginning) if cut else beginning)
        structured: dict[str, Any] = {"path": given.path, "size": size, **show("content", head, most).fields}
        if cut:
            structured["truncated"] = True
            structured["rest"] = "this is the beginning: read other parts with environment_exec and head, tail or sed"
        return structured

    return answer(fitted(make))


async def write_file(access: AsyncAccess, given: arguments.WriteFile) -> CallToolResult:
    """Write a file."""
    content = given.bytes()
    async with _opened(access, given.session_id) as sandbox:
        size = await sandbox.files.upload(given.path, content)
    return answer({"path": given.path, "size": size})


async def list_files(access: AsyncAccess, given: arguments.ListFiles) -> CallToolResult:
    """List a directory."""
    async with _opened(access, given.session_id) as sandbox:
        found = await sandbox.files.list(given.path)
    shown = [
        {
            "name": item.name,
            "type": item.type,
            "size": item.size,
            "modified_at": item.modified_at.isoformat() if item.modified_at is not None else None,
        }
        for item in found[:_MAX_ENTRIES]
    ]

    def make(most: int) -> dict[str, Any]:
        entries = shown[: most // _LEAST_ENTRY_BYTES]
        structured: dict[str, Any] = {"path": given.path, "entries": entries}
        if len(entries) < len(found):
            structured["truncated"] = True
            structured["rest"] = f"{len(found)} entries in all: use environment_exec with ls or find"
        return structured

    return answer(fitted(make))


async def method(access: AsyncAccess, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Call a method of the session access protocol and return the server's answer word for word."""
    if name == "acquire":
        return await access.sessions.acquire({"mode": "ensure", **params})
    session_id = arguments.parse(arguments.OfSession, params).session_id
    if name == "refresh":
        return await access.sessions.refresh(session_id)
    if name == "heartbeat":
        return await access.sessions.heartbeat(session_id)
    await access.sessions.release(session_id)
    return {"session_id": session_id, "released": True}


@asynccontextmanager
async def _opened(access: AsyncAccess, session_id: str) -> AsyncIterator[AsyncSandbox]:
    sandbox = await access.open(session_id)
    try:
        yield sandbox
    finally:
        await sandbox.close()


def _exit_code(ending: Ending) -> int | None:
    """As a shell says it: 128 and the number of the signal."""
    if ending.exit_code is not None or ending.signal is None:
        return ending.exit_code
    number = getattr(signal, f"SIG{ending.signal}", None)
    return None if number is None else 128 + int(number)


def _reason(ending: Ending, seconds: float) -> str:
    if ending.outcome is Outcome.TIMEOUT:
        return f"it ran for {seconds:g} seconds and was killed; give a larger timeout_sec, or run it in the background"
    if ending.outcome is Outcome.OOM:
        return "it used more memory than the sandbox has and was killed; use less"
    if ending.signal is not None:
        return f"it was killed by SIG{ending.signal}"
    return "it ended by itself" if ending.exit_code == 0 else "it ended with an error; see stderr"


def _whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character whose end is missing."""
    for missing in range(1, min(4, len(data)) + 1):
        if data[-missing] >= 0xC0:
            return data[:-missing]
        if data[-missing] < 0x80:
            break
    return data


class _Enough(Exception):
    """More than is wanted has come."""


class _BeginningWriter(io.BytesIO):
    """Takes the beginning of a file."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any) -> int:
        room = self._limit - self.tell()
        if len(data) > room:
            super().write(data[:room])
            raise _Enough
        return super().write(data)
