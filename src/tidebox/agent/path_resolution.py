"""Path resolution that does not follow the links of procfs, which lead out of the box.

``/proc/self`` is the agent here, and a link like ``/proc/self/fd/7`` is not followed by its text: the kernel goes
straight to what the agent has open, be it a control group of the machine. ``openat2`` could be told not to, where it
is there; every kernel can be asked for one name at a time. That is done through descriptors, so that nothing is won
by exchanging a directory for a link meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40  # as the kernel has it


def failed(number: int) -> OSError:
    """The error of that number."""
    return OSError(number, os.strerror(number))


class ResolvedPath:
    """A name in an open directory; the name is ``.`` where the path is that of the directory itself."""

    __slots__ = ("directory", "name", "_above")

    def __init__(self, directory: int, name: bytes, above: list[bytes]) -> None:
        self.directory = directory
        self.name = name
        self._above = above

    @property
    def path(self) -> bytes:
        """Its path, without links before its name."""
        return b"/" + b"/".join(self._above + ([] if self.name == b"." else [self.name]))

    def stat(self) -> os.stat_result:
        """``lstat`` of the name."""
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)

    def open(self, flags: int, mode: int = 0o666) -> int:
        """Open it; a symbolic link is refused."""
        return os.open(self.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self.directory)


@contextlib.contextmanager
def resolve_path(path: bytes, *, follow: bool, create: bool = False) -> Iterator[ResolvedPath]:
    """Resolve a path to a directory descriptor and a name; the name need not exist, and with ``follow`` is no link.

    With ``create`` every directory that is missing is made, the last one too.
    """
    if not path:
        raise failed(errno.ENOENT)
    above: list[bytes] = [] if path.startswith(b"/") else _parts(os.getcwdb())
    current = os.open(b"/" if path.startswith(b"/") else b".", _LOOK | os.O_DIRECTORY)
    pending = _parts(path)[::-1]
    # "name/" is a directory, whatever else could have that name.
    as_directory = path.endswith(b"/")
    name = b"."
    links = 0
    try:
        while pending:
            part = pending.pop()
            if part == b"..":
                current = _replaced(current, os.open(b"..", _LOOK | os.O_DIRECTORY, dir_fd=current))
                del above[-1:]
                continue
            if not (pending or follow or as_directory):
                name = part
                break
            try:
                found = _look(part, current, create)
            except FileNotFoundError:
                if pending:
                    raise
                name = part
                break
            mode = os.fstat(found).st_mode
            if stat.S_ISLNK(mode) and (pending or follow):
                links += 1
                target = _target(found, current, links)
                if target.startswith(b"/"):
                    current = _replaced(current, os.open(b"/", _LOOK | os.O_DIRECTORY))
                    above = []
                as_directory = as_directory or (not pending and target.endswith(b"/"))
                pending += _parts(target)[::-1]
            elif pending:
                current = _replaced(current, found)
                above.append(part)
            else:
                os.close(found)
                if as_directory and not stat.S_ISDIR(mode):
                    raise failed(errno.ENOTDIR)
                name = part
        yield ResolvedPath(current, name, above)
    finally:
        os.close(current)


def read_link(where: ResolvedPath) -> bytes:
    """The text of a link; those of procfs tell what the agent has open."""
    if _is_procfs(where.directory):
        raise failed(errno.EACCES)
    return os.readlink(where.name, dir_fd=where.directory)


def _look(name: bytes, directory: int, create: bool) -> int:
    try:
        return os.open(name, _LOOK, dir_fd=directory)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):  # somebody else was faster
        os.mkdir(name, dir_fd=directory)
    return os.open(name, _LOOK, dir_fd=directory)


def _target(link: int, directory: int, links: int) -> bytes:
    """The text of a link that is followed; closes it."""
    try:
        if links > _MAX_LINKS or _is_procfs(directory):
            raise failed(errno.ELOOP)
        return os.readlink(b"", dir_fd=link)
    finally:
        os.close(link)


def _is_procfs(directory: int) -> bool:
    """Whether links in a directory are the kernel's own: in procfs all are but those at its root, as ``self``."""
    if not os.path.ismount("/proc"):
        return False
    # The root has another number on every kernel.
    root, status = os.stat("/proc"), os.fstat(directory)
    return status.st_dev == root.st_dev and status.st_ino != root.st_ino


def _parts(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new
