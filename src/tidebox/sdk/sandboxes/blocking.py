"""Access to sandboxes, and what can be done in them, for threads: blocking facades of the classes for asyncio.

Tokens have to be refreshed while nobody calls, so there is a thread for that.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Self, overload

from tidebox.model.principal import ClientSource
from tidebox.sdk.file_content import LocalPath
from tidebox.sdk.loop_thread import BlockingFacade, ClosingFacade, LoopThread, blocking
from tidebox.sdk.sandboxes.access import AsyncAccess
from tidebox.sdk.sandboxes.files import AsyncFiles
from tidebox.sdk.sandboxes.process import AsyncProcess
from tidebox.sdk.sandboxes.results import Chunk, Ending
from tidebox.sdk.sandboxes.sandbox import AsyncSandbox
from tidebox.sdk.sandboxes.watch import AsyncWatch, Change


class Process(ClosingFacade[AsyncProcess]):
    """A program that runs in a sandbox; iterate over it for its output as it comes.

    One thread reads. Closing it ends the program, unless that was started to go on without anybody.
    """

    write = blocking(AsyncProcess.write)
    end_input = blocking(AsyncProcess.end_input)
    signal = blocking(AsyncProcess.signal)
    resize = blocking(AsyncProcess.resize)

    @property
    def pid(self) -> int:
        """Its number in the sandbox."""
        return self._inner.pid

    @property
    def id(self) -> str | None:
        """The id by which ``attach`` finds it, if it was started to go on without anybody."""
        return self._inner.id

    @property
    def offset(self) -> int:
        """The offset of its next output, of both streams together, after what was read; known if it has an id."""
        return self._inner.offset

    def __iter__(self) -> Iterator[Chunk]:
        while (chunk := self.read()) is not None:
            yield chunk

    def read(self, timeout: float | None = None) -> Chunk | None:
        """The next piece of output; None when the program is over.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds; the program goes on.
        """
        return self._thread.call(self._inner.read, timeout)

    def wait(self, timeout: float | None = None) -> Ending:
        """Wait for its end, and return how it ended; what it still prints until then is passed over.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds; the program goes on.
        """
        return self._thread.call(self._inner.wait, timeout)


class Watch(ClosingFacade[AsyncWatch]):
    """A directory that is watched; iterate over it for what changes there, until it is removed. One thread reads."""

    def __iter__(self) -> Iterator[Change]:
        while (change := self.read()) is not None:
            yield change

    def read(self, timeout: float | None = None) -> Change | None:
        """The next change; None when the directory is not there any more.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds.
        """
        return self._thread.call(self._inner.read, timeout)


class Files(BlockingFacade[AsyncFiles]):
    """File operations in a sandbox. Paths that are not absolute are below ``/workspace``."""

    upload = blocking(AsyncFiles.upload)
    list = blocking(AsyncFiles.list)
    stat = blocking(AsyncFiles.stat)
    mkdir = blocking(AsyncFiles.mkdir)
    remove = blocking(AsyncFiles.remove)
    move = blocking(AsyncFiles.move)
    watch = blocking(AsyncFiles.watch, Watch)

    @overload
    def download(self, path: str) -> bytes: ...

    @overload
    def download(self, path: str, to: LocalPath | BinaryIO) -> int: ...

    def download(self, path: str, to: LocalPath | BinaryIO | None = None) -> bytes | int:
        """Read a file: its content or, where it is to be written to a path or a file here, its size.

        A file at a path is replaced when all has come, and left as it was when not.
        """
        if to is None:
            return self._thread.call(lambda: self._inner.download(path))
        return self._thread.call(lambda: self._inner.download(path, to))


class Sandbox(ClosingFacade[AsyncSandbox]):
    """A box that lives on between programs, with a workspace that they share.

    The last who holds it and closes it releases it, with all that is in it, unless it is to be kept.
    """

    exec = blocking(AsyncSandbox.exec)
    start = blocking(AsyncSandbox.start, Process)
    shell = blocking(AsyncSandbox.shell, Process)
    attach = blocking(AsyncSandbox.attach, Process)

    def __init__(
        self, thread: LoopThread, sandbox: AsyncSandbox, *, access: AsyncAccess | None = None, owns_thread: bool = False
    ) -> None:
        super().__init__(thread, sandbox)
        self._access = access
        self._owns_thread = owns_thread
        self.files = Files(thread, sandbox.files)

    @classmethod
    def connect(cls, config: Mapping[str, Any], *, connect_timeout: float = 10.0, source: ClientSource = "SDK") -> Self:
        """The sandbox that somebody else negotiated, as the configuration of a run has it in ``configurable.sandbox``.

        Its token is refreshed if ``refresh_url`` is there. Closing it does not release it, which is for the one who
        negotiated it.
        """
        thread = LoopThread()
        try:
            sandbox = thread.call(lambda: AsyncSandbox.connect(config, connect_timeout=connect_timeout, source=source))
        except BaseException:
            thread.close()
            raise
        return cls(thread, sandbox, owns_thread=True)

    @classmethod
    def create(
        cls,
        scope_id: str | None = None,
        *,
        server: str | None = None,
        api_key: str | None = None,
        packages: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        egress: Sequence[str] | Mapping[str, Any] | None = None,
        keep: bool = False,
        source: ClientSource = "SDK",
    ) -> Self:
        """A sandbox of a server, found as every client finds one; new, or that of a thread if ``scope_id`` names one.

        It has the ``packages``, of Python or by language, and its programs reach what ``egress`` says, hosts or all
        that a request may say, if it is made. It is released when it is closed, unless it is to be kept.
        """
        thread = LoopThread()
        access = AsyncAccess(server, api_key=api_key, source=source)
        try:
            name = scope_id or f"sandbox-{secrets.token_hex(8)}"
            sandbox = thread.call(lambda: access.ensure(name, packages=packages, egress=egress, keep=keep))
        except BaseException:
            thread.finish(access.close)
            thread.close()
            raise
        return cls(thread, sandbox, access=access, owns_thread=True)

    @property
    def id(self) -> str:
        """The sandbox's name."""
        return self._inner.id

    @property
    def session_id(self) -> str | None:
        """The binding through which it was got."""
        return self._inner.session_id

    @property
    def capabilities(self) -> frozenset[str] | None:
        """The capabilities of its grant; None where the server did not say."""
        return self._inner.capabilities

    @property
    def recreated(self) -> bool:
        """Whether there was another sandbox before, which is lost with all that was in it."""
        return self._inner.recreated

    def release(self) -> None:
        """End it now, with all that is in it, also for others who hold it."""
        self._thread.call(self._inner.release)
        self.close()

    def close(self) -> None:
        """Be done with it. The last who holds it releases it, with all that is in it, unless it is to be kept."""
        super().close()
        if self._access is not None:
            self._thread.finish(self._access.close)
        if self._owns_thread:
            self._thread.close()


class Access(ClosingFacade[AsyncAccess]):
    """Asks a server for sandboxes, and keeps one grant for each scope, shared by all callers in this process.

    The arguments are those of ``AsyncAccess``.
    """

    acquire = blocking(AsyncAccess.acquire, Sandbox)
    ensure = blocking(AsyncAccess.ensure, Sandbox)
    get = blocking(AsyncAccess.get, Sandbox)
    open = blocking(AsyncAccess.open, Sandbox)
    list = blocking(AsyncAccess.list)
    release = blocking(AsyncAccess.release)

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        source: ClientSource = "SDK",
    ) -> None:
        access = AsyncAccess(url, api_key=api_key, connect_timeout=connect_timeout, source=source)
        super().__init__(LoopThread(), access)

    def close(self) -> None:
        """Release the sandboxes that are still held, but for those to keep, and end the connections."""
        super().close()
        self._thread.close()
