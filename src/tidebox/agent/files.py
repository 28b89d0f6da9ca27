"""The file service: every core.fs operation, with handles and transfers of their clients."""

from __future__ import annotations

import errno
import os

from tidebox.agent import paths
from tidebox.agent.bulk import BulkViolation
from tidebox.agent.file_handles import Handle, HandleError, Handles
from tidebox.agent.path_resolution import failed, read_link, resolve_path
from tidebox.agent.transfers import MAX_OFFSET, ReadTransfer, WriteTransfer, os_error
from tidebox.agent.users import BorrowedIdentity, UnknownUser, resolve
from tidebox.wire import files as wire
from tidebox.wire.files import FsResponse
from tidebox.wire.frames import MAX_FRAME_SIZE
from tidebox.wire.generations import BULK_GENERATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Callable, Union

    from tidebox.agent.host_channel import HostChannel
    from tidebox.agent.loop import Loop
    from tidebox.agent.users import BoxUser
    from tidebox.wire.bulk import BulkRecord
    from tidebox.wire.cbor import Buffer
    from tidebox.wire.files import Entry, FsRequest, ResponseData

    Transfer = Union[ReadTransfer, WriteTransfer]

# Reads, writes, copies and removals under way at once.
MAX_TRANSFERS = 1024
# A listing ends before its answer could outgrow a frame. Keys and numbers of one entry take up to this much beside its
# path, whose undecodable bytes grow to three on the wire.
_LIST_BYTES = MAX_FRAME_SIZE - 65_536
_ENTRY_BYTES = 160


class FileRequestRefused(Exception):
    """An operation that fails with a text of its own."""


class FileService:
    """Serves file operations with the rights of the box's user."""

    def __init__(
        self, host: HostChannel, loop: Loop, opener: paths.PathOpener, default_user: Callable[[], BoxUser]
    ) -> None:
        self._host = host
        self._loop = loop
        self._opener = opener
        self._default_user = default_user
        self._handles = Handles()
        self._transfers: dict[int, Transfer] = {}
        self._tasks: dict[int, Iterator[None]] = {}
        # The name of each operation in its error texts, and who serves it.
        self._operations: dict[type, tuple[str, Callable[[int, Any], ResponseData | None]]] = {
            wire.RealPath: ("realpath", self._real_path),
            wire.Stat: ("stat", self._stat),
            wire.SetStat: ("setstat", self._set_stat),
            wire.List: ("list", self._list),
            wire.ReadLink: ("readlink", self._read_link),
            wire.Symlink: ("symlink", self._symlink),
            wire.Mkdir: ("mkdir", self._mkdir),
            wire.Remove: ("remove", self._remove),
            wire.RemoveDir: ("remove_dir", self._remove_directory),
            wire.Rename: ("rename", self._rename),
            wire.OpenFile: ("open", self._open_file),
            wire.OpenDir: ("opendir", self._open_directory),
            wire.CloseHandle: ("close", self._close_handle),
            wire.ReadDir: ("readdir", self._read_directory),
            wire.FStat: ("fstat", self._handle_stat),
            wire.FSetStat: ("fsetstat", self._set_handle_stat),
        }

    # Requests

    def knows(self, id: int) -> bool:
        """Whether an operation of that id is under way."""
        transfer = self._transfers.get(id)
        if isinstance(transfer, WriteTransfer) and transfer.failed:
            return False  # answered: it only waits for what was under way
        return transfer is not None or id in self._tasks

    def request(self, id: int, request: FsRequest) -> None:
        """Serve one operation; it fails alone."""
        operation = request.op
        name = type(operation).__name__.lower()
        try:
            if isinstance(operation, wire.Read):
                self._transfers[id] = self._transfer(ReadTransfer, id, request, operation)
                return
            if isinstance(operation, wire.Write):
                self._transfers[id] = self._transfer(WriteTransfer, id, request, operation)
                return
            if isinstance(operation, wire.Copy):
                self._begin(id, name, paths.copy(self._opener, operation.src.encode(), operation.dst.encode()))
                return
            if isinstance(operation, wire.RemoveDir) and operation.recursive:
                self._begin(id, "remove_dir", paths.remove_tree(operation.path.encode()))
                return
            name, serve = self._operations[type(operation)]
            with self._rights(operation):
                data = serve(id, operation)
        except (HandleError, FileRequestRefused, UnknownUser, BulkViolation) as error:
            self._answer_error(id, str(error))
        except OSError as error:
            self._answer_error(id, os_error(name, error), error.errno)
        except (ValueError, OverflowError):
            # An embedded NUL, or a number the kernel has no room for.
            self._answer_error(id, os_error(name, failed(errno.EINVAL)), errno.EINVAL)
        else:
            self._host.send(id, FsResponse(ok=True, data=data))

    def data(self, id: int, data: Buffer) -> None:
        """A chunk of a write."""
        transfer = self._transfers.get(id)
        if isinstance(transfer, WriteTransfer):
            transfer.data(data)
        else:
            self._answer_error(id, f"unknown write session: {id}")

    def record(self, record: BulkRecord) -> None:
        """A bulk record of a write; late ones of a transfer that has ended are dropped."""
        transfer = self._transfers.get(record.id)
        if transfer is not None:
            transfer.record(record)

    def bulk(self, id: int) -> Transfer | None:
        """The transfer that a bulk control message is for."""
        return self._transfers.get(id)

    def disconnected(self, first: int, end: int) -> None:
        """A client is gone, and with it what it had open."""
        for id in [id for id in self._transfers if first <= id < end]:
            self._transfers.pop(id).stop()
        for id in [id for id in self._tasks if first <= id < end]:
            with self._rights(None):
                self._close_task(self._tasks.pop(id))
        self._handles.disconnected(first, end)

    def _answer_error(self, id: int, text: str, number: int | None = None) -> None:
        self._host.send(id, FsResponse(ok=False, error=text, errno=number))

    def _rights(self, operation: object) -> BorrowedIdentity:
        user = self._default_user()
        name = None
        if isinstance(operation, (wire.Symlink, wire.Mkdir)):
            name = operation.user
        elif isinstance(operation, wire.OpenFile):
            name = operation.options.user
        return BorrowedIdentity(user if name is None else resolve(name, user))

    # Long operations

    def _transfer(self, kind: Callable[..., Transfer], id: int, request: FsRequest, operation: Any) -> Transfer:
        self._check_room()
        handle = self._handles.get(id, operation.handle)
        if handle.listing is not None:
            raise FileRequestRefused(f"handle {operation.handle} is a directory")
        if operation.offset > MAX_OFFSET or (operation.len or 0) > MAX_OFFSET:
            raise failed(errno.EINVAL)
        offer = request.bulk if self._host.speaks(BULK_GENERATION) else None
        return kind(id, self._host, handle, operation.offset, operation.len, offer, self._transfers.pop)

    def _check_room(self) -> None:
        if len(self._transfers) + len(self._tasks) >= MAX_TRANSFERS:
            raise FileRequestRefused(f"too many transfers at once (max {MAX_TRANSFERS})")

    def _begin(self, id: int, name: str, task: Iterator[None]) -> None:
        self._check_room()
        self._tasks[id] = task
        self._advance(id, name, task)

    def _advance(self, id: int, name: str, task: Iterator[None]) -> None:
        if self._tasks.get(id) is not task:
            return  # its client is gone
        error: OSError | None = None
        try:
            with self._rights(None):
                next(task)
        except StopIteration:
            pass
        except OSError as failure:
            error = failure
        except ValueError:
            error = failed(errno.EINVAL)
        else:
            self._loop.soon(lambda: self._advance(id, name, task))
            return
        del self._tasks[id]
        if error is None:
            self._host.send(id, FsResponse(ok=True))
        else:
            self._answer_error(id, os_error(name, error), error.errno)

    @staticmethod
    def _close_task(task: Any) -> None:
        task.close()

    # By path

    def _real_path(self, _id: int, operation: wire.RealPath) -> ResponseData:
        return wire.PathData(path=paths.text(paths.real_path(operation.path.encode())))

    def _stat(self, _id: int, operation: wire.Stat) -> ResponseData:
        path = operation.path.encode()
        return wire.StatData(entry=paths.entry(path, paths.status_of(path, operation.follow_symlink)))

    def _set_stat(self, _id: int, operation: wire.SetStat) -> None:
        paths.set_attributes(operation.path.encode(), operation.attrs, operation.follow_symlink)

    def _list(self, _id: int, operation: wire.List) -> ResponseData:
        path = operation.path.encode()
        directory = paths.open_directory(path)
        try:
            with os.scandir(directory) as listing:
                return wire.ListData(entries=_collect(paths.entries(path, listing), None))
        finally:
            os.close(directory)

    def _read_link(self, _id: int, operation: wire.ReadLink) -> ResponseData:
        with resolve_path(operation.path.encode(), follow=False) as where:
            return wire.PathData(path=paths.text(read_link(where)))

    def _symlink(self, _id: int, operation: wire.Symlink) -> None:
        with resolve_path(operation.link_path.encode(), follow=False) as where:
            os.symlink(operation.target.encode(), where.name, dir_fd=where.directory)

    def _mkdir(self, _id: int, operation: wire.Mkdir) -> None:
        paths.make_directories(operation.path.encode(), operation.mode)

    def _remove(self, _id: int, operation: wire.Remove) -> None:
        with resolve_path(operation.path.encode(), follow=False) as where:
            os.unlink(where.name, dir_fd=where.directory)

    def _remove_directory(self, _id: int, operation: wire.RemoveDir) -> None:
        with resolve_path(operation.path.encode(), follow=False) as where:
            os.rmdir(where.name, dir_fd=where.directory)

    def _rename(self, _id: int, operation: wire.Rename) -> None:
        with (
            resolve_path(operation.src.encode(), follow=False) as old,
            resolve_path(operation.dst.encode(), follow=False) as new,
        ):
            os.rename(old.name, new.name, src_dir_fd=old.directory, dst_dir_fd=new.directory)

    # By handle

    def _open_file(self, id: int, operation: wire.OpenFile) -> ResponseData:
        self._handles.check_room(id)
        options = operation.options
        mode = 0o666 if options.mode is None else options.mode & 0o7777
        path = operation.path.encode()
        handle = Handle(self._opener.open(path, paths.open_flags(options), mode), path)
        return wire.HandleData(handle=self._handles.add(id, handle))

    def _open_directory(self, id: int, operation: wire.OpenDir) -> ResponseData:
        self._handles.check_room(id)
        path = operation.path.encode()
        handle = Handle(paths.open_directory(path), path)
        try:
            handle.listing = os.scandir(handle.fd)
        except OSError:
            handle.close()
            raise
        return wire.HandleData(handle=self._handles.add(id, handle))

    def _close_handle(self, id: int, operation: wire.CloseHandle) -> None:
        self._handles.close(id, operation.handle)

    def _read_directory(self, id: int, operation: wire.ReadDir) -> ResponseData:
        handle = self._handles.get(id, operation.handle)
        if handle.listing is None:
            raise failed(errno.ENOTDIR)
        limit = operation.limit or wire.DEFAULT_READ_DIR_LIMIT
        return wire.ListData(entries=_collect(paths.entries(handle.path, handle.listing), limit))

    def _handle_stat(self, id: int, operation: wire.FStat) -> ResponseData:
        handle = self._handles.get(id, operation.handle)
        return wire.StatData(entry=paths.entry(handle.path, os.fstat(handle.fd)))

    def _set_handle_stat(self, id: int, operation: wire.FSetStat) -> None:
        paths.set_file_attributes(self._handles.get(id, operation.handle).fd, operation.attrs)


def _collect(found: Iterator[Entry], limit: int | None) -> list[Entry]:
    """Entries for one answer: up to the limit, and up to what a frame holds; without a limit, more is an error."""
    entries: list[Entry] = []
    size = 0
    for entry in found:
        entries.append(entry)
        size += _ENTRY_BYTES + 3 * len(entry.path)
        if limit is not None and len(entries) >= limit:
            break
        if size > _LIST_BYTES:
            if limit is None:
                raise OSError(errno.EOVERFLOW, "Too large for one answer: open the directory and read it in parts")
            break
    return entries
