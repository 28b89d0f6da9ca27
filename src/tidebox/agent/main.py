"""The agent itself: boot sequence, dispatch of the host's messages, shutdown."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import gc
import os
import time

from tidebox.agent import flow, paths
from tidebox.agent.files import FileService
from tidebox.agent.host_channel import HostChannel
from tidebox.agent.loop import HANGUP, READ, Loop, Timer
from tidebox.agent.outbox import HostGone, HostOutbox, Pipes
from tidebox.agent.processes import AgentProcesses
from tidebox.agent.tcp import Tcp
from tidebox.agent.users import UnknownUser
from tidebox.wire import messages
from tidebox.wire.bulk import KIND_FS, BulkCancel, BulkCredit, BulkFinish, BulkRecord
from tidebox.wire.connection import AgentConnection, Inbound, Invalid
from tidebox.wire.errors import FrameError, WireError
from tidebox.wire.files import FsData, FsRequest
from tidebox.wire.generations import FLOW_CONTROL_GENERATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from tidebox.agent.init_setup import InitSetup
    from tidebox.wire.fields import Message

# How long the host may take for each step of the boot sequence.
BOOT_SECONDS = 60
# Between SIGTERM and SIGKILL when the box is shut down: within the 2 s that the relay gives the agent.
SHUTDOWN_GRACE_SECONDS = 1.0

_START_NS = time.monotonic_ns()
_MICROVM_ONLY = (
    "block_root",
    "dir_mounts",
    "file_mounts",
    "disk_mounts",
    "tmpfs_mounts",
    "hostname",
    "host_alias",
    "network",
    "handoff_init",
)


def serve(setup: InitSetup) -> int:
    """Serve the host until it shuts the agent down or is gone; the exit code for pid 1."""
    # Whatever this process inherited, programs do not.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    return Agent(setup).serve()


class Agent:
    """Reads the host's messages and gives each to the part that serves it.

    Made without a descriptor, so that a warm process can make it before the box exists and every clone inherits it:
    what
    is not built there is not paid for by the program that waits. ``setup`` may be completed until ``serve`` is called.
    """

    def __init__(self, setup: InitSetup) -> None:
        self.status = 0
        self.setup = setup
        self._boot_ns = time.monotonic_ns()
        self._loop = Loop()
        self._connection = AgentConnection(setup.generation)
        self._outbox = HostOutbox(self._loop)
        self._host = HostChannel(self._connection, self._outbox)
        self._brake = flow.InputBrake(self._loop)
        self._processes = AgentProcesses(setup, self._host, self._loop, self._brake)
        opener = paths.PathOpener(lambda: setup.oom_score_fd)
        self._files = FileService(self._host, self._loop, opener, lambda: self._processes.default_user)
        self._tcp = Tcp(self._host, self._loop, self._brake)
        self._running = True
        self._stopping = False
        # The step of the boot sequence that comes next; None once the agent is ready.
        self._boot: Callable[[Inbound], None] | None = None
        self._boot_timer: Timer | None = None
        self._handlers: dict[type[Message], Callable[[Inbound, Any], None]] = {
            messages.ExecRequest: self._exec,
            messages.ExecStdin: lambda item, message: self._processes.stdin(item.id, message.data),
            messages.ExecSignal: lambda item, message: self._processes.signal(item.id, message.signal),
            messages.ExecResize: lambda item, message: self._processes.resize(item.id, message.rows, message.cols),
            messages.ExecOutputAck: lambda item, message: self._processes.acknowledged(item.id, message.consumed),
            FsRequest: self._fs_request,
            FsData: lambda item, message: self._files.data(item.id, message.data),
            messages.TcpConnect: self._tcp_connect,
            messages.TcpData: lambda item, message: self._tcp.data(item.id, message.data),
            messages.TcpEof: lambda item, _message: self._tcp.eof(item.id),
            messages.TcpClose: lambda item, _message: self._tcp.close(item.id),
            BulkCredit: self._bulk_control,
            BulkFinish: self._bulk_control,
            BulkCancel: self._bulk_control,
            messages.Ping: lambda item, _message: self._host.send(item.id, messages.Pong()),
            messages.Touch: self._touch,
            messages.RelayClientDisconnected: self._disconnected,
            messages.Shutdown: lambda _item, _message: self._shut_down(),
            messages.ClockSync: _nothing,  # the box shares the clock of its host and may not set it
            messages.InitAck: _nothing,
            messages.WorkloadFreeze: self._unavailable,
            messages.WorkloadThaw: self._unavailable,
            messages.RootDiskPrepare: self._unavailable,
            messages.RootDiskGrow: self._unavailable,
        }
        self._greeting = b""
        if isinstance(setup.bootstrap, messages.Bootstrap):
            # The spawner passed it at the start: nothing to wait for, and nothing left to be found out.
            self._processes.configure(setup.bootstrap)
            self._greeting = self._connection.encode(self._ready_message(), 0)

    def serve(self) -> int:
        """Take over the descriptors of ``setup`` and serve; the exit code for pid 1."""
        os.umask(0o022)
        # Python's own handler would turn a signal from inside the box into an exception in its init.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        self._open()
        try:
            self.run()
        except HostGone:
            pass
        finally:
            self.end()
        return self.status

    def _open(self) -> None:
        # The warm process that this one may be a clone of has switched it off; what it had then is frozen and stays
        # shared.
        gc.enable()
        setup = self.setup
        self._sock = Pipes(setup.sock, setup.out) if setup.out is not None else _socket.socket(fileno=setup.sock)
        self._sock.setblocking(False)
        for fd in (setup.sock, setup.out, setup.oom_score_fd):
            if fd is not None:
                os.set_inheritable(fd, False)
        self._loop.open()
        self._outbox.connect(self._sock)
        self._processes.open()
        self._loop.watch(self._sock.fileno(), READ, self._receive)
        if self._greeting:
            self._outbox.put((self._greeting,))
            return
        self._boot_timer = self._loop.later(BOOT_SECONDS, self._boot_timed_out)
        if not setup.bootstrap:
            self._ready()
        elif setup.generation >= messages.Bootstrap.GENERATION:
            self._boot = self._bootstrap
        else:
            # Older generations are configured by the process that starts them.
            self._resolved()

    def run(self) -> None:
        """Rounds of the loop until the end; everything a round produced is sent together."""
        self._outbox.flush()
        while self._running:
            self._loop.turn()
            self._outbox.flush()
            self._outbox.listen(not (self._outbox.swamped or self._brake.on))

    def end(self) -> None:
        """Kill what is left and close the connection."""
        self._processes.kill_all()
        self._loop.close()
        self._sock.close()

    # Receiving

    def _receive(self, events: int) -> None:
        if not events & READ:
            if events & HANGUP:
                raise HostGone("hung up")
            return
        reader = self._connection.reader
        try:
            count = self._sock.recv_into(reader.buffer())
        except BlockingIOError:
            return
        except OSError as error:
            raise HostGone(f"receive: {error}") from error
        if not count:
            raise HostGone("end of stream")
        reader.received(count)
        try:
            item = self._connection.next_item()
            while item is not None:
                self._take(item)
                item = self._connection.next_item()
        except FrameError as error:
            self.status = 1
            raise HostGone(str(error)) from error

    def _take(self, item: Inbound | Invalid | BulkRecord) -> None:
        if isinstance(item, Inbound):
            if self._boot is not None:
                self._boot(item)
                return
            handler = self._handlers.get(type(item.message))
            if handler is not None:
                if not isinstance(item.message, (messages.Ping, messages.ClockSync)):
                    self._host.activity += 1
                try:
                    handler(item, item.message)
                except (OSError, MemoryError, WireError) as error:
                    # Nothing left to serve it with (descriptors, memory): it fails alone.
                    self._refuse(item.id, messages.CAPABILITY_UNAVAILABLE, str(error), item.message)
        elif isinstance(item, Invalid):
            if item.answerable:
                self._host.send(item.id, item.answer())
        elif self._boot is None:
            self._host.activity += 1
            (self._files if item.kind == KIND_FS else self._tcp).record(item)

    def _refuse(self, id: int, kind: str, text: str, message: Message) -> None:
        self._host.send(id, messages.Error(kind=kind, message=text, offending_type=message.WIRE))

    # Boot

    def _bootstrap(self, item: Inbound) -> None:
        bootstrap = item.message
        if not isinstance(bootstrap, messages.Bootstrap):
            self._fail_boot(item, "the first message must be core.bootstrap")
            return
        asked = [name for name in _MICROVM_ONLY if getattr(bootstrap, name)]
        if asked:
            self._fail_boot(item, f"this agent sets up none of: {', '.join(asked)}")
            return
        try:
            self._processes.configure(bootstrap)
        except (UnknownUser, ValueError) as error:
            self._fail_boot(item, str(error))
            return
        self._resolved()

    def _resolved(self) -> None:
        user = self._processes.default_user
        self._host.send(0, messages.InitResolved(default_user=messages.DefaultUser(uid=user.uid, gid=user.gid)))
        self._cancel_boot_timer()
        self._boot_timer = self._loop.later(BOOT_SECONDS, self._boot_timed_out)
        self._boot = self._acknowledged

    def _acknowledged(self, item: Inbound) -> None:
        if not isinstance(item.message, messages.InitAck) or item.message.failure:
            self._fail_boot(item, "expected core.init.ack")
            return
        self._boot = None
        self._ready()

    def _ready(self) -> None:
        self._cancel_boot_timer()
        self._host.send(0, self._ready_message())

    def _cancel_boot_timer(self) -> None:
        if self._boot_timer is not None:
            self._boot_timer.cancel()

    def _ready_message(self) -> messages.Ready:
        limits = messages.EXEC_LIMITS if self.setup.generation >= FLOW_CONTROL_GENERATION else None
        now = time.monotonic_ns()
        return messages.Ready(
            boot_time_ns=self._boot_ns - _START_NS,
            init_time_ns=now - self._boot_ns,
            ready_time_ns=now - _START_NS,
            exec_limits=limits,
        )

    def _fail_boot(self, item: Inbound, text: str) -> None:
        self._refuse(item.id, messages.INITIALIZATION_FAILED, text, item.message)
        self._stop(1)

    def _boot_timed_out(self) -> None:
        self._stop(1)

    # Requests

    def _exec(self, item: Inbound, request: messages.ExecRequest) -> None:
        if self._is_free(item):
            self._processes.start(item.id, request, item.generation)

    def _is_free(self, item: Inbound) -> bool:
        """A new operation needs an id of its own, and an agent that is not about to end."""
        services = (self._processes, self._files, self._tcp)
        if item.id == 0 or any(service.knows(item.id) for service in services):
            self._refuse(item.id, messages.INVALID_SESSION, f"id {item.id} is in use", item.message)
            return False
        return not self._stopping

    def _fs_request(self, item: Inbound, request: FsRequest) -> None:
        if self._is_free(item):
            self._files.request(item.id, request)

    def _tcp_connect(self, item: Inbound, request: messages.TcpConnect) -> None:
        if self._is_free(item):
            self._tcp.connect(item.id, request)

    def _bulk_control(self, item: Inbound, message: BulkCredit | BulkFinish | BulkCancel) -> None:
        """For a transfer that has ended meanwhile it comes too late, and nothing is owed."""
        transfer = (self._files if message.kind == KIND_FS else self._tcp).bulk(item.id)
        if transfer is None:
            return
        if isinstance(message, BulkCredit):
            transfer.credit(message)
        elif isinstance(message, BulkFinish):
            transfer.finish(message)
        else:
            transfer.cancelled()

    def _touch(self, item: Inbound, _message: messages.Touch) -> None:
        self._host.send(item.id, messages.Touched(activity_seq=self._host.activity))

    def _disconnected(self, _item: Inbound, message: messages.RelayClientDisconnected) -> None:
        for service in (self._processes, self._files, self._tcp):
            service.disconnected(message.id_start, message.id_end_exclusive)

    def _unavailable(self, item: Inbound, message: Message) -> None:
        self._refuse(item.id, messages.CAPABILITY_UNAVAILABLE, "not available in this box", message)

    # Shutdown

    def _shut_down(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._processes.signal_all(_signal.SIGTERM)
        self._loop.later(SHUTDOWN_GRACE_SECONDS, lambda: self._stop(0))
        self._loop.soon(self._stop_when_idle)

    def _stop_when_idle(self) -> None:
        if self._processes.idle:
            self._stop(0)
        else:
            self._loop.later(0.02, self._stop_when_idle)

    def _stop(self, status: int) -> None:
        self.status = status
        self._running = False


def _nothing(_item: Inbound, _message: Message) -> None:
    """For messages that ask for nothing a box can do, and want no answer."""
