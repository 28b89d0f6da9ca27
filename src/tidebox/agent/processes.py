"""The processes of a box: starting execs, reaping everything, signals, and the end."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import fcntl
import os
import resource
import sys

from tidebox.agent import child, descendants, pty
from tidebox.agent.execution import AgentExecution, OutputPipe, terminal_stream
from tidebox.agent.flow import MAX_EXECUTIONS
from tidebox.agent.loop import READ
from tidebox.agent.orphan_output import OrphanOutput
from tidebox.agent.spare import Spare
from tidebox.agent.start_failures import CannotStart, failure, stage_of
from tidebox.agent.users import BoxUser, UnknownUser, resolve
from tidebox.wire import cbor
from tidebox.wire.generations import FLOW_CONTROL_GENERATION
from tidebox.wire.messages import ExecExited, ExecRequest, ExecStarted, ExecStderr, ExecStdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tidebox.agent.flow import InputBrake
    from tidebox.agent.host_channel import HostChannel
    from tidebox.agent.init_setup import InitSetup
    from tidebox.agent.loop import Loop
    from tidebox.wire.messages import Bootstrap, Rlimit

DEFAULT_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/workspace",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
}
DEFAULT_DIRECTORIES = ("/workspace", "/")
_TERMINAL_TYPE = "xterm"

# What the host may order of an init that can count for its whole box, as if it were a command: to end every process but
# init, to tell what was used, and to count that from now on.
STOP_BOX, TELL_USAGE, COUNT_FROM_NOW = "tidebox:stop", "tidebox:usage", "tidebox:count"
WHOLE_BOX = (STOP_BOX, TELL_USAGE, COUNT_FROM_NOW)
_SUMS = ("cpu_us", "oom_kills", "pids_refused")

# Larger than the kernel's default, so that a program need not wait for each wake-up of the agent.
_PIPE_BYTES = 256 * 1024
# Linux' fcntl number; the fcntl module has a name for it only from Python 3.10 on.
_F_SETPIPE_SZ = 1031
# After the end of a program, until the agent gets ready for the next.
_TIDY_SECONDS = 0.001
# Zombies taken per round of the loop: a fork bomb's dead must not keep the living waiting.
_REAPED_PER_ROUND = 256


_SAMPLE = cbor.encode(ExecRequest(cmd="/bin/true", args=["true"], env=["NAME=value"]).to_item())


class AgentProcesses:
    """All execs of the box, and the duties of pid 1."""

    def __init__(self, setup: InitSetup, host: HostChannel, loop: Loop, brake: InputBrake) -> None:
        self._setup = setup
        self._host = host
        self._loop = loop
        self._brake = brake
        self._by_id: dict[int, AgentExecution] = {}
        self._by_pid: dict[int, AgentExecution] = {}
        self._leftovers = OrphanOutput(loop)
        self.default_user = BoxUser(setup.user[0], setup.user[1], None)
        self._environment = dict(DEFAULT_ENVIRONMENT)
        self._rlimits: Sequence[Rlimit] = ()
        self._cwd: str | None = None
        self._spare: Spare | None = None
        self._stops: list[int] = []
        self._counted: dict[str, int] = {}
        self._signals = sorted({*child.changed_signals(), _signal.SIGCHLD, _signal.SIGINT})

    def open(self) -> None:
        """Begin to watch the children."""
        # Whatever hid the agent's modules from the programs it forks: wait4 looks for this one, in vain and each time.
        sys.modules.setdefault("resource", resource)
        self._counted = self._count()
        self._watch_children()

    def configure(self, bootstrap: Bootstrap) -> None:
        """Take the defaults of the bootstrap; UnknownUser for a user the box does not have."""
        if bootstrap.user is not None:
            self.default_user = resolve(bootstrap.user, self.default_user)
            if self.default_user.home is not None:
                self._environment["HOME"] = self.default_user.home
        self._environment.update({variable.key: variable.value for variable in bootstrap.default_env})
        self._rlimits = bootstrap.rlimits
        self._cwd = bootstrap.default_cwd

    # Requests

    def knows(self, id: int) -> bool:
        """Whether an exec of that id is under way."""
        return id in self._by_id

    @property
    def idle(self) -> bool:
        """No program is under way."""
        return not self._by_pid

    def start(self, id: int, request: ExecRequest, generation: int) -> None:
        """Start a program; ``generation`` is the one its client speaks."""
        if self._setup.counters is not None and request.cmd in WHOLE_BOX:
            self._about_box(id, request.cmd)
            return
        try:
            self._start(id, request, generation)
        except CannotStart as error:
            self._host.send(id, error.answer())

    def stdin(self, id: int, data: bytes | memoryview) -> None:
        """Input for an exec."""
        execution = self._by_id.get(id)
        if execution is not None:
            execution.stdin(data)

    def resize(self, id: int, rows: int, cols: int) -> None:
        """New terminal size of an exec."""
        execution = self._by_id.get(id)
        if execution is not None:
            execution.resize(rows, cols)

    def acknowledged(self, id: int, consumed: int) -> None:
        """Output consumed by an exec's client."""
        execution = self._by_id.get(id)
        if execution is not None:
            execution.acknowledged(consumed)

    def signal(self, id: int, number: int) -> None:
        """Signal an exec."""
        execution = self._by_id.get(id)
        if execution is None or not 0 < number < _signal.NSIG:
            return
        if execution.running:
            self._kill(execution, number)
        elif number not in execution.early_signals:
            # Its process group does not exist yet.
            execution.early_signals.append(number)

    def disconnected(self, first: int, end: int) -> None:
        """A client is gone: so are its execs, and their ids are free for the next one."""
        for id in [id for id in self._by_id if first <= id < end]:
            execution = self._by_id.pop(id)
            execution.mute()
            if execution.running:
                self._kill(execution, _signal.SIGKILL)
            else:
                execution.early_signals.append(_signal.SIGKILL)

    def signal_all(self, number: int) -> None:
        """Signal every exec."""
        for execution in list(self._by_pid.values()):
            self._kill(execution, number)

    def kill_all(self) -> None:
        """SIGKILL to everything the agent may kill, background processes included."""
        self.signal_all(_signal.SIGKILL)
        if os.getpid() == 1:
            try:
                os.kill(-1, _signal.SIGKILL)
            except ProcessLookupError:
                pass

    # The whole box

    def _about_box(self, id: int, order: str) -> None:
        """Do what the host orders without a process of its own: there may be no room for one."""
        if order == STOP_BOX:
            self.kill_all()
            self._stops.append(id)
            # Those that are dead already are nobody's news any more.
            self.collect()
            return
        if order == COUNT_FROM_NOW:
            self._counted = self._count()
        self._host.send(id, ExecExited(code=0, usage=self.usage()))

    def usage(self) -> dict[str, int]:
        """The resource usage of the whole box since counting began."""
        usage = self._count()
        for name in _SUMS:
            if name in usage:
                usage[name] -= self._counted.get(name, 0)
        # As many as there were when it was made, by whom it was made, say nothing of its programs.
        if usage.get("pids_peak") == self._counted.get("pids_peak"):
            usage.pop("pids_peak", None)
        return usage

    def _count(self) -> dict[str, int]:
        return self._setup.counters() if self._setup.counters is not None else {}

    def _stopped(self) -> None:
        stops, self._stops = self._stops, []
        for id in stops:
            self._host.send(id, ExecExited(code=0, usage=self.usage()))

    # Starting

    def _start(self, id: int, request: ExecRequest, generation: int) -> None:
        if len(self._by_pid) >= MAX_EXECUTIONS:
            raise failure(request, errno.EAGAIN)
        start = self.decide(request)
        opened: list[int] = []
        try:
            execution, theirs = self._open_streams(id, request, generation, start.user, opened)
            start.stdio = theirs
            status, status_write = os.pipe()
            opened += (status, status_write)
            os.set_blocking(status, False)
            spare = self._told(start, status_write)
            if spare is not None:
                pid, execution.leaf = spare.pid, spare.leaf
            else:
                if self._setup.leaves is not None:
                    start.leaf = execution.leaf = self._setup.leaves.make()
                elif self._setup.counters is not None:
                    start.mark = execution.mark = descendants.new_mark()
                pid = os.fork()
        except (OSError, CannotStart) as error:
            for fd in opened:
                os.close(fd)
            if start.leaf is not None and self._setup.leaves is not None:
                self._setup.leaves.remove(start.leaf)
            if isinstance(error, CannotStart):
                raise
            raise failure(request, error.errno or errno.EIO) from error
        if pid == 0:
            child.become(start, self._setup, status_write, self._signals)
        for fd in {*theirs, status_write}:
            os.close(fd)
        execution.pid = pid
        self._by_id[id] = self._by_pid[pid] = execution
        self._loop.watch(status, READ, lambda _events: self._settle(execution, request, status))
        execution.unsettled = lambda: self._settle(execution, request, status)

    def _told(self, start: child.ChildStart, status: int) -> Spare | None:
        """The child that was forked ahead, on its way to the program; None where there is none for it."""
        if self._spare is None or child.find_builtin(start.argv[0], self._setup.builtins) is not None:
            return None
        spare, self._spare = self._spare, None
        if spare.become(start, status):
            return spare
        self._drop(spare)
        return None

    def _drop(self, spare: Spare) -> None:
        spare.close()
        if self._setup.leaves is not None:
            self._setup.leaves.remove(spare.leaf)

    def decide(self, request: ExecRequest) -> child.ChildStart:
        """Turn a request into the start of a child; raises CannotStart when it is invalid."""
        if request.cmd.startswith(child.BUILTIN_PREFIX) and not child.find_builtin(
            request.cmd.encode(), self._setup.builtins
        ):
            raise failure(request, errno.ENOENT, child.STEP_EXEC)
        user = self.default_user
        environment = dict(self._environment)
        if request.user is not None and request.user != self._setup.default_user_name:
            try:
                user = resolve(request.user, self.default_user)
            except UnknownUser as error:
                stage = stage_of(request, child.STEP_USER)
                raise CannotStart("user_setup_failed", None, str(error), stage) from error
            if user.home is not None:
                environment["HOME"] = user.home
        if request.tty:
            environment["TERM"] = _TERMINAL_TYPE
        for variable in request.env:
            name, separator, value = variable.partition("=")
            if not separator or not name:
                raise failure(request, errno.EINVAL, kind="bad_args")
            environment[name] = value
        try:
            limits = (*self._rlimits, *request.rlimits)
            rlimits = [child.rlimit(limit.resource, limit.soft, limit.hard) for limit in limits]
        except ValueError as error:
            stage = stage_of(request, child.STEP_RLIMIT)
            raise CannotStart("bad_args", errno.EINVAL, f"rlimit: {error}", stage) from error
        cwd = request.cwd or self._cwd
        if cwd is None:
            cwd = next(path for path in DEFAULT_DIRECTORIES if os.path.isdir(path))
        argv = [text.encode() for text in (request.cmd, *request.args)]
        env = {name.encode(): value.encode() for name, value in environment.items()}
        return child.ChildStart(argv, env, cwd.encode(), user, rlimits, request.tty)

    def _open_streams(
        self, id: int, request: ExecRequest, generation: int, user: BoxUser, opened: list[int]
    ) -> tuple[AgentExecution, tuple[int, int, int]]:
        """The exec with the agent's ends, and the child's standard streams; ``opened`` collects all of them."""
        terminal: int | None = None
        if request.tty:
            try:
                terminal, slave = pty.open_pair(request.rows, request.cols, user.uid, user.gid)
            except OSError as error:
                raise failure(request, error.errno or errno.EIO, kind="pty_setup_failed") from error
            opened += (terminal, slave)
            # Reading and writing are watched apart from each other, which epoll does per descriptor.
            stdin = os.dup(terminal)
            opened.append(stdin)
            streams = [terminal_stream(terminal)]
            theirs = (slave, slave, slave)
        else:
            stdin_read, stdin = _pipe(opened)
            stdout, stdout_write = _pipe(opened)
            stderr, stderr_write = _pipe(opened)
            for fd in (stdin, stdout, stderr):
                os.set_blocking(fd, False)
            streams = [OutputPipe(stdout, ExecStdout), OutputPipe(stderr, ExecStderr)]
            theirs = (stdin_read, stdout_write, stderr_write)
            try:
                _give(theirs, user)
            except OSError as error:
                raise failure(request, error.errno or errno.EIO, child.STEP_USER) from error
        paced = generation >= FLOW_CONTROL_GENERATION and self._host.speaks(FLOW_CONTROL_GENERATION)
        execution = AgentExecution(
            id, self._host, self._loop, self._brake, streams, terminal, stdin, paced, self._end, self.collect
        )
        return execution, theirs

    def _settle(self, execution: AgentExecution, request: ExecRequest, status: int) -> None:
        """The child either became its program, which closes the status pipe, or says why not."""
        try:
            record = os.read(status, 4096)
        except BlockingIOError:
            return
        self._loop.forget(status)
        os.close(status)
        execution.unsettled = None
        if record:
            execution.send(failure(request, *child.parse_failure(record)).answer())
            self._forget(execution)
            return
        execution.running = True
        leaf = None if execution.leaf is None else str(execution.leaf)
        execution.send(ExecStarted(pid=execution.pid, leaf=leaf))
        for number in execution.early_signals:
            self._kill(execution, number)
        execution.listen()

    # Signals

    def _kill(self, execution: AgentExecution, number: int) -> None:
        if number == _signal.SIGKILL and execution.leaf is not None and self._setup.leaves is not None:
            try:
                self._setup.leaves.kill(execution.leaf)
            except OSError:
                pass  # the process group still gets the signal
        elif number == _signal.SIGKILL and execution.mark is not None:
            descendants.kill(execution.pid, execution.mark)
        try:
            os.killpg(execution.pid, number)
        except OSError:
            pass  # nobody is left in the group

    # Ends

    def _watch_children(self) -> None:
        wake, self._wake_write = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._wake_write, False)
        _signal.signal(_signal.SIGCHLD, lambda _number, _frame: None)
        _signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._loop.watch(wake, READ, lambda _events: self._woken(wake))

    def _woken(self, wake: int) -> None:
        try:
            os.read(wake, 4096)
        except BlockingIOError:
            return
        self.collect()

    def collect(self) -> None:
        """Reap all dead children."""
        for _ in range(_REAPED_PER_ROUND):
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                # Whatever loses its parent becomes a child of init: nobody is left.
                self._stopped()
                return
            if not pid:
                return
            execution = self._by_pid.get(pid)
            if execution is None:
                if self._spare is not None and self._spare.pid == pid:
                    self._drop(self._spare)
                    self._spare = None
                continue
            if execution.unsettled is not None:
                execution.unsettled()
            if pid in self._by_pid:
                execution.ended(status, usage)
        self._loop.soon(self.collect)

    def _end(self, execution: AgentExecution) -> None:
        usage = {}
        if execution.leaf is not None and self._setup.leaves is not None:
            usage = self._setup.leaves.usage(execution.leaf)
        execution.report_exit(usage)
        self._forget(execution)

    def _forget(self, execution: AgentExecution) -> None:
        del self._by_pid[execution.pid]
        if self._by_id.get(execution.id) is execution:
            del self._by_id[execution.id]
        for fd in execution.release():
            self._leftovers.add(fd)
        leaf = execution.leaf
        if leaf is not None:
            # Once the end was reported: this process sleeps, and the reader of the report has the processor.
            self._loop.later(_TIDY_SECONDS, lambda: self._tidy(leaf))

    def _tidy(self, leaf: int) -> None:
        """Remove a leaf, and make ready for the next program where user code cannot get at what is ready."""
        leaves = self._setup.leaves
        if leaves is None:
            return
        leaves.remove(leaf)
        if self._spare is None and os.getuid() != self.default_user.uid:
            number = leaves.make()
            try:
                self._spare = Spare(self._setup, self._signals, number)
            except OSError:
                leaves.remove(number)  # as many processes as there may be
            else:
                self._rehearse(leaves.usage(number))

    def _rehearse(self, usage: dict[str, int]) -> None:
        """Go through a program from its request to its end.

        After a fork each page is copied when it is next written to: that is done now, while nobody waits.
        """
        self.decide(ExecRequest.from_item(cbor.decode(_SAMPLE), ExecRequest.WIRE))
        cbor.encode(ExecStarted(pid=1, leaf="0").to_item())
        cbor.encode(ExecExited(code=0, usage=usage).to_item())


def _give(pipes: Iterable[int], user: BoxUser) -> None:
    """Make them the user's own: a program that opens /dev/stdout anew is let in by the owner of the pipe."""
    if (user.uid, user.gid) != (os.getuid(), os.getgid()):
        for fd in pipes:
            os.fchown(fd, user.uid, user.gid)


def _pipe(opened: list[int]) -> tuple[int, int]:
    read, write = os.pipe()
    opened += (read, write)
    try:
        fcntl.fcntl(write, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass  # above the user's allowance for pipes: the default size works too
    return read, write
