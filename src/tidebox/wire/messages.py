"""Every message type of the protocol, with direction, flags and the generation that introduced it."""

from __future__ import annotations

from tidebox.wire.bulk import BulkAccepted, BulkCancel, BulkCredit, BulkFinish, BulkOffer
from tidebox.wire.errors import InvalidPayload
from tidebox.wire.fields import (
    ANY,
    BOOL,
    I32,
    MAP,
    TEXT,
    TEXTS,
    TO_GUEST,
    TO_HOST,
    U8,
    U16,
    U32,
    U64,
    DataMessage,
    ListOf,
    Message,
    Nested,
    Struct,
    field,
)
from tidebox.wire.files import FsData, FsRequest, FsResponse
from tidebox.wire.frames import FLAG_SESSION_START, FLAG_SHUTDOWN, FLAG_TERMINAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from typing_extensions import Self

# core.error kinds.
MALFORMED_MESSAGE = "malformed_message"
UNSUPPORTED_MESSAGE_TYPE = "unsupported_message_type"
UNSUPPORTED_PROTOCOL_GENERATION = "unsupported_protocol_generation"
INVALID_FLAGS = "invalid_flags"
INVALID_PAYLOAD = "invalid_payload"
INVALID_SESSION = "invalid_session"
INITIALIZATION_FAILED = "initialization_failed"
CAPABILITY_UNAVAILABLE = "capability_unavailable"

# What the receiver of output counts per message beside its bytes, so that floods of tiny messages are bounded too.
OUTPUT_ACK_OVERHEAD = 256

MAX_TCP_DATA_SIZE = 65_536


class ExecLimits(Struct):
    """Flow control of execs, advertised in core.ready from generation 10 on."""

    max_executions: int = field(U64)
    input_limit: int = field(U64)
    output_limit: int = field(U64)
    stdin_chunk_size: int = field(U64)
    output_chunk_size: int = field(U64)


# What agents of this generation of ours advertise.
EXEC_LIMITS = ExecLimits(
    max_executions=64, input_limit=1 << 20, output_limit=1 << 20, stdin_chunk_size=65_536, output_chunk_size=65_536
)


class Ready(Message):
    """The agent is up; its ``v`` is the generation it speaks."""

    WIRE, GENERATION, DIRECTION = "core.ready", 1, TO_HOST
    boot_time_ns: int = field(U64)
    init_time_ns: int = field(U64)
    ready_time_ns: int = field(U64)
    agent_version: str = field(TEXT, default="", omit=True)
    exec_limits: ExecLimits | None = field(Nested(ExecLimits), default=None, omit=True)


class DefaultUser(Struct):
    """Ids of the user that code runs as unless told otherwise."""

    uid: int = field(U32)
    gid: int = field(U32)


class InitResolved(Message):
    """The agent has read its bootstrap."""

    WIRE, GENERATION, DIRECTION = "core.init.resolved", 1, TO_HOST
    default_user: DefaultUser = field(Nested(DefaultUser))


class InitAck(Message):
    """The host lets the agent go on to ready."""

    WIRE, GENERATION, DIRECTION = "core.init.ack", 1, TO_GUEST
    failure: bool = field(BOOL, default=False, omit=True)


class Shutdown(Message):
    """End every process and stop; no reply."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.shutdown", 1, TO_GUEST, FLAG_SHUTDOWN

    @classmethod
    def from_item(cls, item: Any, where: str) -> Self:
        """Null, or an empty map from peers that write unit structs so."""
        if item is not None and type(item) is not dict:
            raise InvalidPayload(f"{where}: expected null")
        return cls()

    def to_item(self) -> Any:
        """The empty payload: CBOR null."""
        return None


class RelayClientDisconnected(Message):
    """A relay client is gone: drop what its ids own."""

    WIRE, GENERATION, DIRECTION = "core.relay.client.disconnected", 1, TO_GUEST
    id_start: int = field(U32)
    id_end_exclusive: int = field(U32)
    incarnation: Sequence[int] | None = field(ListOf(U8, 16), default=None, omit=True)


class ClockSync(Message):
    """The host's wall clock; no reply."""

    WIRE, GENERATION, DIRECTION = "core.clock.sync", 1, TO_GUEST
    unix_time_nanos: int = field(U64)


class Ping(Message):
    """Is the agent alive? Does not count as activity."""

    WIRE, GENERATION, DIRECTION = "core.ping", 6, TO_GUEST


class Pong(Message):
    """Answer to Ping."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.pong", 6, TO_HOST, FLAG_TERMINAL


class Touch(Message):
    """Count as activity."""

    WIRE, GENERATION, DIRECTION = "core.touch", 6, TO_GUEST


class Touched(Message):
    """Answer to Touch."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.touched", 6, TO_HOST, FLAG_TERMINAL
    activity_seq: int = field(U64)


class TransportCounts(Struct):
    """Bytes and frames of one direction."""

    control_bytes: int = field(U64)
    control_frames: int = field(U64)
    bulk_bytes: int = field(U64)
    bulk_frames: int = field(U64)


class WorkloadFreeze(Message):
    """Quiesce the guest for a snapshot."""

    WIRE, GENERATION, DIRECTION = "core.workload.freeze", 9, TO_GUEST
    external_mount_tags: Sequence[str] = field(TEXTS, default=())
    attempt_id: str = field(TEXT)
    host_input: TransportCounts = field(Nested(TransportCounts))


class WorkloadFrozen(Message):
    """Answer to WorkloadFreeze."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.workload.frozen", 9, TO_HOST, FLAG_TERMINAL
    attempt_id: str = field(TEXT)
    guest_bulk_bytes_target: int = field(U64)
    input_credit: TransportCounts = field(Nested(TransportCounts))
    external_mounts_synced: bool = field(BOOL, default=False)


class WorkloadThaw(Message):
    """Go on after a freeze; ``mode`` is "continue" or "restore"."""

    WIRE, GENERATION, DIRECTION = "core.workload.thaw", 9, TO_GUEST
    attempt_id: str = field(TEXT)
    mode: str = field(TEXT)


class WorkloadThawed(Message):
    """Answer to WorkloadThaw."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.workload.thawed", 9, TO_HOST, FLAG_TERMINAL
    attempt_id: str = field(TEXT)


class WorkloadTransportCredit(Message):
    """Input the guest still takes while frozen."""

    WIRE, GENERATION, DIRECTION = "core.workload.transport.credit", 9, TO_HOST
    control_bytes: int = field(U64)
    control_frames: int = field(U64)
    bulk_bytes: int = field(U64)
    bulk_frames: int = field(U64)


class RootDiskPrepare(Message):
    """Can the root disk grow to this size?"""

    WIRE, GENERATION, DIRECTION = "core.root_disk.prepare", 9, TO_GUEST
    size_bytes: int = field(U64)


class RootDiskGrow(Message):
    """Grow the root disk."""

    WIRE, GENERATION, DIRECTION = "core.root_disk.grow", 9, TO_GUEST
    size_bytes: int = field(U64)


class RootDiskState(Message):
    """Answer to RootDiskPrepare and RootDiskGrow."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.root_disk.state", 9, TO_HOST, FLAG_TERMINAL
    filesystem_bytes: int = field(U64)
    device_bytes: int = field(U64)


class Error(Message):
    """The agent could not take a message; ends that id."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.error", 5, TO_HOST, FLAG_TERMINAL
    kind: str = field(TEXT)
    message: str = field(TEXT)
    offending_type: str | None = field(TEXT, default=None, omit=True)


class Rlimit(Struct):
    """One resource limit; the name is lower case without RLIMIT_."""

    resource: str = field(TEXT)
    soft: int = field(U64)
    hard: int = field(U64)


class ExecRequest(Message):
    """Start a program."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.exec.request", 1, TO_GUEST, FLAG_SESSION_START
    cmd: str = field(TEXT)
    args: Sequence[str] = field(TEXTS, default=())
    env: Sequence[str] = field(TEXTS, default=())
    cwd: str | None = field(TEXT, default=None)
    user: str | None = field(TEXT, default=None)
    tty: bool = field(BOOL, default=False)
    rows: int = field(U16, default=24)
    cols: int = field(U16, default=80)
    rlimits: Sequence[Rlimit] = field(ListOf(Nested(Rlimit)), default=())


class ExecStarted(Message):
    """The program runs; ``leaf`` names its cgroup leaf."""

    WIRE, GENERATION, DIRECTION = "core.exec.started", 1, TO_HOST
    pid: int = field(U32)
    leaf: str | None = field(TEXT, default=None, omit=True)


class ExecStdin(DataMessage):
    """Input for the program; empty is its end."""

    WIRE, GENERATION, DIRECTION = "core.exec.stdin", 1, TO_GUEST


class ExecStdinError(Message):
    """Input could not be written; the exec goes on."""

    WIRE, GENERATION, DIRECTION = "core.exec.stdin.error", 1, TO_HOST
    errno: int | None = field(I32, default=None)
    errno_name: str | None = field(TEXT, default=None)
    message: str = field(TEXT)


class ExecStdout(DataMessage):
    """Output of the program (of a PTY: all of it)."""

    WIRE, GENERATION, DIRECTION = "core.exec.stdout", 1, TO_HOST


class ExecStderr(DataMessage):
    """Error output of the program."""

    WIRE, GENERATION, DIRECTION = "core.exec.stderr", 1, TO_HOST


class ExecExited(Message):
    """The program is gone and its output was sent; killed by a signal: code -1 and ``signal``."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.exec.exited", 1, TO_HOST, FLAG_TERMINAL
    code: int = field(I32)
    signal: int | None = field(I32, default=None, omit=True)
    usage: Mapping[Any, Any] | None = field(MAP, default=None, omit=True)


class ExecFailed(Message):
    """The program could not be started."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.exec.failed", 1, TO_HOST, FLAG_TERMINAL
    kind: str = field(TEXT)
    errno: int | None = field(I32, default=None)
    errno_name: str | None = field(TEXT, default=None)
    message: str = field(TEXT)
    stage: str | None = field(TEXT, default=None)


class ExecResize(Message):
    """New size of the PTY."""

    WIRE, GENERATION, DIRECTION = "core.exec.resize", 1, TO_GUEST
    rows: int = field(U16)
    cols: int = field(U16)


class ExecSignal(Message):
    """Signal the program's process group."""

    WIRE, GENERATION, DIRECTION = "core.exec.signal", 1, TO_GUEST
    signal: int = field(I32)


class ExecOutputAck(Message):
    """Output consumed so far: the sum of each message's size plus OUTPUT_ACK_OVERHEAD."""

    WIRE, GENERATION, DIRECTION = "core.exec.output.ack", 10, TO_GUEST
    consumed: int = field(U64)


class ExecStdinAck(Message):
    """Input bytes consumed so far."""

    WIRE, GENERATION, DIRECTION = "core.exec.stdin.ack", 10, TO_HOST
    consumed: int = field(U64)


class TcpConnect(Message):
    """Connect from inside the guest."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.tcp.connect", 4, TO_GUEST, FLAG_SESSION_START
    host: str = field(TEXT)
    port: int = field(U16)
    bulk: BulkOffer | None = field(Nested(BulkOffer), default=None, omit=True)


class TcpConnected(Message):
    """The connection stands."""

    WIRE, GENERATION, DIRECTION = "core.tcp.connected", 4, TO_HOST


class TcpData(DataMessage):
    """Bytes of the connection."""

    WIRE, GENERATION, DIRECTION = "core.tcp.data", 4, TO_GUEST | TO_HOST


class TcpEof(Message):
    """The sender's write half is closed."""

    WIRE, GENERATION, DIRECTION = "core.tcp.eof", 4, TO_GUEST | TO_HOST


class TcpClose(Message):
    """Abort the connection; no reply is owed."""

    WIRE, GENERATION, DIRECTION = "core.tcp.close", 4, TO_GUEST


class TcpClosed(Message):
    """Both halves are closed."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.tcp.closed", 4, TO_HOST, FLAG_TERMINAL


class TcpFailed(Message):
    """The connection could not be made, or broke."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.tcp.failed", 4, TO_HOST, FLAG_TERMINAL
    error: str = field(TEXT)


class EnvVar(Struct):
    """One variable of the guest's default environment."""

    key: str = field(TEXT)
    value: str = field(TEXT)


class Bootstrap(Message):
    """The setup the agent makes before it is ready; mounts and network are opaque to agents without own kernel."""

    WIRE, GENERATION, DIRECTION = "core.bootstrap", 7, TO_GUEST
    block_root: Any = field(ANY, default=None, omit=True)
    dir_mounts: Any = field(ANY, default=None, omit=True)
    file_mounts: Any = field(ANY, default=None, omit=True)
    disk_mounts: Any = field(ANY, default=None, omit=True)
    tmpfs_mounts: Any = field(ANY, default=None, omit=True)
    hostname: str | None = field(TEXT, default=None, omit=True)
    host_alias: str | None = field(TEXT, default=None, omit=True)
    network: Any = field(ANY, default=None, omit=True)
    rlimits: Sequence[Rlimit] = field(ListOf(Nested(Rlimit)), default=(), omit=True)
    user: str | None = field(TEXT, default=None, omit=True)
    default_cwd: str | None = field(TEXT, default=None, omit=True)
    default_env: Sequence[EnvVar] = field(ListOf(Nested(EnvVar)), default=(), omit=True)
    security_profile: str = field(TEXT, default="default")
    handoff_init: Any = field(ANY, default=None, omit=True)


# In the order of the schema files, which is frozen: new types go where their generation's file has them.
MESSAGE_TYPES: tuple[type[Message], ...] = (
    Ready,
    InitResolved,
    InitAck,
    Shutdown,
    RelayClientDisconnected,
    ClockSync,
    Ping,
    Pong,
    Touch,
    Touched,
    WorkloadFreeze,
    WorkloadFrozen,
    WorkloadThaw,
    WorkloadThawed,
    WorkloadTransportCredit,
    RootDiskPrepare,
    RootDiskGrow,
    RootDiskState,
    Error,
    BulkAccepted,
    BulkCredit,
    BulkFinish,
    BulkCancel,
    ExecRequest,
    ExecStarted,
    ExecStdin,
    ExecStdinError,
    ExecStdout,
    ExecStderr,
    ExecExited,
    ExecFailed,
    ExecResize,
    ExecSignal,
    ExecOutputAck,
    ExecStdinAck,
    FsRequest,
    FsResponse,
    FsData,
    TcpConnect,
    TcpConnected,
    TcpData,
    TcpEof,
    TcpClose,
    TcpClosed,
    TcpFailed,
    Bootstrap,
)

BY_WIRE_NAME: dict[str, type[Message]] = {message_type.WIRE: message_type for message_type in MESSAGE_TYPES}
