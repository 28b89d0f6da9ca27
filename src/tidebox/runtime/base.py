"""The contract every runtime keeps: a Runtime opens Boxes, a Box runs Execs.

Life of a box: ``open`` -> ``place`` -> any number of ``exec`` -> ``stop`` (every process dead, workspace kept) ->
``usage``, ``capture``, ``collect`` -> ``close`` (nothing of it exists any more). ``stop`` and ``close`` may be called
at any time and more than once.
"""

from __future__ import annotations

import abc
import asyncio
import enum
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidebox.errors import InvalidRequest
from tidebox.files.trees import Tally, TreeLimits
from tidebox.files.watching import Change
from tidebox.model.events import Event
from tidebox.model.launch import Cell as CellKind
from tidebox.model.launch import Launch
from tidebox.model.limits import Limits
from tidebox.model.result import Outcome, Usage

WORKSPACE = "/workspace"
CANCEL_GRACE_SECONDS = 2.0
STARTUP_SECONDS = 20.0


class Guarantee(enum.Enum):
    """What a policy may rely on. A runtime that cannot give one says so before a box is opened."""

    USER_SEPARATION = "user_separation"
    FILE_SYSTEM = "file_system"
    PRIVATE_FILES = "private_files"
    PROCESSES = "processes"
    NETWORK = "network"
    IPC = "ipc"
    SYSCALL_FILTER = "syscall_filter"
    NO_PRIVILEGES = "no_privileges"
    MEMORY = "memory"
    PIDS = "pids"
    CPU = "cpu"
    DISK = "disk"
    TIME = "time"


class Switch:
    """What is set once; whoever asked for that is called, at once if it was set before."""

    __slots__ = ("_is_set", "_callbacks")

    def __init__(self) -> None:
        self._is_set = False
        self._callbacks: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Set it, for good."""
        self._is_set = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Have something called."""
        if self._is_set:
            callback()
        else:
            self._callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Have it not called any more; nothing happens if it was."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    async def wait(self) -> None:
        """Wait until it is set."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self.on_set(wake)
        try:
            await waiter
        finally:
            self.forget(wake)


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether one guarantee is enforced, how, and otherwise what helps."""

    guarantee: Guarantee
    enforced: bool
    how: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a runtime can do on this machine."""

    runtime: str
    available: bool
    findings: tuple[Finding, ...]
    reason: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[Finding, ...]:
        """The guarantees that cannot be given here."""
        return tuple(finding for finding in self.findings if not finding.enforced)


# What the command of such a box may take, however its characters are written.
_SINGLE_BYTES = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """What kind of box to open."""

    image: str = "host"
    limits: Limits = field(default_factory=Limits)
    executable: bool = True
    """Whether files in /workspace and /tmp may be executed."""
    single: bool = False
    """For one ``Command.single`` and nothing else: the box has no agent, and so no files, terminals or second exec."""
    shared: bool = False
    """Long-lived, with several execs at once: each gets a cgroup leaf of its own. ``limits.memory`` is beside what the
    box's file systems take."""
    sandbox_id: str | None = None
    """Where given, external clients reach the box's agent at ``<data-dir>/run/agents/<sandbox_id>.sock``."""

    def __post_init__(self) -> None:
        if self.single and (self.shared or self.sandbox_id is not None):
            raise ValueError("a box for a single program is nobody else's")
        if self.sandbox_id is not None and not re.fullmatch(r"sb-[a-z0-9]{1,40}", self.sandbox_id):
            raise InvalidRequest(f"not a sandbox id: {self.sandbox_id!r}", field="sandbox_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to start in a box."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORKSPACE
    tty: tuple[int, int] | None = None
    """Rows and columns of a terminal, None for pipes."""
    cpu_seconds: int | None = None

    @property
    def single(self) -> bool:
        """Whether a box for a single program can run it: without a terminal, and in one message."""
        texts = (*self.argv, *self.env, *self.env.values())
        return self.tty is None and sum(8 + 4 * len(text) for text in texts) < _SINGLE_BYTES


@dataclass(frozen=True, slots=True)
class CaptureRule:
    """Which files of the workspace to copy out after the end, and how much of them."""

    patterns: tuple[str, ...]
    max_file_bytes: int = 64 * 1024 * 1024
    max_total_bytes: int = 256 * 1024 * 1024
    max_files: int = 1000
    exclude: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Captured:
    """Files copied out of a workspace."""

    files: dict[str, bytes]
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedFile:
    """A file of a workspace that was copied out, or a link that was only noted."""

    path: str
    size: int
    link_target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTree:
    """Files copied out of a workspace into a directory."""

    files: tuple[CapturedFile, ...]
    skipped: Mapping[str, int]
    """How many that matched were not taken, by the reason."""


class Exec(abc.ABC):
    """A program running in a box."""

    ended: bool
    """Whether it is over, although its last events may not have been read yet."""

    @abc.abstractmethod
    def events(self) -> AsyncIterator[Event]:
        """Started, Output..., Exited: byte-exact, in order within a stream, nothing after Exited."""

    @abc.abstractmethod
    async def write(self, data: bytes) -> None:
        """Send bytes to standard input, waiting while the program does not read."""

    @abc.abstractmethod
    async def end_input(self) -> None:
        """Close standard input."""

    @abc.abstractmethod
    async def signal(self, number: int) -> None:
        """Signal the program's process group (SIGKILL in a shared box: everything it started)."""

    @abc.abstractmethod
    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What ``stat`` tells of a file in a box."""

    path: str
    kind: str
    size: int
    mode: int
    modified: float


class Files(abc.ABC):
    """The files of a live box, as its user sees them."""

    @abc.abstractmethod
    def read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes of a regular file."""

    @abc.abstractmethod
    async def write(
        self, path: str, data: bytes | AsyncIterator[bytes], mode: int = 0o644, offset: int | None = None
    ) -> int:
        """Create or replace a file, or with ``offset`` write into it from there; the number of bytes written."""

    @abc.abstractmethod
    async def stat(self, path: str, follow: bool = False) -> FileInfo:
        """What is at ``path``: a symbolic link itself, or with ``follow`` its target."""

    @abc.abstractmethod
    async def list(self, path: str) -> list[FileInfo]:
        """The entries of a directory."""

    @abc.abstractmethod
    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents."""

    @abc.abstractmethod
    async def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or a directory with everything in it."""

    @abc.abstractmethod
    async def rename(self, source: str, target: str) -> None:
        """Move a file or directory, replacing a file at the target."""


class Watch(abc.ABC):
    """Tells what changes in a directory of a box's workspace, from the moment on that there is one."""

    @abc.abstractmethod
    async def changes(self) -> list[Change]:
        """Wait for changes, whose paths are relative to the workspace; none is the end: the directory itself is gone.

        Raises ``BoxGone``, and ``LimitOutOfRange`` where more is to be watched than may be.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Watch nothing any more."""


class Box(abc.ABC):
    """One live isolated environment."""

    id: str
    image_digest: str
    first: Exec | None = None
    """The exec that was started with the box, where one was asked for."""

    @property
    @abc.abstractmethod
    def gone(self) -> bool:
        """Whether the box's init is dead."""

    @abc.abstractmethod
    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the box's init dies."""

    @abc.abstractmethod
    async def adjust(self, limits: Limits) -> None:
        """Change the limits that are no mount or start state, and count usage from now on."""

    @property
    @abc.abstractmethod
    def files(self) -> Files:
        """The box's file operations."""

    @abc.abstractmethod
    async def watch(self, path: str, recursive: bool) -> Watch:
        """Be told of changes in a directory of the workspace; no program of the box takes part in it.

        Raises ``FileOperationFailed``, ``LimitOutOfRange``, ``QuotaExceeded`` and ``BoxGone``.
        """

    @abc.abstractmethod
    async def exec(self, command: Command) -> Exec:
        """Start a program."""

    @abc.abstractmethod
    async def freeze(self) -> None:
        """Stop every process where it stands."""

    @abc.abstractmethod
    async def thaw(self) -> None:
        """Let them go on."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """Kill every process and wait until all are dead; the workspace stays."""

    @abc.abstractmethod
    async def usage(self) -> Usage:
        """What the box has used so far."""

    @abc.abstractmethod
    async def place(self, source: Path) -> Tally:
        """Copy a directory of ours into the workspace of a box in which no program was started yet."""

    @abc.abstractmethod
    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write files, by their paths in the workspace, while no program was started yet."""

    @abc.abstractmethod
    async def capture(self, rule: CaptureRule) -> Captured:
        """Copy files out of a stopped box's workspace."""

    @abc.abstractmethod
    async def capture_into(self, target: Path, rule: CaptureRule) -> CapturedTree:
        """Copy files out of a stopped box's workspace into an empty directory, each at its own path."""

    @abc.abstractmethod
    async def collect(self, target: Path, limits: TreeLimits) -> Tally:
        """Copy a stopped box's whole workspace into an empty directory."""

    @abc.abstractmethod
    def begin_close(self) -> asyncio.Task[None]:
        """Leave nothing of the box; the task is over when no process is left and the rest is on its way out, however
        often it is asked for."""

    async def close(self) -> None:
        """The same, and wait for it."""
        await asyncio.shield(self.begin_close())


class Runtime(abc.ABC):
    """A way to isolate."""

    name: str

    @abc.abstractmethod
    def parking(self, kind: CellKind, image: str, at_once: bool = False) -> Command:
        """The command that parks an interpreter of ``kind`` in a box of ``image``; ``at_once`` if its program waits."""

    @abc.abstractmethod
    async def probe(self) -> Report:
        """What this runtime can enforce on this machine, found by trying."""

    @abc.abstractmethod
    async def open(
        self, spec: BoxSpec, *, first: Command | None = None, first_input: bytes = b"", spare: bool = False
    ) -> Box:
        """A fresh box, or an error that names what could not be done.

        ``first`` is started in it without waiting for anything in between, and given ``first_input``: ``box.first``.
        A ``spare`` box is used from when it is adjusted.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Close every box and leave nothing behind."""


Sink = Callable[[Event], Awaitable[None]]
BoxHook = Callable[[Box], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run."""

    launch: Launch
    spec: BoxSpec
    stdin: bytes | AsyncIterator[bytes] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    capture: CaptureRule | None = None
    tty: tuple[int, int] | None = None
    prepare: BoxHook | None = None
    """Called with the box before the program is started."""
    harvest: BoxHook | None = None
    """Called with the box when every process in it is dead and before it is closed."""
    cancel_grace: float = CANCEL_GRACE_SECONDS
    """How long the program may go on after it was told to end."""
    kill: Switch | None = None
    """When set, the program is ended at once, without that grace."""
    startup_timeout: float = STARTUP_SECONDS
    """How long it may take until the program is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How it ended."""

    outcome: Outcome
    exit_code: int | None
    signal: int | None
    usage: Usage
    captured: Captured | None


class Runner(abc.ABC):
    """Runs one order at a time in a fresh box each: what the broker sees of the runtimes."""

    @abc.abstractmethod
    async def run(self, order: Order, sink: Sink, cancel: Switch | None = None) -> Ending:
        """Run ``order``; events go to ``sink`` as they come. Raises only for failures that are not the program's."""
