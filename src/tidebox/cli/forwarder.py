"""The yardstick for streams: a server that runs a program as it is and forwards its pipe as JSON on a WebSocket.

It speaks just enough of the protocol for the client library to be its client, and stands on what ours stands on
(uvicorn, uvloop, msgspec), so that the difference is what boxes, limits and bookkeeping cost.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tidebox.cli.beside import Beside, listen
from tidebox.cli.yardsticks import CLEAN_ENVIRONMENT

_CHUNK_BYTES = 65_536


class Forwarder(Beside):
    """The server, in a process of its own."""

    def __init__(self, python: str) -> None:
        super().__init__(__name__, python)
        self.url = "http://{}:{}".format(*self.address)


def serve(descriptor: int, python: str) -> None:
    """Serve on a socket that listens already, until killed."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await _forward(python, msgspec.json.decode(message["text"]), send)

    listen(app, descriptor)


async def _forward(python: str, request: dict[str, Any], send: Any) -> None:
    """Run a program and send what it prints."""
    program = await asyncio.create_subprocess_exec(
        python, "-c", request["code"], stdout=asyncio.subprocess.PIPE, env=CLEAN_ENVIRONMENT, limit=_CHUNK_BYTES
    )
    assert program.stdout is not None

    async def say(kind: str, **fields: Any) -> None:
        frame = {"v": 1, "type": kind, "id": request["id"], "ts": request["ts"], **fields}
        await send({"type": "websocket.send", "text": msgspec.json.encode(frame).decode()})

    await say("ack")
    while chunk := await program.stdout.read(_CHUNK_BYTES):
        await say("stdout", data=chunk.decode())
    code = await program.wait()
    await say("status", status="completed" if code == 0 else "failed")
    await say("result", exit_code=code, duration_ms=0)
