"""Programs and shells in a sandbox, from what was typed to the exit code."""

from __future__ import annotations

import base64
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tidebox.cli import signals
from tidebox.cli.advice import advise
from tidebox.cli.conversation import Conversation, Left
from tidebox.cli.finding import find
from tidebox.cli.inputs import parse_env
from tidebox.cli.output import note, say
from tidebox.cli.remote import Server, print_json
from tidebox.cli.streams import is_null
from tidebox.cli.terminal import size
from tidebox.config import environment_variable
from tidebox.errors import InvalidRequest, NotFound
from tidebox.model.result import Outcome
from tidebox.sdk.sandboxes.process import AsyncProcess
from tidebox.sdk.sandboxes.results import Ending
from tidebox.sdk.sandboxes.sandbox import AsyncSandbox

TIMEOUT = 124
OUT_OF_MEMORY = 137


@asynccontextmanager
async def _sandbox(server: Server, name: str) -> AsyncIterator[AsyncSandbox]:
    async with server.access() as access:
        found = await find(access, name)
        async with await access.get(found.scope.id) as sandbox:
            yield sandbox


def execute(
    server: Server,
    name: str,
    words: Sequence[str],
    *,
    terminal: bool,
    detach: bool,
    cwd: str | None,
    env: Sequence[str],
    timeout: float | None,
    json: bool,
) -> int:
    """Run a program to its end, or leave it running."""
    stdin = None if terminal or detach or os.isatty(0) or is_null(0) else 0
    variables = parse_env(env)
    if terminal:
        variables = {**_terminal_env(), **variables}

    async def start(sandbox: AsyncSandbox) -> AsyncProcess:
        return await sandbox.start(
            list(words),
            cwd=cwd,
            env=variables,
            stdin=stdin is not None,
            terminal=size() if terminal else None,
            timeout=timeout,
            detach=True,
        )

    return signals.run(_hold(server, name, start, terminal=terminal, stdin=stdin, detach=detach, json=json))


def open_shell(server: Server, name: str, *, cwd: str | None, json: bool) -> int:
    """A login shell on our terminal."""
    _require_terminal("shell")

    async def start(sandbox: AsyncSandbox) -> AsyncProcess:
        return await sandbox.shell(cwd=cwd, env=_terminal_env(), terminal=size(), detach=True)

    return signals.run(_hold(server, name, start, terminal=True, json=json))


def attach(server: Server, name: str, process_id: str, *, json: bool) -> int:
    """A program that was left running."""
    terminal = sys.stdin.isatty()

    async def start(sandbox: AsyncSandbox) -> AsyncProcess:
        try:
            process = await sandbox.attach(process_id)
        except NotFound as error:
            advise(error, "its id was told when it was left, and ten minutes after its end it is forgotten")
            raise
        if terminal:
            # Twice, so that it is another size for certain: what fills a screen draws it again.
            rows, columns = size()
            await process.resize(rows, max(1, columns - 1))
            await process.resize(rows, columns)
        return process

    return signals.run(_hold(server, name, start, terminal=terminal, came_back=True, json=json))


async def _hold(
    server: Server,
    name: str,
    start: Callable[[AsyncSandbox], Awaitable[AsyncProcess]],
    *,
    terminal: bool,
    stdin: int | None = None,
    detach: bool = False,
    came_back: bool = False,
    json: bool = False,
) -> int:
    async with _sandbox(server, name) as sandbox:
        process = await start(sandbox)
        if detach:
            if json:
                print_json({"process_id": process.id, "sandbox_id": sandbox.id})
            else:
                say(str(process.id))
            await process.close()
            return 0
        kept = {"stdout": bytearray(), "stderr": bytearray()} if json and not terminal else None
        talk = Conversation(sandbox, process, terminal=terminal, stdin=stdin, came_back=came_back, kept=kept)
        ended = await talk.hold()
    if isinstance(ended, Left):
        note(f"left {ended.process_id} running; come back with: tidebox sandbox attach {name} {ended.process_id}")
        return 0
    if json:
        print_json({**_fields(ended), **_encoded(kept or {})})
    return exit_code(ended)


def _encoded(output: dict[str, bytearray]) -> dict[str, str]:
    """Output in a JSON object: text, or base64 where it is not UTF-8."""
    content: dict[str, str] = {}
    for stream, data in output.items():
        try:
            content |= {stream: data.decode(), f"{stream}_encoding": "utf-8"}
        except UnicodeDecodeError:
            content |= {stream: base64.b64encode(data).decode(), f"{stream}_encoding": "base64"}
    return content


def _fields(ended: Ending) -> dict[str, Any]:
    return {
        "outcome": ended.outcome.value,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "usage": {
            "wall_seconds": ended.usage.wall_seconds,
            "cpu_seconds": ended.usage.cpu_seconds,
            "memory_peak": ended.usage.memory_peak,
        },
    }


def exit_code(ended: Ending) -> int:
    """The exit code for how a program ended; what is more than an exit is said in a line."""
    if ended.outcome is Outcome.TIMEOUT:
        note("timeout: stopped")
        return TIMEOUT
    if ended.outcome is Outcome.OOM:
        note("out of memory")
        return OUT_OF_MEMORY
    if ended.signal is not None:
        note(f"killed by signal {ended.signal}")
        return 128 + getattr(signal, f"SIG{ended.signal}", 0)
    return ended.exit_code or 0


def _terminal_env() -> dict[str, str]:
    return {"TERM": environment_variable("TERM") or "xterm"}


def _require_terminal(what: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequest(f"a {what} needs a terminal; 'tidebox sandbox exec' runs programs without one")
