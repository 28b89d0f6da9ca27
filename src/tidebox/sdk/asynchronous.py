"""The asyncio client of the Fathom protocol, which reconnects by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, Unpack

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tidebox.errors import TideboxError
from tidebox.model.principal import ClientSource
from tidebox.protocols.fathom import Status
from tidebox.sdk.closeable import AsyncCloseable
from tidebox.sdk.errors import ClientClosed, ConnectionLost, ServerProtocolError, ServerUnreachable
from tidebox.sdk.fathom_session import ExecuteOptions, FathomSession, PendingExecution, make_request
from tidebox.sdk.reconnection import Reconnection
from tidebox.sdk.result import Health, Output, Result
from tidebox.sdk.server_target import find_target, source_headers
from tidebox.sdk.transport import OPENING_ERRORS, Connect, check_version, closing_error, opening_error, options

_NORMAL, _PROTOCOL_ERROR = 1000, 1002


class AsyncExecution:
    """A program that runs on the server; iterate over it for its output as it comes."""

    def __init__(self, link: _ClientConnection, progress: PendingExecution) -> None:
        self._link = link
        self._progress = progress
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        progress.wake = self._wake

    def _wake(self) -> None:
        self._news.set()
        if self._progress.known.is_over():
            self._over.set()

    @property
    def id(self) -> str:
        """The execution's name on its connection."""
        return self._progress.known.execution_id

    @property
    def status(self) -> Status | None:
        """The state the server last told; None while the program waits for its turn."""
        return self._progress.known.status

    async def __aiter__(self) -> AsyncIterator[Output]:
        while (piece := await self.read()) is not None:
            yield piece

    async def read(self) -> Output | None:
        """The next piece of output; None when the program is over. Raises if the server could not run it to its end."""
        unread, known = self._progress.unread, self._progress.known
        while not unread:
            if known.is_over():
                if known.failure is not None:
                    raise known.failure
                return None
            self._news.clear()
            await self._news.wait()
        return unread.popleft()

    async def result(self) -> Result:
        """Wait for the end, and return the result. Raises if the server could not run it to its end."""
        if not self._progress.known.is_over():
            await self._over.wait()
        return self._progress.known.result()

    async def cancel(self) -> None:
        """Ask the server to end it; its result then says so."""
        await self._link.cancel(self._progress)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Cancel the execution if it still runs."""
        if not self._progress.known.is_over():
            try:
                await self.cancel()
            finally:
                self._link.session.forget(self._progress)


class AsyncClient(AsyncCloseable):
    """A connection to a server, kept up: many executions at once, each by ``run`` or ``start``.

    ``url`` is the server's address, ``api_key`` the key for it; ``tidebox.sdk.server_target`` says what is used without
    them. ``connect_timeout`` is how long a call waits for a connection, ``source`` what kind of program this is, for
    the server's audit log.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        source: ClientSource = "SDK",
    ) -> None:
        source_headers(source)
        self._source = source
        self._target = find_target(url, api_key)
        self._connect_timeout = connect_timeout
        self._reconnection = Reconnection()
        self._link: _ClientConnection | None = None
        self._connection_task: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._opened = asyncio.Event()
        self._last_failure: TideboxError | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def connect(self) -> None:
        """Connect now; without it, the first call does."""
        async with self._opening:
            if self._closed:
                raise ClientClosed("the client was closed")
            if self._connection_task is None or self._connection_task.done():
                link = await self._open()
                self._connection_task = asyncio.get_running_loop().create_task(self._keep(link), name="tidebox client")

    async def close(self) -> None:
        """End the connection; what still runs on it is given up."""
        self._closed = True
        async with self._opening:
            if self._connection_task is not None:
                self._connection_task.cancel()
                await asyncio.wait([self._connection_task])

    async def run(self, code: str, language: str = "python", **options: Unpack[ExecuteOptions]) -> Result:
        """Run ``code`` and wait for its end, with the options of ``start``. Cancelling the call cancels the program."""
        async with await self.start(code, language, **options) as execution:
            return await execution.result()

    async def start(self, code: str, language: str = "python", **options: Unpack[ExecuteOptions]) -> AsyncExecution:
        """Begin to run ``code`` in a fresh box; see ``ExecuteOptions`` for what else can be said."""
        request = make_request(code, language, **options)
        link = await self._connected()
        progress, frame = link.session.execute(request)
        execution = AsyncExecution(link, progress)
        try:
            await link.send(frame)
        except BaseException:
            link.session.forget(progress)
            raise
        return execution

    async def ping(self) -> Health:
        """Ask the server whether it is there, and how busy."""
        link = await self._connected()
        asked = time.perf_counter()
        question, frame = link.session.ping()
        answer = asyncio.Event()
        question.wake = answer.set
        await link.send(frame)
        await answer.wait()
        if question.failure is not None:
            raise question.failure
        return Health(time.perf_counter() - asked, question.load)

    async def _connected(self) -> _ClientConnection:
        """The connection, waiting for it if it is being made again."""
        if (link := self._link) is not None:
            return link
        if self._connection_task is None or self._connection_task.done():
            await self.connect()
        try:
            async with asyncio.timeout(self._connect_timeout):
                while (link := self._link) is None:
                    if self._closed or self._connection_task is None or self._connection_task.done():
                        raise self._gone()
                    self._opened.clear()
                    await self._opened.wait()
        except TimeoutError:
            raise self._gone() from None
        return link

    def _gone(self) -> TideboxError:
        if self._closed:
            return ClientClosed("the client was closed")
        known = self._last_failure or ServerUnreachable(f"no connection to {self._target.uri}")
        return type(known)(known.message, **known.details)

    async def _open(self) -> _ClientConnection:
        loop = asyncio.get_running_loop()
        try:
            connection = await Connect(self._target.uri, **options(self._target, self._connect_timeout, self._source))
        except OPENING_ERRORS as error:
            self._reconnection.failed(loop.time())
            self._last_failure = opening_error(self._target, error)
            raise self._last_failure from error
        try:
            check_version(connection.response.headers if connection.response else None)
        except TideboxError as error:
            await connection.close()
            self._last_failure = error
            raise
        self._reconnection.connected(loop.time())
        self._link = _ClientConnection(connection)
        self._opened.set()
        return self._link

    async def _keep(self, link: _ClientConnection) -> None:
        """Receive messages; reconnect when the connection is lost, until a server refuses for good."""
        try:
            while True:
                failure: TideboxError = ClientClosed("the client was closed")
                try:
                    failure = self._last_failure = await link.receive()
                finally:
                    # At once and together, so that nobody begins to wait on what is lost.
                    self._link = None
                    link.session.end(failure)
                    await link.close(failure)
                again = await self._reopen()
                if again is None:
                    return
                link = again
        finally:
            # Callers that wait for a connection learn that none will come.
            self._opened.set()

    async def _reopen(self) -> _ClientConnection | None:
        while True:
            await asyncio.sleep(self._reconnection.pause(asyncio.get_running_loop().time()))
            try:
                return await self._open()
            except TideboxError as error:
                if not error.retryable:
                    return None


class _ClientConnection:
    """One connection, until it is lost."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.session = FathomSession()

    async def receive(self) -> TideboxError:
        """Receive messages until the connection is lost; return the reason."""
        try:
            while True:
                self.session.receive(await self._connection.recv(decode=False))
        except ConnectionClosed as error:
            return closing_error(error)
        except ServerProtocolError as error:
            return error

    async def close(self, reason: TideboxError) -> None:
        await self._connection.close(_PROTOCOL_ERROR if isinstance(reason, ServerProtocolError) else _NORMAL)

    async def send(self, frame: bytes) -> None:
        try:
            await self._connection.send(frame, text=True)
        except ConnectionClosed as error:
            raise closing_error(error) from None

    async def cancel(self, progress: PendingExecution) -> None:
        frame = self.session.cancel(progress)
        if frame is not None:
            try:
                await self.send(frame)
            except ConnectionLost:
                pass  # then the server ends it, and the execution itself fails
