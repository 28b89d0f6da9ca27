"""Messages between server, spawner and templates: one CBOR map per SEQPACKET datagram, descriptors attached."""

from __future__ import annotations

import _socket
import array

from tidebox.wire import cbor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_MESSAGE = 128 * 1024
MAX_DESCRIPTORS = 32
_INT = array.array("i").itemsize


def send(sock: _socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send one message."""
    ancillary = []
    if descriptors:
        ancillary.append((_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", descriptors)))
    sock.sendmsg([cbor.encode(message)], ancillary, _socket.MSG_NOSIGNAL)


def receive(sock: _socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message with its descriptors, or None at the end."""
    data, ancillary, flags, _ = sock.recvmsg(
        MAX_MESSAGE, _socket.CMSG_SPACE(MAX_DESCRIPTORS * _INT), _socket.MSG_CMSG_CLOEXEC
    )
    descriptors: list[int] = []
    for level, kind, payload in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(payload[: len(payload) - len(payload) % _INT])
            descriptors.extend(fds)
    if not data:
        return None
    if flags & (_socket.MSG_TRUNC | _socket.MSG_CTRUNC):
        raise OSError("message between server and spawner was truncated")
    message = cbor.decode(data)
    if not isinstance(message, dict):
        raise OSError("message between server and spawner is not a map")
    return message, descriptors
