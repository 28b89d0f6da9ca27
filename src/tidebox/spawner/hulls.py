"""Hulls: the namespaces of a box, held by an init that only sleeps.

Such an init shares the memory and the descriptors of the process that made it, and so costs no copy of either. It
never comes back from its one system call: there is no code for it to run, no matter what happens in its box. What is
left to it there the kernel takes away by itself, because its maker ignores the ends of children; so the maker must be a
process that waits for none, and stands beside the template.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import select

from tidebox.agent.child import HIGHEST_DESCRIPTOR
from tidebox.spawner import channel, networks, steps
from tidebox.spawner import syscalls as sys_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

JOINABLE = sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS | sys_.CLONE_NEWNET
_MADE = sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS | sys_.CLONE_NEWPID
# Of a process in /proc/<pid>/stat: the field, counted after the name, and the bit of it that says that it is leaving.
_FLAGS_FIELD, _LEAVING = 6, 4


class Hull:
    """One of them, known by its init."""

    __slots__ = ("pid", "pidfd", "outward_ends")

    def __init__(self, pid: int, pidfd: int, outward_ends: list[int]) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.outward_ends = outward_ends
        """By which its network leads outward, if it does; until its box has them."""

    def sink(self) -> None:
        """Kill it, and with it everything that is in it."""
        try:
            _signal.pidfd_send_signal(self.pidfd, _signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(self.pidfd)
        self.give_away()

    def give_away(self) -> None:
        """Its box has what leads outward."""
        for descriptor in self.outward_ends:
            os.close(descriptor)
        self.outward_ends = []

    def is_dead(self) -> bool:
        """Whether its init is dead or about to be: then another hull may serve, no matter what failed."""
        try:
            _signal.pidfd_send_signal(self.pidfd, 0)
            return self.is_sinking()
        except (ProcessLookupError, FileNotFoundError):
            return True

    def is_sinking(self) -> bool:
        """Whether its init is about to end; to be asked while something in it has not been waited for."""
        fd = os.open(f"/proc/{self.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return bool(int(os.read(fd, 4096).rpartition(b")")[2].split()[_FLAGS_FIELD]) & _LEAVING)
        finally:
            os.close(fd)


class Hulls:
    """The template's end of the process that makes them; ``maker`` is readable when that is dead."""

    def __init__(self, egress: bool) -> None:
        self._sock, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            _make_hulls(theirs, egress)
        theirs.close()
        self.maker = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._sock.fileno(), select.POLLIN)
        self._poll.register(self.maker, select.POLLIN)

    def take(self) -> Hull:
        """One that was never used; OSError if none can be made now."""
        self._sock.send(b"+")
        # The inits have the maker's descriptors too, and keep its end open when it is dead.
        if any(fd == self.maker for fd, _ in self._poll.poll()):
            raise MakerDied
        # Unpacked as an order is: the maker is no closer to hostile code than this process.
        received = channel.receive_order(self._sock)
        assert received is not None
        message, descriptors = received
        if not descriptors:
            raise OSError(message["errno"], os.strerror(message["errno"]))
        return Hull(message["pid"], descriptors[0], descriptors[1:])


class MakerDied(Exception):
    """There will be no more hulls."""


def _make_hulls(sock: _socket.socket, egress: bool) -> NoReturn:
    """Keep some ready, until the template is gone."""
    status = 1
    try:
        # Nothing of the template's: that it is dead is seen by what it had open, and only if nobody else has that too.
        os.closerange(3, sock.fileno())
        os.closerange(sock.fileno() + 1, HIGHEST_DESCRIPTOR)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
        # Below zero when somebody waits for one.
        ready = 0
        refused = False
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        while True:
            pause = networks.patience(ready) if ready < 0 or not refused else None
            if poll.poll(pause if pause is None else pause * 1000):
                if not sock.recv(1):
                    break
                ready -= 1
                refused = False
                continue
            try:
                _make_hull(sock, egress)
            except (OSError, steps.StepFailed) as error:
                # The machine is full: no reason to die, for that would end the boxes there are.
                refused = True
                if ready >= 0:
                    continue
                channel.send_order(sock, {"errno": error.errno})
            ready += 1
        status = 0
    finally:
        os._exit(status)


def _make_hull(sock: _socket.socket, egress: bool) -> None:
    outward_ends = networks.enter_new(egress)
    try:
        pid, pidfd = sys_.clone_sleeper(_MADE)
    except OSError:
        for descriptor in outward_ends:
            os.close(descriptor)
        raise
    hull = Hull(pid, pidfd, outward_ends)
    try:
        channel.send_order(sock, {"pid": hull.pid}, (hull.pidfd, *outward_ends))
    except OSError:
        hull.sink()
        raise
    os.close(hull.pidfd)
    hull.give_away()
