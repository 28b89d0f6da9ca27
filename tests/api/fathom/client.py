"""A client that looks closely: every frame it receives must be exactly what the protocol says."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.api.conftest import RunningServer

Frame = dict[str, Any]

WAIT_SECONDS = 30.0
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
ENVELOPE = {"v", "type", "ts"}
FIELDS = {
    "ack": {"id"},
    "status": {"id", "status"},
    "stdout": {"id", "data"},
    "stderr": {"id", "data"},
    "result": {"id", "exit_code", "duration_ms", "resource_usage"},
    "error": {"code", "message", "retryable"},
    "pong": {"load"},
}
STATUSES = {"running", "completed", "failed", "cancelled", "timeout", "oom"}
CODES = {
    "TIMEOUT": False,
    "OOM": False,
    "OUTPUT_LIMIT": False,
    "LANGUAGE_NOT_SUPPORTED": False,
    "INVALID_REQUEST": False,
    "UNKNOWN_EXECUTION": False,
    "SANDBOX_OVERLOADED": True,
    "INTERNAL_ERROR": True,
    "NETWORK_ERROR": True,
}


def check(frame: Frame) -> None:
    """Whether a frame has the fields of its type, no others, and values that the protocol allows."""
    assert type(frame["v"]) is int
    assert frame["v"] == 1
    assert TIMESTAMP.fullmatch(frame["ts"])
    kind = frame["type"]
    names = set(frame)
    if kind == "error":
        names.discard("id")
    assert names == ENVELOPE | FIELDS[kind]
    if "id" in frame:
        assert isinstance(frame["id"], str)
    if kind == "status":
        assert frame["status"] in STATUSES
    elif kind in ("stdout", "stderr"):
        assert isinstance(frame["data"], str)
        assert len(frame["data"]) <= 65_536
    elif kind == "result":
        assert frame["exit_code"] is None or type(frame["exit_code"]) is int
        assert type(frame["duration_ms"]) is int
        assert frame["duration_ms"] >= 0
        assert set(frame["resource_usage"]) <= {"peak_memory_mb", "cpu_time_ms"}
        assert all(type(value) is int and value >= 0 for value in frame["resource_usage"].values())
    elif kind == "error":
        assert frame["retryable"] is CODES[frame["code"]]
        assert frame["message"]
    elif kind == "pong":
        assert set(frame["load"]) == {"active_executions", "queue_depth"}
        assert all(type(value) is int and value >= 0 for value in frame["load"].values())


@dataclass
class Transcript:
    """Everything that came for one execution."""

    frames: list[Frame] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether nothing more may come."""
        last = self.frames[-1]
        return bool(last["type"] == "result" or last.get("code", "OUTPUT_LIMIT") != "OUTPUT_LIMIT")

    @property
    def sequence(self) -> list[str]:
        """The frames in one word each; output frames of one stream that follow each other are one word."""
        words = [frame.get("status") or frame.get("code") or frame["type"] for frame in self.frames]
        return [word for word, _ in itertools.groupby(words)]

    @property
    def stdout(self) -> str:
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        return self._text("stderr")

    def _text(self, stream: str) -> str:
        return "".join(frame["data"] for frame in self.frames if frame["type"] == stream)

    @property
    def result(self) -> Frame:
        """The result, which must be the last frame."""
        assert self.frames[-1]["type"] == "result", self.sequence
        return self.frames[-1]

    @property
    def exit_code(self) -> int | None:
        code: int | None = self.result["exit_code"]
        return code

    @property
    def error(self) -> Frame:
        """The one error frame."""
        (error,) = (frame for frame in self.frames if frame["type"] == "error")
        return error


class Client:
    """One connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.transcripts: dict[str, Transcript] = {}
        self._numbers = itertools.count(1)

    async def send(self, message: Any) -> None:
        """Send a message as JSON."""
        await self.socket.send(json.dumps(message))

    async def start(
        self,
        code: str,
        language: str = "python",
        *,
        id: str | None = None,
        stdin: str | None = None,
        env: dict[str, str] | None = None,
        **limits: int,
    ) -> str:
        """Send an execute message; its id."""
        id = id or f"exec_{next(self._numbers)}"
        limits = {"timeout_ms": 20_000, "memory_mb": 256} | limits
        fields = {"language": language, "code": code, "stdin": stdin, "env": env or {}, "limits": limits}
        await self.send({"v": 1, "type": "execute", "id": id, "ts": "2025-12-27T11:30:00.000Z", **fields})
        return id

    async def cancel(self, id: str) -> None:
        await self.send({"v": 1, "type": "cancel", "id": id, "ts": "2025-12-27T11:30:05.000Z"})

    async def ping(self) -> Frame:
        """The load that a pong tells; everything sent before it has been answered, if it is answered at once."""
        await self.send({"v": 1, "type": "ping", "ts": "2025-12-27T11:30:00.000Z"})
        frame = await self.next_of("pong")
        load: Frame = frame["load"]
        return load

    async def next(self, seconds: float = WAIT_SECONDS) -> Frame:
        """The next frame, checked and filed."""
        async with asyncio.timeout(seconds):
            text = await self.socket.recv()
        assert isinstance(text, str)
        frame: Frame = json.loads(text)
        check(frame)
        # What a cancel was answered with belongs to no execution.
        if "id" in frame and frame.get("code") != "UNKNOWN_EXECUTION":
            self.transcripts.setdefault(frame["id"], Transcript()).frames.append(frame)
        return frame

    async def next_of(self, *kinds: str) -> Frame:
        """The next frame of one of these types or statuses; those before it are filed."""
        while True:
            frame = await self.next()
            if frame["type"] in kinds or frame.get("status") in kinds:
                return frame

    async def finish(self, id: str) -> Transcript:
        """Read until an execution is over."""
        while id not in self.transcripts or not self.transcripts[id].over:
            await self.next()
        return self.transcripts[id]

    async def finish_all(self, ids: Iterable[str]) -> list[Transcript]:
        return [await self.finish(id) for id in list(ids)]

    async def run(self, code: str, language: str = "python", **options: Any) -> Transcript:
        """One execution from beginning to end."""
        return await self.finish(await self.start(code, language, **options))


@asynccontextmanager
async def connected(server: RunningServer, **options: Any) -> AsyncIterator[Client]:
    """A connection with the single user's key."""
    headers = {"Authorization": f"Bearer {server.key}", "X-Protocol-Version": "1"}
    fixed = {"compression": None, "max_size": None, "proxy": None, "close_timeout": 1}
    options = {"additional_headers": headers} | fixed | options
    async with connect(server.ws_url, **options, open_timeout=60) as socket:
        yield Client(socket)
