"""A real agent process without a box, and a link to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

from tidebox.model.events import Exited, OutputEvent
from tidebox.runtime.link import Link, LinkExec
from tidebox.wire.generations import GENERATION
from tidebox.wire.messages import Bootstrap, ExecRequest


def start_agent(sock: socket.socket, arguments: list[str]) -> subprocess.Popen[bytes]:
    """An agent process that serves ``sock``."""
    command = [sys.executable, "-I", "-m", "tidebox.agent", *arguments]
    return subprocess.Popen(command, pass_fds=[sock.fileno()])


@contextlib.asynccontextmanager
async def agent_link(generation: int = GENERATION) -> AsyncIterator[Link]:
    """An agent pinned to a generation, booted; both are gone afterwards."""
    ours, theirs = socket.socketpair()
    with theirs:
        # Older generations have no bootstrap message.
        arguments = ["--fd", str(theirs.fileno()), "--generation", str(generation)]
        if generation < Bootstrap.GENERATION:
            arguments.append("--no-bootstrap")
        process = start_agent(theirs, arguments)
    link: Link | None = None
    try:
        bootstrap = Bootstrap() if generation >= Bootstrap.GENERATION else None
        link = await Link.open(ours, bootstrap=bootstrap, ready_within=20)
        yield link
    finally:
        if link is not None:
            await link.close()
        ours.close()
        try:
            await asyncio.to_thread(process.wait, 10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def sh(script: str) -> ExecRequest:
    """A shell line as a request."""
    return ExecRequest(cmd="/bin/sh", args=["-c", script], env=["PATH=/usr/bin:/bin"])


async def finish(execution: LinkExec) -> tuple[bytes, bytes, Exited]:
    """Output, error output and the end."""
    collected: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    async for event in execution.events():
        if isinstance(event, OutputEvent):
            collected[event.stream].append(event.data)
        elif isinstance(event, Exited):
            return b"".join(collected["stdout"]), b"".join(collected["stderr"]), event
    raise AssertionError("no end")
