"""A box made for one program: init waits for it, starts it, sleeps until it ends and tells how.

Most boxes never see anything else, and so nothing else is brought to life in them: no loop, no protocol, no buffers.
The streams of the program are the host's own; orders and reports pass a socket that no program ever holds. An order is
a map, unpacked by the interpreter itself: it comes from the host, which may order anything. A report is a few numbers.
When the host speaks the agent protocol after all, the agent takes over what runs.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import marshal
import os
import resource
import select
import sys
from struct import Struct

from tidebox.agent import child
from tidebox.agent.users import User

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Callable

    from tidebox.agent.main import Setup

# Of a report: the step that failed (none: the program ended), errno or wait status, cpu time, memory.
_REPORT = Struct("=Biqq")
_STEPS = (
    "",
    child.STEP_PROCESS,
    child.STEP_RLIMIT,
    child.STEP_USER,
    child.STEP_CWD,
    child.STEP_CONFINE,
    child.STEP_EXEC,
)
# One for all boxes, of which each touches what it needs.
_buffer = bytearray(128 * 1024)


class Defaults:
    """What every program of a box has unless its order says otherwise."""

    __slots__ = ("env", "rlimits", "user")

    def __init__(self, env: dict[bytes, bytes], rlimits: Sequence[tuple[int, int, int]], user: User) -> None:
        self.env = env
        self.rlimits = rlimits
        self.user = user


class Single:
    """The one program of a box. Made before the box, which only adds its descriptors."""

    _control: _socket.socket
    _stdio: Sequence[int]
    _oom_score: int
    _ids: tuple[int, int]

    def __init__(
        self, setup: Setup, defaults: Defaults, signals: Sequence[int], load_filter: Callable[[], None]
    ) -> None:
        self.pid = 0
        self.id = 0
        self.over = True
        self._setup = setup
        self._defaults = defaults
        self._signals = signals
        self._load_filter = load_filter
        self._failed = -1

    def equip(self, control: int, stdio: Sequence[int], oom_score: int) -> None:
        """Take over the descriptors of a box; ``oom_score`` is the file that sets init's own."""
        self._control = _socket.socket(fileno=control)
        self._stdio = stdio
        self._oom_score = oom_score
        self._ids = (os.getuid(), os.getgid())

    def attend(self) -> None:
        """Start the program that is ordered and report its end; returns when the host speaks to the agent."""
        size = self._await_order()
        if size:
            self._start(marshal.loads(memoryview(_buffer)[:size]))
        for fd in self._stdio:
            os.close(fd)
        if not size:
            return
        # Something hid the agent's modules from the program; wait4 would look for this one on the disk each time.
        sys.modules["resource"] = resource
        sock = self._setup.sock
        if not self.over:
            # Not only by its signal: one that comes just before this process goes to sleep would wake nobody.
            ended = os.pidfd_open(self.pid)
            wake, wake_write = os.pipe()
            os.set_blocking(wake_write, False)
            # The handler does nothing: a flood of signals would call it within itself.
            _signal.signal(_signal.SIGCHLD, lambda _number, _frame: None)
            _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
            while not self.over:
                ready = _wait_for(sock, ended, wake)
                if wake in ready:
                    os.read(wake, 4096)
                self.reap()
                if sock in ready:
                    break
            _signal.set_wakeup_fd(-1)
            for fd in (ended, wake, wake_write):
                os.close(fd)
        _wait_for(sock)

    def _await_order(self) -> int:
        """The size of the order in the buffer; 0 when the host speaks to the agent, or not at all any more."""
        try:
            return self._control.recv_into(_buffer, 0, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            control = self._control.fileno()
            return self._control.recv_into(_buffer) if control in _wait_for(self._setup.sock, control) else 0

    def _start(self, order: dict[str, Any]) -> None:
        defaults = self._defaults
        rlimits = defaults.rlimits
        if order["cpu"]:
            rlimits = [*rlimits, child.rlimit("cpu", order["cpu"], order["cpu"] + 1)]
        env = {**defaults.env, **order["env"]} if order["env"] else defaults.env
        start = child.Start(order["argv"], env, order["cwd"], defaults.user, rlimits, False)
        start.stdio = (self._stdio[0], self._stdio[1], self._stdio[2])
        self.id = order["id"]
        self.over = False
        if child.find_builtin(start.argv[0], self._setup.builtins) is None:
            self._spawn(start)
            return
        self._failed, status = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            child.become(start, self._setup, status, self._signals)
        os.close(status)

    def _spawn(self, start: child.Start) -> None:
        """Start what replaces the process anyway without a copy of this one in between.

        What a child cannot be told to do on its way is done here, for ever or until it is away.
        """
        step = child.STEP_RLIMIT
        try:
            for number, soft, hard in start.rlimits:
                resource.setrlimit(number, (soft, hard))
            step = child.STEP_CWD
            os.chdir(start.cwd)
            step = child.STEP_CONFINE
            self._load_filter()
            os.write(self._oom_score, child.OOM_SCORE)
            step = child.STEP_USER
            self._be(start.user.uid, start.user.gid)
            step = child.STEP_EXEC
            self.pid = self._search(start)
        except OSError as error:
            self.over = True
            self._tell(step, error.errno or errno.EIO)
        except ValueError:
            self.over = True
            self._tell(step, errno.EINVAL)
        finally:
            self._be(*self._ids)
            os.write(self._oom_score, b"0")

    def _be(self, uid: int, gid: int) -> None:
        """Change the identity, keeping the way back; a program that is executed has no such way."""
        own_uid, own_gid = self._ids
        if (uid, gid) != self._ids or os.getuid() != uid:
            os.setresgid(gid, gid, own_gid)
            os.setresuid(uid, uid, own_uid)

    def _search(self, start: child.Start) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(start.stdio)]

        def spawn(path: bytes) -> int:
            os.stat(path)  # cheaper than a child that does not find it
            return os.posix_spawn(
                path, start.argv, start.env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=self._signals
            )

        return child.search(start.argv[0], start.env, spawn)

    def signal(self, number: int) -> None:
        """Signal the program's process group."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            os.kill(self.pid, number)  # it does not lead its group yet

    def reap(self) -> None:
        """Take whoever is dead."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.pid:
                self.report(status, usage)

    def report(self, status: int, usage: Any) -> None:
        """Tell how the program ended, or that it never began."""
        self.over = True
        # The program closed its end, or its dying did: this does not wait.
        failure = os.read(self._failed, 4096) if self._failed >= 0 else b""
        if failure:
            number, step = child.parse_failure(failure)
            self._tell(step, number)
        else:
            cpu_us = int((usage.ru_utime + usage.ru_stime) * 1_000_000)
            self._tell("", status, cpu_us, usage.ru_maxrss * 1024)

    def _tell(self, step: str, number: int, cpu_us: int = 0, max_rss: int = 0) -> None:
        try:
            self._control.send(_REPORT.pack(_STEPS.index(step), number, cpu_us, max_rss), _socket.MSG_NOSIGNAL)
        except OSError:
            pass  # the host is gone, and this box is next


def _wait_for(*descriptors: int) -> list[int]:
    """Those of the descriptors that have something to read, as soon as one has."""
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll()]
