"""A client of log streams that looks closely: every frame it receives must be exactly what the document says."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.api.interpreter.service import PREFIX, Service

Frame = dict[str, Any]
WAIT_SECONDS = 30.0
MAX_MESSAGE_BYTES = 64 * 1024
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FIELDS = {
    "stdout": {"encoding", "data"},
    "stderr": {"encoding", "data"},
    "event": {"event", "data"},
    "heartbeat": {"ts"},
    "truncated": {"reason"},
}
EVENTS = {"phase", "progress", "start", "end", "error", "resume", "stdin_closed"}


def saying(text: str) -> str:
    """Python that writes a line in one piece: ``print`` writes its end by itself, and what waits for it sees half."""
    return f"import os; os.write(1, b'{text}\\n')"


def check(frame: Frame) -> None:
    """Whether a frame has the fields of its type, and no others."""
    kind = frame["type"]
    assert set(frame) == {"type", "seq"} | FIELDS[kind], frame
    assert type(frame["seq"]) is int
    if kind in ("stdout", "stderr"):
        assert frame["encoding"] in ("utf8", "base64")
    elif kind == "event":
        assert frame["event"] in EVENTS
        assert isinstance(frame["data"], dict)
    elif kind == "heartbeat":
        assert TIMESTAMP.fullmatch(frame["ts"])


def is_event(frame: Frame, name: str) -> bool:
    """Whether it is an event of that name."""
    return bool(frame["type"] == "event" and frame["event"] == name)


def output(frames: list[Frame], stream: str | None = None) -> bytes:
    """What the program wrote, as far as it is in these frames."""
    return b"".join(
        frame["data"].encode() if frame["encoding"] == "utf8" else base64.b64decode(frame["data"], validate=True)
        for frame in frames
        if frame["type"] in ("stdout", "stderr") and stream in (None, frame["type"])
    )


class Streams(Service):
    """The service as somebody sees it who reads logs."""

    def python(self, code: str, **fields: Any) -> Frame:
        """Start Python, and give the answer."""
        answer = self.submit(["python3", "-c", code], **{"spec_version": "1.1", **fields})
        assert answer.status_code in (200, 202), answer.text
        run: Frame = answer.json()
        return run

    @property
    def credential(self) -> dict[str, str]:
        """The header that says who it is."""
        return {name: value for name, value in self.http.headers.items() if name in ("x-api-key", "authorization")}

    def cancel(self, run_id: str) -> None:
        """Ask for the end of a run."""
        assert self.post(f"/runs/{run_id}/cancel").status_code == 200

    def metric(self, name: str) -> float:
        """A number of the server's metrics, by its name with its labels; 0 where there is none yet."""
        page = self.http.get(f"{self.server.url}/metrics").text
        return next((float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{name} ")), 0.0)

    @contextmanager
    def stream(self, run_id: str, query: str = "") -> Iterator[Stream]:
        """Connect to the stream of a run."""
        url = self.server.url.replace("http", "ws", 1) + f"{PREFIX}/runs/{run_id}/stream{query}"
        with connect(
            url, additional_headers=self.credential, max_size=MAX_MESSAGE_BYTES, close_timeout=1, open_timeout=60
        ) as socket:
            yield Stream(socket)

    def frames(self, run_id: str, query: str = "") -> list[Frame]:
        """Everything a stream delivers until the server closes it."""
        with self.stream(run_id, query) as stream:
            return stream.rest()


class Stream:
    """A connection to a log stream."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def next(self) -> Frame:
        """The next frame."""
        text = self.socket.recv(timeout=WAIT_SECONDS)
        assert isinstance(text, str)
        assert len(text.encode()) <= MAX_MESSAGE_BYTES
        frame: Frame = json.loads(text)
        check(frame)
        return frame

    def until(self, name: str) -> list[Frame]:
        """Frames up to an event of that name, or a frame of that type."""
        frames = [self.next()]
        while not (frames[-1]["type"] == name or is_event(frames[-1], name)):
            frames.append(self.next())
        return frames

    def rest(self) -> list[Frame]:
        """Frames until the server closes the connection, which it does right after the end."""
        frames: list[Frame] = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                frames.append(self.next())
        assert self.socket.close_code == 1000
        assert [is_event(frame, "end") for frame in frames].count(True) == 1
        assert is_event(frames[-1], "end")
        return frames

    def send(self, **frame: Any) -> None:
        """Send a frame."""
        self.socket.send(json.dumps(frame))
