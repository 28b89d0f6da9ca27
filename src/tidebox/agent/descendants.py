"""Finds and kills all descendants of a program, where no control group (cgroup) of its own has them.

Each program is given a mark that everything it starts inherits, however it is forked: a limit on the number of locks,
which no kernel keeps, or one on memory that is more than there is, where that of locks cannot be set. Beside that, what
is shown of each process tells: its parent, its process group and its session. Only a program that lowers that limit and
leaves all three can hide, until its whole box is ended.
"""

from __future__ import annotations

import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_KILL = 9
_RLIMIT_LOCKS = 10
_SHOWN_AS = {_RLIMIT_LOCKS: b"\nMax file locks ", resource.RLIMIT_DATA: b"\nMax data size "}
# Of each process: state, parent, group and session, after the name, which may hold anything.
_PARENT, _GROUP, _SESSION = 1, 2, 3
_PASSES = 8


def new_mark() -> int:
    """A mark that no other program has, and none can guess."""
    return int.from_bytes(os.urandom(7), "little") | 1 << 56


def put_on(mark: int) -> None:
    """Mark the calling process."""
    for limit in _SHOWN_AS:
        try:
            resource.setrlimit(limit, (mark, mark))
            return
        except (OSError, ValueError):
            continue  # a kernel that does not have it; its relatives are still found


def kill(leader: int, mark: int) -> None:
    """Send SIGKILL to all known descendants of the process that leads a session and has that mark."""
    shown = b"%d" % mark
    for _ in range(_PASSES):
        processes = _processes()
        found = relatives(leader, processes) | {pid for pid, *_ in processes if shown in _marks_of(pid)}
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, _KILL)
            except OSError:
                pass  # it ended meanwhile
        # What is dead and not reaped yet is found again.
        if all(_is_dead(pid) for pid in found):
            return


def relatives(leader: int, processes: Iterable[tuple[int, int, int, int]]) -> set[int]:
    """Those of ``processes`` (pid, parent, group, session) that descend from ``leader`` or share its session."""
    known = list(processes)
    found = {pid for pid, _, group, session in known if leader in (group, session)}
    groups = {leader} | found
    while True:
        more = {
            pid
            for pid, parent, group, session in known
            if pid not in found and (parent in found or group in groups or session in groups)
        }
        if not more:
            return found
        found |= more
        # What leads a group or a session of its own brings those with it.
        groups |= more


def _processes() -> list[tuple[int, int, int, int]]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            fields = _stat(int(name))
            if fields is not None:
                found.append((int(name), int(fields[_PARENT]), int(fields[_GROUP]), int(fields[_SESSION])))
    return found


def _marks_of(pid: int) -> set[bytes]:
    """The values of the limits of a process that a mark is put on."""
    shown = _read(f"/proc/{pid}/limits") or b""
    found = (shown.partition(line)[2].split(None, 1)[:1] for line in _SHOWN_AS.values())
    return {words[0] for words in found if words}


def _is_dead(pid: int) -> bool:
    fields = _stat(pid)
    return fields is None or fields[0] in ("Z", "X")


def _stat(pid: int) -> list[str] | None:
    text = _read(f"/proc/{pid}/stat")
    return None if text is None else text.decode("utf-8", "replace").rpartition(")")[2].split()


def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
