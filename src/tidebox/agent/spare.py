"""A child that is forked before anybody asks for a program.

A fork of the agent takes longer than most programs people run in a sandbox, and so does what a fork copies at its first
steps. Where one program follows the other it is done while nobody waits: the child has its cgroup leaf and its system
call filter already, holds nothing else of the agent's, and becomes the program that it is told. User code cannot reach
it before: it still has the agent's identity.
"""

from __future__ import annotations

import _socket
import marshal
import os
from struct import Struct

from tidebox.agent import child
from tidebox.agent.users import BoxUser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from tidebox.agent.init_setup import InitSetup

_LARGEST_ORDER = 1 << 17
# Standard input, output, errors, and the pipe that tells what went wrong.
_DESCRIPTORS = Struct("4i")
_ANCILLARY = _socket.CMSG_SPACE(_DESCRIPTORS.size)


class Spare:
    """One such child."""

    def __init__(self, setup: InitSetup, signals: Sequence[int], leaf: int) -> None:
        """Raises OSError where there is no room for one."""
        self.leaf = leaf
        self._sock, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            self.pid = os.fork()
        except OSError:
            self._sock.close()
            theirs.close()
            raise
        if not self.pid:
            _wait(theirs, setup, signals, leaf)
        theirs.close()

    def become(self, start: child.ChildStart, status: int) -> bool:
        """Tell it what to become; False where it cannot be told, and another child is needed."""
        data = _pack(start)
        if len(data) > _LARGEST_ORDER:
            return False
        descriptors = _DESCRIPTORS.pack(*start.stdio, status)
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)
        try:
            self._sock.sendmsg([data], [rights], _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
        except OSError:
            return False  # somebody killed it
        self._sock.close()
        return True

    def close(self) -> None:
        """It is not needed, or dead."""
        self._sock.close()


def _pack(start: child.ChildStart) -> bytes:
    user, rlimits = (start.user.uid, start.user.gid), list(start.rlimits)
    return marshal.dumps((start.argv, start.env, start.cwd, user, rlimits, start.tty))


def _unpack(data: bytes, descriptors: bytes) -> tuple[child.ChildStart, int]:
    argv, env, cwd, (uid, gid), rlimits, tty = marshal.loads(data)
    stdin, stdout, stderr, status = _DESCRIPTORS.unpack(descriptors)
    start = child.ChildStart(argv, env, cwd, BoxUser(uid, gid, None), rlimits, tty)
    start.stdio = (stdin, stdout, stderr)
    start.apart = True
    return start, status


_SAMPLE = _pack(child.ChildStart([b"true"], {b"NAME": b"value"}, b"/", BoxUser(0, 0, None), [(0, 0, 0)], False))


def _wait(sock: _socket.socket, setup: InitSetup, signals: Sequence[int], leaf: int) -> NoReturn:
    try:
        child.part(signals)
        if setup.leaves is not None:
            setup.leaves.attach(leaf)
        # The pipes of other programs must not be kept open from here.
        child.close_all_but(sock.fileno(), setup.oom_score_fd)
        # The pages that this writes to are copied now, while nobody waits.
        _unpack(_SAMPLE, bytes(_DESCRIPTORS.size))
        data, ancillary, _, _ = sock.recvmsg(_LARGEST_ORDER, _ANCILLARY, _socket.MSG_CMSG_CLOEXEC)
        if data:
            start, status = _unpack(data, ancillary[0][2])
            child.become(start, setup, status, signals)
    finally:
        os._exit(0)
