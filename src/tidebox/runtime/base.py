"""The contract every runtime keeps: a Runtime opens Boxes, a Box runs Execs.

Life of a box: ``open`` -> ``place``, ``put`` -> ``exec``, once in the box of a run and any number of times in a
sandbox -> ``stop`` (every process dead, workspace kept) -> ``usage``, ``capture``, ``collect`` -> ``close`` (nothing of
it exists any more). ``stop`` and ``close`` may be called at any time and more than once.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tidebox.errors import UnsupportedOperation
from tidebox.model.box import BoxSpec, Captured, CapturedTree, CaptureRule, Command, FileInfo
from tidebox.model.events import EgressSeen, Event, Preparing
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest, Sink
from tidebox.model.languages import Cell as CellKind
from tidebox.model.limits import Limits
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.result import Usage
from tidebox.model.runtimes import Features, Gauge, ResolvedImage, RuntimeReport, Start
from tidebox.untrusted_files.tree_watch import TreeChange
from tidebox.untrusted_files.trees import Tally, TreeLimits

if TYPE_CHECKING:
    from tidebox.model.requested_egress import BoxEgress


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
        """Signal the program's process group (SIGKILL in a ``sandbox``: everything it started)."""

    @abc.abstractmethod
    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""


class LiveFiles(abc.ABC):
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
        """Return the metadata of ``path``: of a symbolic link itself, or with ``follow`` of its target."""

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

    @abc.abstractmethod
    async def real_path(self, path: str) -> str:
        """The path without links and ``..``; its last name need not exist."""


class BoxWatch(abc.ABC):
    """Tells what changes in a directory of a box's workspace, from the moment on that there is one."""

    @abc.abstractmethod
    async def changes(self) -> list[TreeChange]:
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
    features: Features
    """Of its runtime: which of the optional parts below it has."""
    first: Exec | None = None
    """The exec that was started with the box, where one was asked for."""

    @property
    @abc.abstractmethod
    def gone(self) -> bool:
        """Whether the box's init is dead."""

    @abc.abstractmethod
    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the box's init dies."""

    @property
    @abc.abstractmethod
    def files(self) -> LiveFiles:
        """The file operations of a ``sandbox``."""

    @abc.abstractmethod
    async def exec(self, command: Command) -> Exec:
        """Start a program."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """Kill every process and wait until all are dead; the workspace stays."""

    @abc.abstractmethod
    async def usage(self) -> Usage:
        """Return the resource usage of the box so far."""

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

    # Optional parts: a runtime that lacks one says so by its features, which callers check first.

    async def allow(self, egress: BoxEgress) -> None:
        """Let programs reach what these rules allow, from now on; before that their connections wait.

        Only of a box whose spec ``has_network``; one that is opened with rules has them.
        """
        raise UnsupportedOperation("programs of this box reach no network")

    def on_egress(self, callback: Callable[[EgressSeen], None]) -> None:
        """Call ``callback`` for the connections that programs make and are denied: the first of each kind, and not more
        than a bounded number."""
        raise UnsupportedOperation("programs of this box reach no network")

    async def adjust(self, limits: Limits) -> None:
        """Change the limits that are no mount or start state, and count usage from now on."""
        raise UnsupportedOperation("the limits of this box cannot be changed")

    async def renew(self, limits: Limits) -> None:
        """Be as a fresh box under these limits, but for the workspace, which stays as it is."""
        raise UnsupportedOperation("this box serves one program only")

    async def freeze(self) -> None:
        """Stop every process where it stands."""
        raise UnsupportedOperation("this box cannot be frozen")

    async def thaw(self) -> None:
        """Let them go on."""
        raise UnsupportedOperation("this box cannot be frozen")

    async def watch(self, path: str, recursive: bool) -> BoxWatch:
        """Be told of changes in a directory of the workspace; no program of the box takes part in it.

        Raises ``FileOperationFailed``, ``LimitOutOfRange``, ``QuotaExceeded`` and ``BoxGone``.
        """
        raise UnsupportedOperation("changes in this box cannot be watched")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """Settings of the docker runtime: the container engine, its profiles and its images."""

    host: str | None = None
    """The engine's endpoint; None to look for one in the usual places."""
    seccomp: str | None = None
    """The content of a seccomp profile in place of ours."""
    apparmor_profile: str | None = None
    runtime: str | None = None
    """The OCI runtime with which the engine makes containers; None for the engine's own."""
    allowed_images: tuple[str, ...] = ()
    """Patterns of the images that may be used; none allow every one."""
    prepull: tuple[str, ...] = ()
    """Images to have before anybody asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GvisorSettings:
    """Settings of the gvisor runtime."""

    runsc: str | None = None
    """Path of the ``runsc`` program; None to search for it."""
    platforms: tuple[str, ...] = ()
    """gVisor platforms that may run programs, in the order in which they are tried; none for the usual ones."""


@dataclass(frozen=True, slots=True)
class EgressSettings:
    """Egress settings that all boxes with network access share; the rules of each box are not among them."""

    resolver: str | None = None
    """The DNS resolver, as ``address:port``; None for the one that the machine uses."""
    secrets: Path | None = None
    """The file of secrets, which nobody but the egress process reads."""
    ca_file: Path | None = None
    """Certificates to trust besides the system's."""
    proxy: str | None = field(default=None, repr=False)
    """The proxy through which everything is dialled."""
    connections: int = 256
    """Of one box at once."""
    connections_total: int = 8192
    bytes: int = 16 << 30
    """Sent and received by one box."""
    rate: int = 0
    """Of one box in a second; 0 for as many as there can be."""
    idle: float = 900.0
    """Seconds without a byte after which a connection is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """The settings that runtimes need; each runtime takes those that concern it."""

    data_dir: Path
    agent_sockets: Path
    """Directory of the sockets by which clients reach the agents of sandboxes."""
    python: str | None = None
    """The interpreter of Python programs in the image ``host``, where the one that is found will not do."""
    allow_weak_isolation: bool = False
    allow_nested_filters: bool = False
    max_processes: int = 512
    """RLIMIT_NPROC of boxes that are not made for more."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that tell where programs, the login session and the container engine are."""
    docker: DockerSettings = DockerSettings()
    gvisor: GvisorSettings = GvisorSettings()
    egress: EgressSettings = EgressSettings()


class Runtime(abc.ABC):
    """A way to isolate."""

    name: ClassVar[str]
    boundary: ClassVar[str]
    """The isolation boundary between programs and the machine: one of ``model.runtimes.BOUNDARIES``."""
    shows_host: ClassVar[bool] = False
    """Whether it has the image ``host``; where it has not, that stands for the image of a program's language."""
    external: ClassVar[bool] = False
    """Whether its boxes are made by a program that is no part of this one, and that may come and go meanwhile."""
    lazy: ClassVar[bool] = False
    """Whether to probe it takes so much that it is done only when somebody asks; ``absence`` tells something before."""
    version: str | None = None
    interpreters: Mapping[str, str]
    """The interpreters of its default image: the commands that start them, and where they are."""
    max_processes: int = 0
    """Number of processes that a box may have if it is not made for more."""

    @abc.abstractmethod
    def __init__(self, settings: RuntimeSettings) -> None: ...

    @property
    @abc.abstractmethod
    def features(self) -> Features:
        """Which optional parts of this contract it has on this machine; known for sure once it was probed."""

    @abc.abstractmethod
    def resolve(self, image: str) -> ResolvedImage:
        """Resolve the name of an image; raises ``UnknownImage``."""

    @abc.abstractmethod
    def images(self) -> Sequence[ResolvedImage]:
        """The images it has, its default one first."""

    @abc.abstractmethod
    def parking(self, kind: CellKind, image: str, at_once: bool = False, preload: str = "") -> Command | None:
        """The command that parks an interpreter of ``kind`` in a box of ``image``; ``at_once`` if its program waits.

        ``preload`` is the set of modules that it loads by itself, where it was not forked from what has them. None
        where that interpreter cannot be parked: its programs are then started by their own command.
        """

    def start_of(self, kind: CellKind, image: str) -> Start:
        """Return how interpreters of ``kind`` start in boxes of ``image``, where that works as it is meant to."""
        return "cold" if self.parking(kind, image) is None else "parked"

    def has_command(self, name: str) -> bool:
        """Whether its default image has a command."""
        return name in self.interpreters

    def is_provided(self, image: str) -> bool:
        """Whether the image is known to be there, so that ``provide`` would do nothing."""
        return True

    async def provide(self, image: str, tell: Callable[[Preparing], None]) -> None:  # noqa: B027
        """Have the image there, however long it takes; ``tell`` hears of it. Raises what keeps it from that."""

    def preload_for(self, image: str, source: bytes) -> str:
        """The set of modules that a Python program of this text had best find loaded; empty for none."""
        return ""

    def is_warm(self, spec: BoxSpec) -> bool:
        """Whether what boxes of this kind are forked from is there, with what their programs find loaded."""
        return True

    async def warm(self, spec: BoxSpec) -> None:  # noqa: B027
        """See to that; raises ``TideboxError`` where it cannot be."""

    def absence(self) -> str | None:
        """Return why the runtime cannot work here, as far as one glance tells; None where it may."""
        return None

    async def tidy(self) -> None:  # noqa: B027
        """Remove what dead servers left, where that would wait for somebody to ask for this runtime."""

    @abc.abstractmethod
    async def probe(self) -> RuntimeReport:
        """Find out by trying which guarantees this runtime can enforce on this machine."""

    @abc.abstractmethod
    async def open(
        self, spec: BoxSpec, *, first: Command | None = None, first_input: bytes = b"", spare: bool = False
    ) -> Box:
        """A fresh box, or an error that names what could not be done.

        ``first`` is started in it without waiting for anything in between, and given ``first_input``: ``box.first``.
        A ``spare`` box is used from when it is adjusted.
        """

    def expect_egress(self) -> None:  # noqa: B027
        """Have ready what boxes with a way out need, before the first of them comes."""

    @abc.abstractmethod
    def live_boxes(self) -> int:
        """Return the number of live boxes."""

    def gauges(self) -> Sequence[Gauge]:
        """Return metrics to read at any moment, besides its boxes; no other runtime has gauges of these names."""
        return ()

    @abc.abstractmethod
    async def close(self) -> None:
        """Close every box and leave nothing behind."""


class BoxFiles:
    """The files that the box of an order is given, and those that are kept of it. A base for one that has neither."""

    has_input = False
    """Whether there is something to copy in: then the box cannot be one whose program starts at once."""
    keep_as = ""
    """Under which name its box is kept for the next of that name; empty where it is not."""

    def is_in(self, box: Box) -> bool:
        """Whether the workspace of a box is what would be copied in, and nothing else."""
        return False

    async def copy_in(self, box: Box) -> None:
        """Copy files into a box whose program was not started yet."""

    async def collect(self, box: Box) -> None:
        """Keep files of a box in which every process is dead, before it is closed."""


NO_FILES = BoxFiles()


class Runner(abc.ABC):
    """Runs orders, each in a fresh box: what the broker sees of the runtimes."""

    @abc.abstractmethod
    def run(
        self, order: ExecutionRequest, sink: Sink, cancel: OneShotFlag | None = None, files: BoxFiles = NO_FILES
    ) -> Coroutine[Any, Any, ExecutionOutcome]:
        """Run ``order``; events go to ``sink`` as they come. Raises only for failures that are not the program's."""

    def let_go(self, name: str) -> None:  # noqa: B027
        """Close the box that is kept under a name, if there is one."""
