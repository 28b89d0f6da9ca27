"""The yardstick for keys: a login shell on a terminal of the machine, without a box, behind a WebSocket.

It stands on what our server stands on and speaks as much of its protocol as one who types needs. How long its echo
takes is what the machine takes at that moment: a key crosses the same kernel workers either way.
"""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import signal
from typing import Any

import msgspec

from tidebox.cli.beside import Beside, listen
from tidebox.cli.yardsticks import CLEAN_ENVIRONMENT

_CHUNK_BYTES = 65_536


class Typist(Beside):
    """The server, in a process of its own."""

    def __init__(self) -> None:
        super().__init__(__name__)
        self.url = "ws://{}:{}".format(*self.address)


def serve(descriptor: int) -> None:
    """Serve on a socket that listens already, until killed."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        pid, terminal = _login()
        told = asyncio.create_task(_tell(terminal, send))
        try:
            while (message := await receive())["type"] == "websocket.receive":
                frame = msgspec.json.decode(message["text"])
                if frame["type"] == "stdin":
                    os.write(terminal, frame["data"].encode())
        finally:
            told.cancel()
            await asyncio.gather(told, return_exceptions=True)
            _end(pid, terminal)

    listen(app, descriptor)


def _login() -> tuple[int, int]:
    """The pid of a shell, and its terminal."""
    shell = shutil.which("bash", path=CLEAN_ENVIRONMENT["PATH"]) or "/bin/sh"
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execve(shell, [shell, "-l"], {**CLEAN_ENVIRONMENT, "TERM": "xterm-256color", "HOME": "/"})
        finally:
            os._exit(127)
    os.set_blocking(terminal, False)
    return pid, terminal


def _end(pid: int, terminal: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(terminal)


async def _tell(terminal: int, send: Any) -> None:
    """Send what is written on a terminal."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(terminal, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            try:
                data = os.read(terminal, _CHUNK_BYTES)
            except BlockingIOError:
                # It was set once more before what it told of was read.
                continue
            frame = {"type": "stdout", "data": data.decode("utf-8", "replace")}
            await send({"type": "websocket.send", "text": msgspec.json.encode(frame).decode()})
    except OSError:
        # The shell is gone.
        return
    finally:
        loop.remove_reader(terminal)
