"""Encoding of the messages that the server sends: one function for each type, returning the text of a frame."""

from __future__ import annotations

import time

import msgspec

from tidebox.model.events import StreamName
from tidebox.protocols.fathom import (
    RETRYABLE,
    VERSION,
    Ack,
    Answer,
    Code,
    Error,
    FathomUsage,
    Load,
    Pong,
    Result,
    Status,
    StatusChange,
    Stderr,
    Stdout,
)

_encode = msgspec.json.Encoder().encode


class _Clock:
    """Timestamps with milliseconds. The part before them is made once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self) -> str:
        milliseconds = time.time_ns() // 1_000_000
        second, rest = divmod(milliseconds, 1000)
        if second != self._second:
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{self._text}.{rest:03d}Z"


timestamp = _Clock()


def ack(id: str) -> str:
    """Encode ``ack``: the request was received, and nothing of it has started."""
    return _text(Ack(VERSION, id, timestamp()))


def status(id: str, status: Status) -> str:
    """Encode ``status``: the execution changed its state."""
    return _text(StatusChange(VERSION, id, status, timestamp()))


def output(id: str, stream: StreamName, data: str) -> str:
    """Encode ``stdout`` or ``stderr``: a piece of output."""
    kind = Stdout if stream == "stdout" else Stderr
    return _text(kind(VERSION, id, data, timestamp()))


def result(id: str, exit_code: int | None, duration_ms: int, usage: FathomUsage) -> str:
    """Encode ``result``: the execution is over, and nothing follows."""
    return _text(Result(VERSION, id, exit_code, duration_ms, usage, timestamp()))


def error(id: str | None, code: Code, message: str) -> str:
    """Encode ``error``: a request was refused, or its execution cannot be completed."""
    # A message of ours may quote a file name, and that may be anything.
    text = message.encode("utf-8", "backslashreplace").decode()
    return _text(Error(VERSION, code, text, code in RETRYABLE, msgspec.UNSET if id is None else id, timestamp()))


def pong(active: int, queued: int) -> str:
    """Encode ``pong``, with the server's load."""
    return _text(Pong(VERSION, Load(active, queued), timestamp()))


def _text(answer: Answer) -> str:
    return _encode(answer).decode()
