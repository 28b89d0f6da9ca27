"""Encoding and decoding of Fathom messages on the client's side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidebox.errors import InvalidRequest
from tidebox.protocols.codec import encode, frame_reader
from tidebox.protocols.fathom import VERSION, Answer, Cancel, Execute, Ping

decode: Callable[[bytes | str], Answer | None] = frame_reader(Answer)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_execute(env: Mapping[str, str] | None, **fields: Any) -> Execute:
    """An ``execute`` message; a field of a wrong type is refused here, before anything is sent."""
    try:
        variables = msgspec.convert(env, dict[str, str] | None)
        message = msgspec.convert({"type": "execute", "v": VERSION, "ts": _now(), **fields}, Execute)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    if variables is not None:
        message.env = msgspec.Raw(encode(variables))
    return message


def make_cancel(id: str) -> Cancel:
    """The message that stops an execution."""
    return Cancel(v=VERSION, ts=_now(), id=id)


def make_ping() -> Ping:
    """The message that asks whether the server is there."""
    return Ping(v=VERSION, ts=_now())
