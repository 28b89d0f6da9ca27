"""A box made for one program: init waits for it, starts it, sleeps until it ends and tells how.

Most boxes never see anything else, and so there is nothing else in them: no agent, no protocol, no buffers. The streams
of the program are the host's own; orders and reports pass a socket that no program ever holds. The first order is the
program, unless that came with the box; later ones are signals for it. Each is a map, unpacked by the interpreter
itself: it comes from the host, which may order anything. A report is a few numbers.

A program that came with the box and is a copy of this interpreter is forked before anything else is done: it gets ready
on one processor while the box is set up on another, and waits at a gate until that is done. No code of the user is in
reach of either by then.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import marshal
import os
import resource
import select
from struct import Struct

from tidebox.agent import child
from tidebox.agent.users import User

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Callable

    from tidebox.agent.setup import Setup

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
_LARGEST_ORDER = 128 * 1024
_OWN_SCORE = b"0"


class Defaults:
    """What every program of a box has unless its order says otherwise."""

    __slots__ = ("env", "rlimits", "user")

    def __init__(self, env: dict[bytes, bytes], rlimits: Sequence[tuple[int, int, int]], user: User) -> None:
        self.env = env
        self.rlimits = rlimits
        self.user = user


class Single:
    """The one program of a box. Made before the box, which only adds its descriptors."""

    _control: int
    _stdio: Sequence[int]
    _oom_score: int
    _ids: tuple[int, int]

    def __init__(self, setup: Setup, defaults: Defaults) -> None:
        self._setup = setup
        self._defaults = defaults
        self._signals = sorted({*child.changed_signals(), _signal.SIGCHLD})
        self.pid = 0
        self._failed = -1
        self._start: child.Start | None = None
        self._gate = -1

    def equip(self, control: int, stdio: Sequence[int], oom_score: int) -> None:
        """Take over the descriptors of a box; ``oom_score`` is the file that sets init's own."""
        self._control = control
        self._stdio = stdio
        self._oom_score = oom_score

    def begin(self, order: bytes, prepare: Callable[[], None]) -> None:
        """Take the order that came with the box; what is forked from this process is forked now.

        It does ``prepare`` and waits until the box stands.
        """
        start = self._parse(order)
        if not self._is_builtin(start):
            self._start = start
            return
        gate, self._gate = os.pipe()
        self._failed, status = os.pipe()
        if not self._fork():
            os.close(self._gate)

            def wait() -> None:
                prepare()
                if not os.read(gate, 1):
                    os._exit(0)  # there will be no box

            child.become(start, self._setup, status, self._signals, wait)
        os.close(status)
        os.close(gate)

    def box_stands(self) -> list[int]:
        """Init is what it will be, and its program may come; the descriptors to keep."""
        self._ids = (os.getuid(), os.getgid())
        if self._gate >= 0:
            try:
                os.write(self._gate, b"+")
            except BrokenPipeError:
                pass  # it is dead already, which is reported as any other end
        return [fd for fd in (self._oom_score, self._failed) if fd >= 0]

    def serve(self) -> int:
        """Start the program that is ordered, report its end and obey until the host is gone; the exit code of pid 1."""
        if not self.pid and self._start is None:
            order = os.read(self._control, _LARGEST_ORDER)
            if not order:
                return 0
            self._start = self._parse(order)
        # What is done before a fork is not paid for in copied pages after it.
        wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        # The handler does nothing: a flood of signals would call it within itself.
        _signal.signal(_signal.SIGCHLD, _ignore)
        _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        if self._start is not None:
            self._run(self._start)
        for fd in self._stdio:
            os.close(fd)
        self._attend(poll, wake)
        return 0

    def _attend(self, poll: select.poll, wake: int) -> None:
        # A program that came with the box may have ended before anybody listened. And what the end of another will
        # touch is this process's own by then, and not copied while somebody waits for the report.
        self._reap()
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    os.read(wake, 4096)
                    self._reap()
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        """Whether there still is a host to obey."""
        order = os.read(self._control, _LARGEST_ORDER)
        if order and self.pid:
            number = marshal.loads(order)["signal"]
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                os.kill(self.pid, number)  # it does not lead its group yet
        return bool(order)

    def _parse(self, order: bytes) -> child.Start:
        program = marshal.loads(order)
        defaults = self._defaults
        rlimits = defaults.rlimits
        if program["cpu"]:
            rlimits = [*rlimits, child.rlimit("cpu", program["cpu"], program["cpu"] + 1)]
        env = {**defaults.env, **program["env"]} if program["env"] else defaults.env
        start = child.Start(program["argv"], env, program["cwd"], defaults.user, rlimits, False)
        start.stdio = (self._stdio[0], self._stdio[1], self._stdio[2])
        return start

    def _is_builtin(self, start: child.Start) -> bool:
        return child.find_builtin(start.argv[0], self._setup.builtins) is not None

    def _run(self, start: child.Start) -> None:
        if not self._is_builtin(start):
            self._spawn(start)
            return
        self._failed, status = os.pipe()
        if not self._fork():
            child.become(start, self._setup, status, self._signals)
        os.close(status)

    def _fork(self) -> int:
        """A child that goes first when memory runs out, as user code does, and init last."""
        os.write(self._oom_score, child.OOM_SCORE)
        self.pid = os.fork()
        if self.pid:
            os.write(self._oom_score, _OWN_SCORE)
        return self.pid

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
            self._setup.load_filter()
            os.write(self._oom_score, child.OOM_SCORE)
            step = child.STEP_USER
            self._be(start.user.uid, start.user.gid)
            step = child.STEP_EXEC
            self.pid = self._search(start)
        except OSError as error:
            self._tell(step, error.errno or errno.EIO)
        except ValueError:
            self._tell(step, errno.EINVAL)
        finally:
            self._be(*self._ids)
            os.write(self._oom_score, _OWN_SCORE)

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

    def _reap(self) -> None:
        """Take whoever is dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.pid:
                self.pid = 0
                self._report(status)

    def _report(self, status: int) -> None:
        """Tell how the program ended, or that it never began."""
        # The program closed its end, or its dying did: this does not wait.
        failure = os.read(self._failed, 4096) if self._failed >= 0 else b""
        if failure:
            number, step = child.parse_failure(failure)
            self._tell(step, number)
        else:
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_us = int((usage.ru_utime + usage.ru_stime) * 1_000_000)
            self._tell("", status, cpu_us, usage.ru_maxrss * 1024)

    def _tell(self, step: str, number: int, cpu_us: int = 0, max_rss: int = 0) -> None:
        try:
            os.write(self._control, _REPORT.pack(_STEPS.index(step), number, cpu_us, max_rss))
        except OSError:
            pass  # the host is gone, and this box is next


def _ignore(_number: int, _frame: Any) -> None:
    pass
