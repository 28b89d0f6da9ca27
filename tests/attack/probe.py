"""How long a neighbour waits while the server is attacked, and how long the machine alone would let him wait.

    python -m tests.attack.probe URL     with the neighbour's credential as the first line of standard input

Runs as a process of its own, so that what the attacker does in his does not count. Prints a line of JSON for each
reading: kind, start (of the monotonic clock), seconds, and what went wrong if something did. ``pause`` and ``go`` on
standard input stop it and let it go on.

The neighbour's readings are ``healthz``, ``hello`` (a program in a box, through the Fathom socket). The controls do
comparable things without the server: ``sleep`` (how late a sleeper wakes), ``echo`` (a plain asyncio server in a
process of its own), ``bare`` (starting the interpreter outside any box).
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable

from websockets.asyncio.client import ClientConnection, connect

PERIODS = {"healthz": 0.05, "hello": 1.0, "sleep": 0.02, "echo": 0.05, "bare": 2.0}
_PATIENCE_SECONDS = 30.0
_HELLO = {
    "v": 1,
    "type": "execute",
    "id": "n",
    "language": "python",
    "code": "print('hello')",
    "limits": {"timeout_ms": 20_000, "memory_mb": 64},
}


class Probe:
    """All readings, one task each."""

    def __init__(self, url: str, credential: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._address = host, int(port)
        self._ws_url = url.replace("http", "ws", 1) + "/ws"
        self._credential = credential
        self._socket: ClientConnection | None = None
        self._going = asyncio.Event()
        self._busy = 0
        self._idle = asyncio.Event()

    async def run(self, commands: asyncio.StreamReader, echo: tuple[str, int]) -> None:
        """Read until standard input ends."""
        readings: dict[str, Callable[[], Awaitable[None]]] = {
            "healthz": lambda: self._request(self._address, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", b" 200 "),
            "hello": self._hello,
            "sleep": lambda: asyncio.sleep(PERIODS["sleep"]),
            "echo": lambda: self._request(echo, b"hello\r\n\r\n", b"hello"),
            "bare": self._bare,
        }
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._repeat(kind, reading)) for kind, reading in readings.items()]
            while word := (await commands.readline()).strip():
                if word == b"go":
                    self._going.set()
                else:
                    self._going.clear()
                    await self._until_idle()
                    say(kind="paused", start=time.monotonic(), seconds=0.0)
            for task in tasks:
                task.cancel()

    async def _until_idle(self) -> None:
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def _repeat(self, kind: str, reading: Callable[[], Awaitable[None]]) -> None:
        own = PERIODS["sleep"] if kind == "sleep" else 0.0
        while True:
            await self._going.wait()
            self._busy += 1
            start, wrong = time.monotonic(), None
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await reading()
            except Exception as error:  # a probe tells what went wrong, whatever it is
                wrong = f"{type(error).__name__}: {error}"
                self._socket = None
            say(kind=kind, start=start, seconds=max(0.0, time.monotonic() - start - own), wrong=wrong)
            self._busy -= 1
            self._idle.set()
            await asyncio.sleep(max(0.0, start + PERIODS[kind] - time.monotonic()))

    async def _request(self, address: tuple[str, int], request: bytes, expected: bytes) -> None:
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n")
            if expected not in answer:
                raise ValueError(f"answered {answer[:80]!r}")
        finally:
            writer.close()

    async def _hello(self) -> None:
        if self._socket is None:
            headers = {"Authorization": f"Bearer {self._credential}"}
            self._socket = await connect(self._ws_url, additional_headers=headers, compression=None)
        await self._socket.send(json.dumps(_HELLO))
        said = ""
        async for text in self._socket:
            frame = json.loads(text)
            said += frame.get("data", "")
            if frame["type"] == "error":
                raise ValueError(f"{frame['code']}: {frame['message']}")
            if frame["type"] == "result":
                break
        if said != "hello\n":
            raise ValueError(f"said {said[:80]!r}")

    async def _bare(self) -> None:
        process = await asyncio.create_subprocess_exec("/usr/bin/python3", "-I", "-S", "-c", "")
        await process.wait()


_lines: queue.SimpleQueue[str] = queue.SimpleQueue()


def say(**reading: object) -> None:
    """One line, written by a thread: a campaign that is too busy to read must not look like a machine that is."""
    _lines.put(json.dumps(reading) + "\n")


def write_lines() -> None:
    """Write what was said."""
    while True:
        sys.stdout.write(_lines.get())
        if _lines.empty():
            sys.stdout.flush()


def serve_echo(listener: socket.socket) -> None:
    """What a server on this machine can do if it does nothing; ends with its parent (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readuntil(b"\r\n\r\n"))
        await writer.drain()
        writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(answer, sock=listener):
            await asyncio.Event().wait()

    asyncio.run(serve())


async def main() -> None:
    """The program."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    credential = (await commands.readline()).decode().strip()
    await Probe(sys.argv[1], credential).run(commands, _echo)


if __name__ == "__main__":
    _listener = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        serve_echo(_listener)
        os._exit(0)
    _echo = _listener.getsockname()
    _listener.close()
    threading.Thread(target=write_lines, daemon=True).start()
    asyncio.run(main())
