"""File operations by path. Every one works with the effective rights of the caller and raises OSError.

Nothing here can be made to wait: files are opened without blocking, and only regular files and directories are kept
open. Long work is a generator that gives way to other work at each yield.
"""

from __future__ import annotations

import errno
import os
import stat

from tidebox.agent.path_resolution import ResolvedPath, failed, resolve_path
from tidebox.wire.files import KIND_DIR, KIND_FILE, KIND_OTHER, KIND_SYMLINK, Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidebox.wire.files import Attributes, OpenOptions

_KINDS = {stat.S_IFREG: KIND_FILE, stat.S_IFDIR: KIND_DIR, stat.S_IFLNK: KIND_SYMLINK}
_QUIETLY = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Directory entries removed, and bytes copied, between two yields.
_REMOVALS_PER_SLICE = 64
_COPY_SLICE = 4 << 20


def text(path: bytes) -> str:
    """A path as the protocol carries it; bytes that are no UTF-8 become replacement characters on the wire."""
    return path.decode("utf-8", "surrogateescape")


def entry(path: bytes, status: os.stat_result) -> Entry:
    """The attributes of a file, as the host is shown them."""
    return Entry(
        path=text(path),
        kind=_KINDS.get(stat.S_IFMT(status.st_mode), KIND_OTHER),
        size=status.st_size,
        mode=status.st_mode,
        modified=int(status.st_mtime),
        uid=status.st_uid,
        gid=status.st_gid,
        atime=int(status.st_atime),
        mtime=int(status.st_mtime),
    )


def real_path(path: bytes) -> bytes:
    """Without links; the last component need not exist."""
    with resolve_path(path, follow=True) as where:
        return where.path


def status_of(path: bytes, follow: bool) -> os.stat_result:
    """``stat`` a path, or ``lstat`` where links are not followed."""
    with resolve_path(path, follow=follow) as where:
        return where.stat()


class PathOpener:
    """Opens regular files; anything else is refused, and so are the files of procfs.

    What a link to /proc/self leads to is the agent's own memory and descriptors, not the user's.
    """

    def __init__(self, hidden_proc: Callable[[], int | None]) -> None:
        """``hidden_proc`` gives a directory of a procfs that is mounted nowhere, reachable through /proc/self/fd."""
        self._hidden_proc = hidden_proc
        # Found out when the first file is opened: most boxes never do.
        self._refused: set[int] | None = None

    def _find_refused(self) -> set[int]:
        refused = set()
        hidden = self._hidden_proc()
        if hidden is not None:
            refused.add(os.fstat(hidden).st_dev)
        if os.path.ismount("/proc"):
            refused.add(os.stat("/proc").st_dev)
        return refused

    def open(self, path: bytes, flags: int, mode: int = 0o666) -> int:
        """A descriptor of a regular file."""
        if self._refused is None:
            self._refused = self._find_refused()
        exclusive = bool(flags & os.O_EXCL)
        with resolve_path(path, follow=not exclusive) as where:
            fd = where.open(flags | _QUIETLY, mode)
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise failed(errno.EISDIR)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "Not a regular file")
            if status.st_dev in self._refused:
                raise failed(errno.EACCES)
        except OSError:
            os.close(fd)
            raise
        return fd


def open_flags(options: OpenOptions) -> int:
    """The flags of open(2)."""
    writes = options.write or options.append
    if not (options.read or writes) or (not writes and (options.truncate or options.create or options.create_new)):
        raise failed(errno.EINVAL)
    if options.append and options.truncate and not options.create_new:
        raise failed(errno.EINVAL)
    flags = os.O_RDWR if options.read and writes else os.O_WRONLY if writes else os.O_RDONLY
    if options.append:
        flags |= os.O_APPEND
    if options.create_new:
        return flags | os.O_CREAT | os.O_EXCL
    if options.create:
        flags |= os.O_CREAT
    return flags | os.O_TRUNC if options.truncate else flags


def open_directory(path: bytes) -> int:
    """A directory to list."""
    with resolve_path(path, follow=True) as where:
        return where.open(_DIRECTORY)


def entries(directory: bytes, listing: Iterator[os.DirEntry[str]]) -> Iterator[Entry]:
    """The rest of a listing; what vanishes meanwhile is left out."""
    for found in listing:
        try:
            status = found.stat(follow_symlinks=False)
        except OSError:
            continue
        yield entry(os.path.join(directory, os.fsencode(found.name)), status)


def make_directories(path: bytes, mode: int | None) -> None:
    """mkdir -p; the mode is that of the last one."""
    with resolve_path(path, follow=True, create=True) as where:
        if not stat.S_ISDIR(where.stat().st_mode):
            raise failed(errno.EEXIST)
        if mode is not None:
            os.chmod(where.name, mode & 0o7777, dir_fd=where.directory)


def set_attributes(path: bytes, attributes: Attributes, follow: bool) -> None:
    """Change what is not None, of what is at a path."""
    with resolve_path(path, follow=follow) as where:
        status = where.stat()
        if stat.S_ISLNK(status.st_mode) and (attributes.mode is not None or attributes.size is not None):
            raise failed(errno.EOPNOTSUPP)
        if attributes.size is not None:
            file = where.open(os.O_WRONLY | _QUIETLY)
            try:
                os.ftruncate(file, attributes.size)
            finally:
                os.close(file)
        if (owner := _owner(attributes)) is not None:
            os.chown(where.name, *owner, dir_fd=where.directory, follow_symlinks=False)
        if attributes.mode is not None:
            os.chmod(where.name, attributes.mode & 0o7777, dir_fd=where.directory)
        if (times := _times(attributes, status)) is not None:
            os.utime(where.name, times, dir_fd=where.directory, follow_symlinks=False)


def set_file_attributes(file: int, attributes: Attributes) -> None:
    """Change what is not None, of an open file."""
    if attributes.size is not None:
        os.ftruncate(file, attributes.size)
    if (owner := _owner(attributes)) is not None:
        os.fchown(file, *owner)
    if attributes.mode is not None:
        os.fchmod(file, attributes.mode & 0o7777)
    if (times := _times(attributes, os.fstat(file))) is not None:
        os.utime(file, times)


def _owner(attributes: Attributes) -> tuple[int, int] | None:
    if attributes.uid is None and attributes.gid is None:
        return None
    return (-1 if attributes.uid is None else attributes.uid, -1 if attributes.gid is None else attributes.gid)


def _times(attributes: Attributes, status: os.stat_result) -> tuple[float, float] | None:
    if attributes.atime is None and attributes.mtime is None:
        return None
    return (
        status.st_atime if attributes.atime is None else attributes.atime,
        status.st_mtime if attributes.mtime is None else attributes.mtime,
    )


def copy(opener: PathOpener, source: bytes, destination: bytes) -> Iterator[None]:
    """Copy one file with its permissions."""
    reading = opener.open(source, os.O_RDONLY)
    try:
        status = os.fstat(reading)
        # Not truncated by opening: source and destination may be one file.
        writing = opener.open(destination, os.O_WRONLY | os.O_CREAT, stat.S_IMODE(status.st_mode))
        try:
            if os.path.samestat(status, os.fstat(writing)):
                raise OSError(errno.EINVAL, "Source and destination are the same file")
            os.ftruncate(writing, 0)
            while _copy_slice(reading, writing):
                yield
            os.fchmod(writing, stat.S_IMODE(status.st_mode))
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _copy_slice(reading: int, writing: int) -> bool:
    try:
        return os.copy_file_range(reading, writing, _COPY_SLICE) > 0
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return os.sendfile(writing, reading, None, _COPY_SLICE) > 0


def remove_tree(path: bytes) -> Iterator[None]:
    """rm -r of a directory, however deep: one descriptor walks down and up, and links are never followed.

    The way up is ``..``, checked to be the directory that was left: user code may move directories meanwhile.
    """
    with resolve_path(path, follow=False) as where:
        yield from _remove_below(where)
        os.rmdir(where.name, dir_fd=where.directory)


def _remove_below(where: ResolvedPath) -> Iterator[None]:
    current = where.open(_DIRECTORY)
    way_down: list[tuple[str, int, int]] = []
    try:
        while True:
            deeper: str | None = None
            with os.scandir(current) as listing:
                for count, found in enumerate(listing):
                    if count % _REMOVALS_PER_SLICE == _REMOVALS_PER_SLICE - 1:
                        yield
                    if not found.is_dir(follow_symlinks=False):
                        os.unlink(found.name, dir_fd=current)
                    elif not _remove_if_empty(found.name, current):
                        deeper = found.name
                        break
            yield
            if deeper is not None:
                status = os.fstat(current)
                way_down.append((deeper, status.st_dev, status.st_ino))
                current = _replace(current, os.open(deeper, _DIRECTORY | os.O_NOFOLLOW, dir_fd=current))
            elif way_down:
                name, device, inode = way_down.pop()
                current = _replace(current, os.open("..", _DIRECTORY, dir_fd=current))
                status = os.fstat(current)
                if (status.st_dev, status.st_ino) != (device, inode):
                    raise failed(errno.ESTALE)
                os.rmdir(name, dir_fd=current)
            else:
                return
    finally:
        os.close(current)


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new


def _remove_if_empty(name: str, directory: int) -> bool:
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True
