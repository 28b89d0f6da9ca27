"""Messages between server, spawner and templates: one map per SEQPACKET datagram, descriptors attached.

Orders come down from those who may order anything, and are unpacked by the interpreter itself. Answers go up, from
processes closer to hostile code, as CBOR, which can be nothing but data.
"""

from __future__ import annotations

import _socket
import marshal
from struct import pack as pack_struct
from struct import unpack

from tidebox.wire import cbor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_MESSAGE = 128 * 1024
MAX_DESCRIPTORS = 32
# Of marshal: the newest that every Python we run under reads alike.
ORDER_FORMAT = 2
_INT = 4
_ANCILLARY = _socket.CMSG_SPACE(MAX_DESCRIPTORS * _INT)
# One for all: to ask for this much memory each time costs more than to receive.
_buffer = bytearray(MAX_MESSAGE)


def send_order(sock: _socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send one order down."""
    send_packed(sock, marshal.dumps(message, ORDER_FORMAT), descriptors)


def receive_order(sock: _socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next order with its descriptors, or None at the end."""
    size, descriptors = _receive(sock)
    return (marshal.loads(memoryview(_buffer)[:size]), descriptors) if size else None


def pack(message: dict[str, Any]) -> bytes:
    """An answer as it is sent up."""
    return cbor.encode(message)


def send(sock: _socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send one answer up."""
    send_packed(sock, pack(message), descriptors)


def receive(sock: _socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next answer with its descriptors, or None at the end."""
    size, descriptors = _receive(sock)
    if not size:
        return None
    message = cbor.decode(bytes(_buffer[:size]))
    if not isinstance(message, dict):
        raise OSError("an answer is not a map")
    return message, descriptors


def send_packed(sock: _socket.socket, data: bytes, descriptors: tuple[int, ...]) -> None:
    """Send what is put into bytes already."""
    ancillary = []
    if descriptors:
        ancillary.append((_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pack_struct(f"{len(descriptors)}i", *descriptors)))
    sock.sendmsg([data], ancillary, _socket.MSG_NOSIGNAL)


def _receive(sock: _socket.socket) -> tuple[int, list[int]]:
    size, ancillary, flags, _ = sock.recvmsg_into([_buffer], _ANCILLARY, _socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, payload in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            count = len(payload) // _INT
            descriptors.extend(unpack(f"{count}i", payload[: count * _INT]))
    if size and flags & (_socket.MSG_TRUNC | _socket.MSG_CTRUNC):
        raise OSError("a message between server and spawner was truncated")
    return size, descriptors
