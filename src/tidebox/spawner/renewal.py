"""Leaves nothing of a program in its box but the workspace: no other file, no shared memory, semaphore or message."""

from __future__ import annotations

import ctypes
import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_WORKSPACE = "/workspace"
_WORKSPACE_MODE, _TEMPORARY_MODE, _OPEN_MODE = 0o755, 0o1777, 0o700
_REMOVE = 0  # IPC_RMID
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def renew(_arguments: list[str], _control: int) -> NoReturn:
    """Do it where nothing else runs; the exit code is the number of an error."""
    try:
        for path in _writable_places():
            _empty(path)
            _set_mode(path, _TEMPORARY_MODE)
        _set_mode(_WORKSPACE, _WORKSPACE_MODE)
        _remove_objects()
    except OSError as error:
        os._exit(error.errno or 1)
    os._exit(0)


def _writable_places() -> list[str]:
    """The file systems in memory that programs can write to, the workspace aside."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split()
            # The kernel writes blanks in a name as octal numbers.
            path = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), words[4])
            options, kind = words[5].split(","), words[words.index("-") + 1]
            if kind in ("tmpfs", "mqueue") and "rw" in options and path != _WORKSPACE and _is_ours(path):
                found.append(path)
    return found


def _is_ours(path: str) -> bool:
    """Whether it is a directory in which a program can write, or could before it took that from itself."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    # Engines put a device over files that are not to be seen.
    return stat.S_ISDIR(status.st_mode) and (status.st_uid == os.getuid() or os.access(path, os.W_OK))


def _set_mode(path: str, mode: int) -> None:
    try:
        os.chmod(path, mode)
    except PermissionError:
        pass  # not ours: then no program changed it


def _empty(path: str) -> None:
    """Remove what is there, however deep: directories inside others are moved up first."""
    _set_mode(path, _OPEN_MODE)
    top = os.open(path, _DIRECTORY)
    moved = 0
    try:
        while names := os.listdir(top):
            for name in names:
                if not _remove_file(name, top):
                    moved = _unfold(name, top, moved)
    finally:
        os.close(top)


def _unfold(name: str, top: int, moved: int) -> int:
    os.chmod(name, _OPEN_MODE, dir_fd=top)
    inner = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        for child in os.listdir(inner):
            if not _remove_file(child, inner):
                moved += 1
                # To move a directory is to write to it: its parent changes.
                os.chmod(child, _OPEN_MODE, dir_fd=inner)
                os.rename(child, f"{moved}-{os.urandom(8).hex()}", src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return moved


def _remove_file(name: str, directory: int) -> bool:
    """Whether it was no directory."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    return True


def _remove_objects() -> None:
    """Remove System V IPC objects (shm, sem, msg): they outlive the processes that made them, and are no files."""
    library = ctypes.CDLL(None, use_errno=True)
    for kind, arguments in (("shm", (_REMOVE, None)), ("sem", (0, _REMOVE)), ("msg", (_REMOVE, None))):
        remove = getattr(library, f"{kind}ctl")
        for number in _objects(kind):
            if remove(number, *arguments) < 0:
                raise OSError(ctypes.get_errno(), kind)


def _objects(kind: str) -> list[int]:
    try:
        with open(f"/proc/sysvipc/{kind}", encoding="ascii") as file:
            return [int(line.split()[1]) for line in file.readlines()[1:]]
    except FileNotFoundError:
        return []  # a kernel without them
