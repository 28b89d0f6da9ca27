"""Pid 1 of a container: the agent on the container's own standard streams, with the user's uid and no power.

Where the container has a kernel of its own, root there is nobody on the machine: the agent is that root, with what it
needs to start, signal and serve processes of another uid, and user code has that one. Before it takes a request it
covers its own directory in /proc, which not every kernel keeps others from, and gives up the power to do so.

Elsewhere user code has the same uid, so the agent is kept from it by three things. It is not dumpable: nothing of
/proc/1 that matters can be opened. A filter that it loads on itself, and that everything inherits, has no call that
reaches into another process or changes its limits. And no child of its holds a descriptor of its when user code could
look at it.
"""

from __future__ import annotations

import os
import sys

from tidebox.agent import tree_records
from tidebox.agent.init_setup import InitSetup
from tidebox.agent.main import serve
from tidebox.spawner import confine, ids
from tidebox.spawner import syscalls as sys_
from tidebox.spawner.counters import read_counters
from tidebox.wire.generations import GENERATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

USER = "user"
_CGROUP = "/sys/fs/cgroup"
# On v1 each controller has a directory of its own, on v2 they share one.
_CONTROLLERS = ("", "/memory", "/cpuacct", "/pids")
_ROOT = "/workspace"
_READ = 1 << 18
_MOST_NAMES = 64 << 20
_NEEDLESS_DEVICES = ("/dev/fuse", "/dev/net/tun")


def main(arguments: list[str]) -> int:
    """Serve; the argument is the file of the system call filter, or none where the container has one of its own."""
    two_ids = os.getuid() == ids.AGENT_UID
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0)
    sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)
    if two_ids:
        _remove_devices()
        confine.bound_init(two_ids)
        _hide_init()
        confine.restrict_init(two_ids)
    if arguments:
        with open(arguments[0], "rb") as file:
            sys_.make(sys_.Filter(file.read()).load_calls, "load the filter")
    incoming, outgoing = _take_streams()
    counters = _Counters()
    os.environ.clear()
    return serve(
        InitSetup(
            sock=incoming,
            out=outgoing,
            generation=GENERATION,
            user=(ids.USER_UID, ids.USER_UID) if two_ids else (os.getuid(), os.getgid()),
            default_user_name=USER,
            confine=confine.confine_program if two_ids else _confine,
            builtins={"send": _send, "receive": _receive, "examine": _examine, "renew": _renew},
            # A kernel of its own has no say in which processes of the machine end when memory is short.
            oom_score_fd=None if two_ids else os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
            counters=counters.read,
            shares_user=not two_ids,
        )
    )


def _remove_devices() -> None:
    """Leave no device that a kernel of its own may bring along, and that no program of ours needs."""
    for path in _NEEDLESS_DEVICES:
        try:
            os.unlink(path)
        except OSError:
            pass  # this kernel does not bring it
    try:
        os.rmdir("/dev/net")
    except OSError:
        pass


def _hide_init() -> None:
    """Let nobody see what this process has open and where its memory is."""
    flags = sys_.MS_RDONLY | sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC
    sys_.mount("none", f"/proc/{os.getpid()}", "tmpfs", flags, "mode=0555,size=4096")


def _take_streams() -> tuple[int, int]:
    """Move the connection to the host out of the way: what the first three descriptors are, programs have too."""
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return incoming, outgoing


def _confine() -> None:
    # In a child that holds nothing of the agent's any more: a program is dumpable, and its /proc files are its own.
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)


class _Counters:
    """Usage counters of the container's cgroups."""

    def __init__(self) -> None:
        self._directories = []
        for name in _CONTROLLERS:
            try:
                self._directories.append(os.open(_CGROUP + name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            except OSError:
                pass  # not here; what it would tell is then not known

    def read(self) -> dict[str, int]:
        """All of them."""
        return read_counters(self._directories)


def _examine(arguments: list[str], control: int) -> NoReturn:
    """Tell the isolation that holds in this container; the code for it is loaded only where this is asked for."""
    from tidebox.spawner.examination import examine

    examine(arguments, control)


def _renew(arguments: list[str], control: int) -> NoReturn:
    """Leave nothing of the programs so far but the workspace; loaded only by who asks."""
    from tidebox.spawner.renewal import renew

    renew(arguments, control)


def _send(arguments: list[str], _control: int) -> NoReturn:
    """``list ENTRIES DEPTH``: records of all below the workspace. ``files``: those named on standard input, with data.

    What cannot be read any more is left out.
    """
    root = os.open(_ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if arguments[0] == "list":
        for record in tree_records.walk(root, int(arguments[1]), int(arguments[2])):
            _write(record.encode())
    else:
        for path in _paths():
            try:
                for data in tree_records.file_stream(root, path):
                    _write(data)
            except BrokenPipeError:
                raise
            except OSError:
                continue
    _write(tree_records.THE_END.encode())
    os._exit(0)


def _paths() -> list[bytes]:
    data = b""
    while len(data) < _MOST_NAMES:
        more = os.read(0, _READ)
        if not more:
            break
        data += more
    found, at = [], 0
    while at + tree_records.NAME.size <= len(data):
        (length,) = tree_records.NAME.unpack_from(data, at)
        at += tree_records.NAME.size
        found.append(data[at : at + length])
        at += length
    return found


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _receive(_arguments: list[str], _control: int) -> NoReturn:
    """Make what the records on standard input say; the exit code is the error's number."""
    receiver = tree_records.Receiver(os.open(_ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        while not receiver.ended:
            data = os.read(0, _READ)
            if not data:
                os._exit(1)
            receiver.feed(data)
    except OSError as error:
        os._exit(error.errno or 1)
    os._exit(0)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
