"""The frames of the dataplane's sockets, as a client sees them."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from tidebox.errors import InvalidRequest
from tidebox.sdk.errors import ServerProtocolError
from tidebox.sdk.failures import Told
from tidebox.sdk.sandboxes.results import Encoding, Exit

# Far less than the longest frame that a server takes.
_INPUT_BYTES = 256 * 1024


class AuthOk(msgspec.Struct, tag="auth_ok"):
    """The token is good."""

    sandbox_id: str
    granted_capabilities: list[str]


class Ready(msgspec.Struct, tag="ready"):
    """The program runs."""

    pid: int
    process_id: str | None = None
    offset: int | None = None


class Stdout(msgspec.Struct, tag="stdout"):
    """A piece of standard output."""

    data: str
    encoding: Encoding = "utf8"
    offset: int | None = None


class Stderr(msgspec.Struct, tag="stderr"):
    """A piece of standard error."""

    data: str
    encoding: Encoding = "utf8"
    offset: int | None = None


class Error(msgspec.Struct, tag="error"):
    """Something was refused, or failed."""

    error: Told


class Pong(msgspec.Struct, tag="pong"):
    """Here I am."""


Received = AuthOk | Ready | Stdout | Stderr | Exit | Error | Pong

_KNOWN = frozenset(kind.__struct_config__.tag for kind in Received.__args__)
_decode = msgspec.json.Decoder(Received).decode
_encode = msgspec.json.Encoder().encode


class _Envelope(msgspec.Struct):
    type: str


def decode(text: bytes) -> Received | None:
    """The frame in a message; None for a type that a later server may know and we do not."""
    try:
        frame: Received = _decode(text)
        return frame
    except (msgspec.DecodeError, UnicodeError) as error:
        try:
            if msgspec.json.decode(text, type=_Envelope).type not in _KNOWN:
                return None
        except (msgspec.DecodeError, UnicodeError):
            pass
        raise ServerProtocolError(f"the sandbox sent a frame that is not in the protocol: {error}") from None


def encode(kind: str, **fields: Any) -> bytes:
    """The message of a frame."""
    try:
        return _encode({"type": kind, **fields})
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"not something that can be sent: {error}") from None


def stdin(data: bytes) -> list[bytes]:
    """The frames that bring input to a program."""
    made = []
    for start in range(0, len(data), _INPUT_BYTES):
        piece = data[start : start + _INPUT_BYTES]
        try:
            made.append(encode("stdin", data=piece.decode()))
        except UnicodeDecodeError:
            made.append(encode("stdin", data=base64.b64encode(piece).decode(), encoding="base64"))
    return made
