"""Texts of the Fathom protocol, as a client writes and reads them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidebox.errors import InvalidRequest
from tidebox.protocols.fathom import VERSION, Answer, Cancel, Execute, Ping, Request
from tidebox.sdk.errors import ServerProtocolError

_KNOWN = frozenset(kind.__struct_config__.tag for kind in Answer.__args__)
_decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_encode = msgspec.json.Encoder().encode


class _Envelope(msgspec.Struct):
    type: str


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


def encode(message: Request | dict[str, str]) -> bytes:
    """The text of a message, or of a part of one."""
    try:
        return _encode(message)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"not text that can be sent: {error.reason}") from None


def decode(data: bytes | str) -> Answer | None:
    """The message in a text frame; None for a type that a later server may know and we do not."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError as error:
        try:
            if msgspec.json.decode(data, type=_Envelope).type not in _KNOWN:
                return None
        except msgspec.ValidationError:
            pass
        raise ServerProtocolError(f"the server sent a message that is not in the protocol: {error}") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ServerProtocolError(f"the server sent something that is not JSON: {error}") from None
