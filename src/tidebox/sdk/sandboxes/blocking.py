"""Access to sandboxes, and what can be done in them, for threads.

Tokens have to be refreshed while nobody calls, so these have a thread of their own, and on it the event loop on which
everything is done by the classes for asyncio. Any number of threads may use them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar, Unpack, overload

from tidebox.sdk.errors import ClientClosed
from tidebox.sdk.sandboxes.access import AsyncAccess
from tidebox.sdk.sandboxes.files import AsyncFiles, Content, LocalPath
from tidebox.sdk.sandboxes.process import AsyncProcess
from tidebox.sdk.sandboxes.requests import Command, ExecOptions, ShellOptions, StartOptions
from tidebox.sdk.sandboxes.results import Chunk, Ending, ExecResult, FileInfo
from tidebox.sdk.sandboxes.sandbox import AsyncSandbox
from tidebox.sdk.sandboxes.sources import ActorType, ScopeType
from tidebox.sdk.sandboxes.watch import AsyncWatch, Change
from tidebox.sdk.target import DEFAULT_URL

Answer = TypeVar("Answer")


class _Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._started = threading.Event()
        # Guards the end: whatever is begun before it is also ended by it.
        self._ending = threading.Lock()
        self._closed = False
        # Whoever forgets to close must still be able to end.
        self._thread = threading.Thread(target=self._run, name="tidebox access", daemon=True)
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._started.set()
        await self._over.wait()

    def call(self, work: Callable[[], Coroutine[Any, Any, Answer]], timeout: float | None = None) -> Answer:
        """Do something there, and wait for it; an interrupt cancels it."""

        async def in_time() -> Answer:
            async with asyncio.timeout(timeout):
                return await work()

        with self._ending:
            if self._closed:
                raise ClientClosed("the client was closed")
            future = asyncio.run_coroutine_threadsafe(in_time(), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed("the client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def finish(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The same for the last that is done with something; nothing, if all is over already."""
        try:
            self.call(work)
        except ClientClosed:
            pass

    def close(self) -> None:
        """End the thread, and what is still done on it."""
        with self._ending:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


class Process:
    """A program that runs in a sandbox; iterate over it for its output as it comes.

    One thread reads. Closing it ends the program, unless that was started to go on without anybody.
    """

    def __init__(self, loop: _Loop, process: AsyncProcess) -> None:
        self._loop = loop
        self._process = process

    @property
    def pid(self) -> int:
        """Its number in the sandbox."""
        return self._process.pid

    @property
    def id(self) -> str | None:
        """What ``attach`` finds it by, if it was started to go on without anybody."""
        return self._process.id

    @property
    def offset(self) -> int:
        """Where its output, of both streams together, goes on after what was read; known if it has an id."""
        return self._process.offset

    def __iter__(self) -> Iterator[Chunk]:
        while (chunk := self.read()) is not None:
            yield chunk

    def read(self, timeout: float | None = None) -> Chunk | None:
        """The next piece of output; None when the program is over.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds; the program goes on.
        """
        return self._loop.call(self._process.read, timeout)

    def wait(self, timeout: float | None = None) -> Ending:
        """How it ended, once it has; what it still prints until then is passed over.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds; the program goes on.
        """
        return self._loop.call(self._process.wait, timeout)

    def write(self, data: bytes | str) -> None:
        """Give it input; waits while it is too far behind with reading."""
        self._loop.call(lambda: self._process.write(data))

    def end_input(self) -> None:
        """Let it read the end of its input."""
        self._loop.call(self._process.end_input)

    def signal(self, name: str) -> None:
        """Signal it: ``INT``, ``TERM``, ``KILL`` and so on."""
        self._loop.call(lambda: self._process.signal(name))

    def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size."""
        self._loop.call(lambda: self._process.resize(rows, columns))

    def close(self) -> None:
        """End the connection, and with it the program, unless that was started to go on without anybody."""
        self._loop.finish(self._process.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Watch:
    """A directory that is watched; iterate over it for what changes there, until it is removed. One thread reads."""

    def __init__(self, loop: _Loop, watch: AsyncWatch) -> None:
        self._loop = loop
        self._watch = watch

    def __iter__(self) -> Iterator[Change]:
        while (change := self.read()) is not None:
            yield change

    def read(self, timeout: float | None = None) -> Change | None:
        """The next change; None when the directory is not there any more.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds.
        """
        return self._loop.call(self._watch.read, timeout)

    def close(self) -> None:
        """Watch no more."""
        self._loop.finish(self._watch.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Files:
    """What can be done with files. Paths that are not absolute are below ``/workspace``."""

    def __init__(self, loop: _Loop, files: AsyncFiles) -> None:
        self._loop = loop
        self._files = files

    def upload(self, path: str, content: Content, *, mode: int | None = None) -> int:
        """Write a file, as a whole or not at all; its size. ``content`` are bytes, the path of a file here, or a file.

        Directories that are missing are made. Without ``mode`` a file that is replaced keeps its permissions.
        """
        return self._loop.call(lambda: self._files.upload(path, content, mode=mode))

    @overload
    def download(self, path: str) -> bytes: ...

    @overload
    def download(self, path: str, to: LocalPath | BinaryIO) -> int: ...

    def download(self, path: str, to: LocalPath | BinaryIO | None = None) -> bytes | int:
        """Read a file: its content or, where it is to be written to a path or a file here, its size.

        A file at a path is replaced when all has come, and left as it was when not.
        """
        if to is None:
            return self._loop.call(lambda: self._files.download(path))
        return self._loop.call(lambda: self._files.download(path, to))

    def list(self, path: str = ".") -> list[FileInfo]:
        """What is in a directory, by name."""
        return self._loop.call(lambda: self._files.list(path))

    def stat(self, path: str) -> FileInfo:
        """What is at a path; a link is not followed."""
        return self._loop.call(lambda: self._files.stat(path))

    def mkdir(self, path: str) -> None:
        """Make a directory, and those above it that are missing."""
        self._loop.call(lambda: self._files.mkdir(path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or an empty directory; with ``recursive``, one with all that is in it."""
        self._loop.call(lambda: self._files.remove(path, recursive=recursive))

    def move(self, source: str, target: str) -> None:
        """Give a file or a directory another path; a file that is there is replaced."""
        self._loop.call(lambda: self._files.move(source, target))

    def watch(self, path: str = ".", *, recursive: bool = False) -> Watch:
        """Watch a directory for what changes in it; with ``recursive``, also in those below it."""
        return Watch(self._loop, self._loop.call(lambda: self._files.watch(path, recursive=recursive)))


class Sandbox:
    """A box that lives on between programs, with a workspace that they share."""

    def __init__(self, loop: _Loop, sandbox: AsyncSandbox, *, owns_loop: bool = False) -> None:
        self._loop = loop
        self._sandbox = sandbox
        self._owns_loop = owns_loop
        self.files = Files(loop, sandbox.files)

    @classmethod
    def connect(cls, config: Mapping[str, Any], *, connect_timeout: float = 10.0) -> Self:
        """The sandbox that somebody else negotiated, as the configuration of a run has it in ``configurable.sandbox``.

        Its token is refreshed if ``refresh_url`` is there. Closing it leaves it to whoever negotiated it.
        """
        loop = _Loop()
        try:
            sandbox = loop.call(lambda: AsyncSandbox.connect(config, connect_timeout=connect_timeout))
        except BaseException:
            loop.close()
            raise
        return cls(loop, sandbox, owns_loop=True)

    @property
    def id(self) -> str:
        """The sandbox's name."""
        return self._sandbox.id

    @property
    def session_id(self) -> str | None:
        """The binding through which it was got."""
        return self._sandbox.session_id

    @property
    def capabilities(self) -> frozenset[str] | None:
        """What may be done in it; None where the server did not say."""
        return self._sandbox.capabilities

    @property
    def recreated(self) -> bool:
        """Whether there was another sandbox before, which is lost with all that was in it."""
        return self._sandbox.recreated

    def exec(self, command: Command, **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a program and wait for its end. A list is a program with its arguments, a text a line for the shell.

        See ``ExecOptions`` for what else can be said. An interrupt kills the program.
        """
        return self._loop.call(lambda: self._sandbox.exec(command, **options))

    def start(self, command: Command, **options: Unpack[StartOptions]) -> Process:
        """Begin to run a program; see ``StartOptions`` for what else can be said."""
        return Process(self._loop, self._loop.call(lambda: self._sandbox.start(command, **options)))

    def shell(self, **options: Unpack[ShellOptions]) -> Process:
        """Open a login shell on a terminal; see ``ShellOptions`` for what else can be said."""
        return Process(self._loop, self._loop.call(lambda: self._sandbox.shell(**options)))

    def attach(self, process_id: str, offset: int = 0) -> Process:
        """Go on with a program that was left running, from that place in its output or the oldest that is kept."""
        return Process(self._loop, self._loop.call(lambda: self._sandbox.attach(process_id, offset)))

    def release(self) -> None:
        """End it now, with all that is in it, whoever else holds it."""
        self._loop.call(self._sandbox.release)
        self.close()

    def close(self) -> None:
        """Be done with it. The last who holds it releases it, with all that is in it, unless it is to be kept."""
        self._loop.finish(self._sandbox.close)
        if self._owns_loop:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Access:
    """Asks a server for sandboxes, and keeps what it grants: one grant for each scope, whoever asks for it here.

    ``url`` is the server's address. Without ``api_key`` the key is that of ``SANDBOX_API_KEY`` or, for a server on
    this machine, the one in its data directory. ``connect_timeout`` is how long a connection may take to be made.
    """

    def __init__(self, url: str = DEFAULT_URL, *, api_key: str | None = None, connect_timeout: float = 10.0) -> None:
        self._access = AsyncAccess(url, api_key=api_key, connect_timeout=connect_timeout)
        self._loop = _Loop()

    def acquire(self, thread_id: str, assistant_id: str | None = None, *, keep: bool = False) -> Sandbox:
        """The sandbox that the server has for a thread of an assistant; it is made if there is none.

        It is released when whoever holds it here has closed it, unless it is to be kept.
        """
        return Sandbox(self._loop, self._loop.call(lambda: self._access.acquire(thread_id, assistant_id, keep=keep)))

    def ensure(
        self,
        scope_id: str,
        *,
        scope_type: ScopeType = "thread",
        capabilities: Collection[str] | None = None,
        actor: ActorType | None = None,
        keep: bool = False,
    ) -> Sandbox:
        """The sandbox of a thread, or of another scope; it is made if there is none.

        ``capabilities`` are what is wanted of ``fs_read``, ``fs_write``, ``exec`` and ``shell``; without them, all that
        is allowed. It is released when whoever holds it here has closed it, unless it is to be kept.
        """
        made = self._loop.call(
            lambda: self._access.ensure(
                scope_id, scope_type=scope_type, capabilities=capabilities, actor=actor, keep=keep
            )
        )
        return Sandbox(self._loop, made)

    def get(
        self,
        scope_id: str,
        *,
        scope_type: ScopeType = "thread",
        capabilities: Collection[str] | None = None,
        actor: ActorType | None = None,
    ) -> Sandbox:
        """The same if there is one, and otherwise ``NotFound``; it is not released by being closed."""
        found = self._loop.call(
            lambda: self._access.get(scope_id, scope_type=scope_type, capabilities=capabilities, actor=actor)
        )
        return Sandbox(self._loop, found)

    def close(self) -> None:
        """Release the sandboxes that are still held, but for those to keep, and end the connections."""
        self._loop.finish(self._access.close)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
