"""TCP connections from inside the box, forwarded to the host."""

from __future__ import annotations

import _socket
import errno
import os

from tidebox.agent import bulk
from tidebox.agent.bulk import BulkViolation, Incoming, Outgoing
from tidebox.agent.fd_writer import FdWriter
from tidebox.agent.flow import UNPACED_INPUT_LIMIT
from tidebox.agent.loop import READ, WRITE
from tidebox.wire.bulk import (
    DEFAULT_RECORD_PAYLOAD,
    FLOW_GUEST_TO_HOST,
    FLOW_HOST_TO_GUEST,
    KIND_TCP,
    REASON_PROTOCOL,
    BulkCancel,
)
from tidebox.wire.generations import BULK_GENERATION
from tidebox.wire.messages import MAX_TCP_DATA_SIZE, TcpClosed, TcpConnected, TcpData, TcpEof, TcpFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tidebox.agent.flow import InputBrake
    from tidebox.agent.host_channel import HostChannel
    from tidebox.agent.loop import Loop, Timer
    from tidebox.wire.bulk import BulkCredit, BulkFinish, BulkOffer, BulkRecord
    from tidebox.wire.cbor import Buffer
    from tidebox.wire.messages import TcpConnect

CONNECT_SECONDS = 30
MAX_CONNECTIONS = 256
_HOSTS_BYTES = 65_536


def addresses(host: str) -> list[tuple[int, str]]:
    """Family and address of each way to a host: a literal, localhost, or a name in /etc/hosts.

    A name service is not asked: it would block the agent, load the image's modules into it, and a box has no network
    beyond its loopback to ask one through.
    """
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            _socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return [(family, host)]
    if host == "localhost" or host.endswith(".localhost"):
        return [(_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1")]
    found = []
    for line in _hosts_file().split("\n"):
        words = line.partition("#")[0].split()
        if host in words[1:] and words[0] != host:
            found += addresses(words[0]) if words[0][0] in "0123456789abcdefABCDEF:" else []
    return found


def _hosts_file() -> str:
    try:
        fd = os.open("/etc/hosts", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return ""
    try:
        return os.read(fd, _HOSTS_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


class Tcp:
    """All forwarded connections."""

    def __init__(self, host: HostChannel, loop: Loop, brake: InputBrake) -> None:
        self._host = host
        self._loop = loop
        self._brake = brake
        self._connections: dict[int, TcpConnection] = {}

    def knows(self, id: int) -> bool:
        """Whether a connection of that id exists."""
        return id in self._connections

    def connect(self, id: int, request: TcpConnect) -> None:
        """Start to connect."""
        target = f"{request.host}:{request.port}"
        if len(self._connections) >= MAX_CONNECTIONS:
            self._host.send(id, TcpFailed(error=f"connect {target}: too many connections (max {MAX_CONNECTIONS})"))
            return
        found = addresses(request.host)
        if not found:
            self._host.send(id, TcpFailed(error=f"connect {target}: the host name is not known in this box"))
            return
        offer = request.bulk if self._host.speaks(BULK_GENERATION) else None
        connection = TcpConnection(id, self._host, self._loop, self._brake, target, offer, self._forget)
        self._connections[id] = connection
        connection.connect([(family, address, request.port) for family, address in found])

    def data(self, id: int, data: Buffer) -> None:
        """Bytes for a connection."""
        connection = self._connections.get(id)
        if connection is None:
            self._host.send(id, TcpFailed(error=f"unknown TCP session: {id}"))
        else:
            connection.data(data)

    def eof(self, id: int) -> None:
        """The host's end of a connection; one that is unknown has ended already."""
        connection = self._connections.get(id)
        if connection is not None:
            connection.eof()

    def close(self, id: int) -> None:
        """Abort; no answer is owed."""
        connection = self._connections.get(id)
        if connection is not None:
            connection.abort()

    def record(self, record: BulkRecord) -> None:
        """A bulk record; late ones of a connection that has ended are dropped."""
        connection = self._connections.get(record.id)
        if connection is not None:
            connection.record(record)

    def bulk(self, id: int) -> TcpConnection | None:
        """The connection that a bulk control message is for."""
        return self._connections.get(id)

    def disconnected(self, first: int, end: int) -> None:
        """A client is gone, and so are its connections."""
        for id in [id for id in self._connections if first <= id < end]:
            self._connections[id].abort()

    def _forget(self, id: int) -> None:
        del self._connections[id]


class TcpConnection:
    """One connection: first to be made, then two flows that end apart from each other."""

    def __init__(
        self,
        id: int,
        host: HostChannel,
        loop: Loop,
        brake: InputBrake,
        target: str,
        offer: BulkOffer | None,
        on_end: Callable[[int], None],
    ) -> None:
        self._id = id
        self._host = host
        self._loop = loop
        self._brake = brake
        self._target = target
        self._offer = offer
        self._on_end = on_end
        self._sock: _socket.socket | None = None
        self._sink: FdWriter | None = None
        self._timer: Timer = loop.later(CONNECT_SECONDS, self._timed_out)
        self._candidates: list[tuple[int, str, int]] = []
        self._outgoing: Outgoing | None = None
        self._incoming: Incoming | None = None
        self._watched = False
        self._guest_ended = False
        self._host_ended = False
        self._ended = False

    # Connecting

    def connect(self, candidates: list[tuple[int, str, int]]) -> None:
        """Try each way in turn."""
        self._candidates = candidates
        self._try_next(None)

    def _try_next(self, error: OSError | None) -> None:
        while self._candidates:
            family, address, port = self._candidates.pop(0)
            try:
                sock = _socket.socket(family, _socket.SOCK_STREAM)
            except OSError as failure:
                error = failure
                continue
            sock.setblocking(False)
            try:
                sock.connect((address, port))
            except BlockingIOError:
                pass
            except OSError as failure:
                sock.close()
                error = failure
                continue
            self._sock = sock
            self._loop.watch(sock.fileno(), WRITE, lambda _events: self._decided())
            return
        reason = error.strerror if error is not None else "no address"
        number = error.errno if error is not None else errno.EADDRNOTAVAIL
        self._fail(f"connect {self._target}: {reason} (os error {number})")

    def _decided(self) -> None:
        sock = self._sock
        if sock is None:
            return
        number = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        self._loop.forget(sock.fileno())
        if number:
            sock.close()
            self._sock = None
            self._try_next(OSError(number, os.strerror(number)))
            return
        try:
            # Reading and writing are watched apart from each other, which epoll does per descriptor.
            writing = os.dup(sock.fileno())
        except OSError as error:
            self._fail(f"connect {self._target}: {error.strerror} (os error {error.errno})")
            return
        self._timer.cancel()
        self._sink = FdWriter(self._loop, writing, self._taken, self._write_failed)
        self._start()

    def _timed_out(self) -> None:
        self._fail(f"connect {self._target} timed out")

    def _start(self) -> None:
        self._host.send(self._id, TcpConnected())
        if self._offer is not None:
            try:
                flows = FLOW_HOST_TO_GUEST | FLOW_GUEST_TO_HOST
                accepted = bulk.accept(self._offer, KIND_TCP, flows, DEFAULT_RECORD_PAYLOAD)
            except BulkViolation as error:
                self._fail(str(error))
                return
            self._host.send(self._id, accepted)
            self._outgoing = Outgoing(self._id, self._host, accepted)
            self._incoming = Incoming(self._id, self._host, accepted)
        self._watch()

    # Guest to host

    def _watch(self) -> None:
        if not self._watched and not self._guest_ended and self._sock is not None:
            self._loop.watch(self._sock.fileno(), READ, lambda _events: self._readable())
            self._watched = True

    def _unwatch(self) -> None:
        if self._watched and self._sock is not None:
            self._loop.forget(self._sock.fileno())
            self._watched = False

    def _readable(self) -> None:
        if self._sock is None or self._ended or self._guest_ended:
            return
        if self._host.outbox.full:
            self._unwatch()
            self._host.outbox.wait(self._room_again)
            return
        room = MAX_TCP_DATA_SIZE if self._outgoing is None else self._outgoing.room
        if room <= 0:
            self._unwatch()
            return
        try:
            data = self._sock.recv(room)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"read: {error.strerror} (os error {error.errno})")
            return
        if not data:
            self._guest_end()
        elif self._outgoing is None:
            self._host.send_data(self._id, TcpData, data)
        else:
            self._outgoing.send(data)

    def _room_again(self) -> None:
        if not self._ended:
            self._watch()

    def _guest_end(self) -> None:
        self._unwatch()
        self._guest_ended = True
        if self._outgoing is None:
            self._host.send(self._id, TcpEof())
        else:
            self._outgoing.finish()
        self._end_if_complete()

    def credit(self, message: BulkCredit) -> None:
        """The host makes room."""
        if self._outgoing is None:
            return
        try:
            self._outgoing.credit(message)
        except BulkViolation as error:
            self._violated(error)
            return
        self._watch()

    # Host to guest

    def data(self, data: Buffer) -> None:
        """Bytes for the connection."""
        if self._sink is None or self._host_ended or self._incoming is not None:
            self._fail("write: the connection takes no data")
            return
        if len(data) == 0:
            return
        sink = self._sink
        sink.put(data)
        if sink.size > UNPACED_INPUT_LIMIT:
            self._brake.hold(sink, lambda: self._fail("write: the peer does not read"))

    def record(self, record: BulkRecord) -> None:
        """A bulk record for the connection."""
        if self._incoming is None or self._sink is None:
            return
        try:
            self._incoming.check(record)
        except BulkViolation as error:
            self._violated(error)
            return
        self._sink.put(record.payload)

    def finish(self, message: BulkFinish) -> None:
        """The end of the host's records."""
        if self._incoming is None:
            return
        try:
            self._incoming.check_finish(message)
        except BulkViolation as error:
            self._violated(error)
            return
        self.eof()

    def eof(self) -> None:
        """The host's end: passed on once everything before it is written."""
        if self._sink is not None and not self._host_ended:
            self._host_ended = True
            self._sink.finish(self._shut_write)

    def _shut_write(self) -> None:
        if self._sock is None:
            return
        try:
            self._sock.shutdown(_socket.SHUT_WR)
        except OSError:
            pass  # the peer is gone already, which the reading side tells
        self._end_if_complete()

    def _taken(self, count: int) -> None:
        if self._incoming is not None:
            self._incoming.consumed(count)
        elif self._sink is not None:
            self._brake.progress(self._sink, self._sink.size <= UNPACED_INPUT_LIMIT // 2)

    def _write_failed(self, error: OSError) -> None:
        self._fail(f"write: {error.strerror} (os error {error.errno})")

    # Ends

    def cancelled(self) -> None:
        """The host gives the transfer up, and waits for the terminal message."""
        if not self._ended:
            self._host.send(self._id, TcpClosed())
            self.abort()

    def abort(self) -> None:
        """Close without a word."""
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        self._unwatch()
        if self._sink is not None:
            self._brake.release(self._sink)
            self._sink.close()
        if self._sock is not None:
            self._loop.forget(self._sock.fileno())
            self._sock.close()
        self._on_end(self._id)

    def _violated(self, error: BulkViolation) -> None:
        self._host.send(self._id, BulkCancel(kind=KIND_TCP, reason=REASON_PROTOCOL, message=str(error)))
        self._fail(str(error))

    def _fail(self, text: str) -> None:
        if not self._ended:
            self._host.send(self._id, TcpFailed(error=text))
            self.abort()

    def _end_if_complete(self) -> None:
        drained = self._sink is not None and self._sink.size == 0
        if self._guest_ended and self._host_ended and drained and not self._ended:
            self._host.send(self._id, TcpClosed())
            self.abort()
