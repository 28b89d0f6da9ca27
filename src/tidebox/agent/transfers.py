"""Streamed reads and writes of open files, as messages or as bulk records, cut into slices."""

from __future__ import annotations

import os

from tidebox.agent import bulk
from tidebox.agent.bulk import BulkViolation, Incoming, Outgoing
from tidebox.wire.bulk import (
    FLOW_GUEST_TO_HOST,
    FLOW_HOST_TO_GUEST,
    KIND_FS,
    MAX_RECORD_PAYLOAD,
    REASON_DESTINATION_IO,
    REASON_PROTOCOL,
    BulkCancel,
)
from tidebox.wire.files import FsData, FsResponse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tidebox.agent.file_handles import Handle
    from tidebox.agent.host_channel import HostChannel
    from tidebox.wire.bulk import BulkCredit, BulkFinish, BulkOffer, BulkRecord
    from tidebox.wire.cbor import Buffer

# Large enough that the cost per message vanishes, small enough that others do not notice the wait for one.
SLICE_BYTES = 512 * 1024
# What the kernel takes for an offset; a larger one of the host is refused before any system call.
MAX_OFFSET = 2**63 - 1


def os_error(operation: str, error: OSError) -> str:
    """An error in the words of core.fs.response, which carries its number too."""
    return f"{operation}: {error.strerror} (os error {error.errno})"


class ReadTransfer:
    """Sends a stretch of a file, one slice whenever the host has taken the one before."""

    def __init__(
        self,
        id: int,
        host: HostChannel,
        handle: Handle,
        offset: int,
        length: int | None,
        offer: BulkOffer | None,
        on_end: Callable[[int], None],
    ) -> None:
        self._id = id
        self._host = host
        self._handle = handle
        self._offset = offset
        self._left = MAX_OFFSET - offset if length is None else length
        self._on_end = on_end
        self._waiting = False
        self._stopped = False
        self._flow: Outgoing | None = None
        if offer is not None:
            accepted = bulk.accept(offer, KIND_FS, FLOW_GUEST_TO_HOST, MAX_RECORD_PAYLOAD)
            host.send(id, accepted)
            self._flow = Outgoing(id, host, accepted)
        self._wait()

    def credit(self, message: BulkCredit) -> None:
        """The host makes room."""
        if self._flow is None:
            return
        try:
            self._flow.credit(message)
        except BulkViolation as error:
            self._cancel(REASON_PROTOCOL, f"read: {error}")
            return
        self._wait()

    def finish(self, _message: BulkFinish) -> None:
        """Nothing comes from the host here."""
        self._cancel(REASON_PROTOCOL, "read: finish of a flow that does not exist")

    def record(self, _record: BulkRecord) -> None:
        """Nothing comes from the host here."""
        self._cancel(REASON_PROTOCOL, "read: record of a flow that does not exist")

    def cancelled(self) -> None:
        """The host wants no more."""
        self._end("read: cancelled")

    def stop(self) -> None:
        """The client is gone: send nothing more."""
        self._stopped = True

    def _wait(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._host.outbox.wait(self._step)

    def _step(self) -> None:
        self._waiting = False
        if self._stopped:
            return
        if self._handle.fd < 0:
            self._cancel(REASON_DESTINATION_IO, "read: the handle was closed")
            return
        size = min(SLICE_BYTES, self._left)
        if self._flow is not None:
            if size and self._flow.room <= 0:
                return  # until credit comes
            size = min(size, self._flow.room)
        try:
            data = os.pread(self._handle.fd, size, self._offset) if size > 0 else b""
        except OSError as error:
            self._cancel(REASON_DESTINATION_IO, os_error("read", error), error.errno)
            return
        if not data:
            if self._flow is not None:
                self._flow.finish()
            self._end(None)
            return
        self._offset += len(data)
        self._left -= len(data)
        if self._flow is None:
            self._host.send_data(self._id, FsData, data)
        else:
            self._flow.send(data)
        self._wait()

    def _cancel(self, reason: int, error: str, number: int | None = None) -> None:
        if self._flow is not None:
            self._host.send(self._id, BulkCancel(kind=KIND_FS, reason=reason, message=error))
        self._end(error, number)

    def _end(self, error: str | None, number: int | None = None) -> None:
        self._stopped = True
        self._host.send(self._id, FsResponse(ok=error is None, error=error, errno=number))
        self._on_end(self._id)


class WriteTransfer:
    """Takes the host's chunks or records into a file.

    After an error it stays to swallow the chunks that the host had already sent, until the host's end of the stream.
    """

    def __init__(
        self,
        id: int,
        host: HostChannel,
        handle: Handle,
        offset: int,
        length: int | None,
        offer: BulkOffer | None,
        on_end: Callable[[int], None],
    ) -> None:
        self._id = id
        self._host = host
        self._handle = handle
        self._offset = offset
        self._expected = length
        self._written = 0
        self.failed = False
        self._on_end = on_end
        self._flow: Incoming | None = None
        if offer is not None:
            accepted = bulk.accept(offer, KIND_FS, FLOW_HOST_TO_GUEST, MAX_RECORD_PAYLOAD)
            host.send(id, accepted)
            self._flow = Incoming(id, host, accepted)

    def data(self, data: Buffer) -> None:
        """A chunk; empty is the end."""
        if self._flow is not None:
            self._cancel(REASON_PROTOCOL, "write: message in a bulk transfer")
        elif len(data) == 0:
            self._end()
        elif not self.failed:
            self._write(data)

    def record(self, record: BulkRecord) -> None:
        """A bulk record."""
        if self._flow is None:
            return
        try:
            self._flow.check(record)
        except BulkViolation as error:
            self._cancel(REASON_PROTOCOL, f"write: {error}")
            return
        if self._write(record.payload):
            self._flow.consumed(len(record.payload))

    def finish(self, message: BulkFinish) -> None:
        """The end of the records."""
        if self._flow is None:
            return
        try:
            self._flow.check_finish(message)
        except BulkViolation as error:
            self._cancel(REASON_PROTOCOL, f"write: {error}")
            return
        self._end()

    def credit(self, _message: BulkCredit) -> None:
        """Nothing goes to the host here."""

    def cancelled(self) -> None:
        """The host gives up."""
        self._fail("write: cancelled")

    def stop(self) -> None:
        """The client is gone; nothing is sent on its own."""

    def _write(self, data: Buffer) -> bool:
        if self._handle.fd < 0:
            self._cancel(REASON_DESTINATION_IO, "write: the handle was closed")
            return False
        if self._offset + len(data) > MAX_OFFSET:
            self._cancel(REASON_DESTINATION_IO, "write: File too large")
            return False
        view = memoryview(data)
        try:
            while view:
                count = os.pwrite(self._handle.fd, view, self._offset)
                self._offset += count
                self._written += count
                view = view[count:]
        except OSError as error:
            self._cancel(REASON_DESTINATION_IO, os_error("write", error), error.errno)
            return False
        return True

    def _cancel(self, reason: int, error: str, number: int | None = None) -> None:
        if self._flow is not None:
            self._host.send(self._id, BulkCancel(kind=KIND_FS, reason=reason, message=error))
        self._fail(error, number)

    def _fail(self, error: str, number: int | None = None) -> None:
        self.failed = True
        self._host.send(self._id, FsResponse(ok=False, error=error, errno=number))
        if self._flow is not None:
            self._on_end(self._id)  # late records are dropped without a transfer to take them

    def _end(self) -> None:
        if not self.failed and self._expected is not None and self._written != self._expected:
            self._fail(f"write length mismatch: expected {self._expected}, wrote {self._written}")
        elif not self.failed:
            self._host.send(self._id, FsResponse(ok=True))
        if not (self.failed and self._flow is not None):
            self._on_end(self._id)
