"""The client for threads: no event loop, and no thread of its own.

Whoever waits for an answer receives for everybody who waits: one thread at a time takes messages from the connection
and hands them out, and when it has what it waited for the next one goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, Unpack

from websockets.exceptions import ConnectionClosed
from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect

from tidebox.errors import TideboxError
from tidebox.model.principal import ClientSource
from tidebox.protocols.fathom import Status
from tidebox.sdk.errors import ClientClosed, ConnectionLost, ServerProtocolError, ServerUnreachable
from tidebox.sdk.reconnection import Reconnection
from tidebox.sdk.result import Health, Output, Result
from tidebox.sdk.session import Options, Progress, Session, make_request
from tidebox.sdk.target import DEFAULT_URL, find_target, source_headers
from tidebox.sdk.transport import OPENING_ERRORS, check_version, closing_error, opening_error, options


class Execution:
    """A program that runs on the server; iterate over it for its output as it comes."""

    def __init__(self, link: _Link, progress: Progress) -> None:
        self._link = link
        self._progress = progress

    @property
    def id(self) -> str:
        """The execution's name on its connection."""
        return self._progress.known.execution_id

    @property
    def status(self) -> Status | None:
        """The state the server last told; None while the program waits for its turn."""
        return self._progress.known.status

    def __iter__(self) -> Iterator[Output]:
        unread, known = self._progress.unread, self._progress.known
        while True:
            self._link.wait(lambda: bool(unread) or known.is_over())
            try:
                piece = unread.popleft()
            except IndexError:
                if known.failure is not None:
                    raise known.failure from None
                if known.is_over():
                    return
                continue  # another thread was faster
            yield piece

    def result(self, timeout: float | None = None) -> Result:
        """How it ended, once it has. Raises if the server could not run it to its end.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds; the program goes on.
        """
        self._link.wait(self._progress.known.is_over, timeout)
        return self._progress.known.result()

    def cancel(self) -> None:
        """Ask the server to end it; its result then says so."""
        self._link.cancel(self._progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing running."""
        if not self._progress.known.is_over():
            try:
                self.cancel()
            finally:
                self._link.forget(self._progress)


class Client:
    """A connection to a server, made again when it is lost: many executions at once, each by ``run`` or ``start``.

    ``url`` is the server's address. Without ``api_key`` the key is that of ``SANDBOX_API_KEY`` or, for a server on
    this machine, the one in its data directory. ``connect_timeout`` is how long a call waits for a connection,
    ``source`` what kind of program this is, for the server's audit log. Any number of threads may use one client.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
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
        self._opening = threading.Lock()
        self._link: _Link | None = None
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Connect now; without it, the first call does."""
        self._connected()

    def close(self) -> None:
        """End the connection; what still runs on it is given up."""
        self._closed.set()
        with self._opening:
            if self._link is not None:
                self._link.close(ClientClosed("the client was closed"))

    def run(self, code: str, language: str = "python", **options: Unpack[Options]) -> Result:
        """Run ``code`` and wait for its end, with the options of ``start``. An interrupt cancels the program."""
        with self.start(code, language, **options) as execution:
            return execution.result()

    def start(self, code: str, language: str = "python", **options: Unpack[Options]) -> Execution:
        """Begin to run ``code`` in a fresh box; see ``Options`` for what else can be said."""
        request = make_request(code, language, **options)
        link = self._connected()
        with link.changed:
            progress, frame = link.session.execute(request)
        try:
            link.send(frame)
        except BaseException:
            link.forget(progress)
            raise
        return Execution(link, progress)

    def ping(self, timeout: float | None = None) -> Health:
        """Ask the server whether it is there, and how busy."""
        link = self._connected()
        asked = time.perf_counter()
        with link.changed:
            question, frame = link.session.ping()
        link.send(frame)
        link.wait(lambda: question.answered or question.failure is not None, timeout)
        if question.failure is not None:
            raise question.failure
        return Health(time.perf_counter() - asked, question.load)

    def _connected(self) -> _Link:
        """The connection; one thread makes it, the others wait for that."""
        with self._opening:
            if self._closed.is_set():
                raise ClientClosed("the client was closed")
            if self._link is not None and self._link.alive():
                return self._link
            self._link = self._open() if self._link is None else self._reopen(self._link)
            return self._link

    def _reopen(self, lost: _Link) -> _Link:
        """At once, then after pauses, for as long as a call may wait."""
        lost.close(ConnectionLost("the connection to the server broke"))
        deadline = time.monotonic() + self._connect_timeout
        failure: TideboxError = ServerUnreachable(f"no connection to {self._target.uri}")
        while True:
            now = time.monotonic()
            pause = self._reconnection.pause(now)
            if now + pause > deadline:
                raise failure
            if self._closed.wait(pause):
                raise ClientClosed("the client was closed")
            try:
                return self._open()
            except TideboxError as error:
                if not error.retryable:
                    raise
                failure = error

    def _open(self) -> _Link:
        try:
            connection = connect(
                self._target.uri, **options(self._target, self._connect_timeout, self._source)
            ).__enter__()
        except (*OPENING_ERRORS, AssertionError) as error:
            # The library asserts that nobody hangs up before he was asked anything, but a server can.
            self._reconnection.failed(time.monotonic())
            raise opening_error(self._target, error) from error
        try:
            check_version(connection.response.headers if connection.response else None)
        except TideboxError:
            connection.close()
            raise
        self._reconnection.connected(time.monotonic())
        return _Link(connection)


class _Link:
    """One connection, until it is lost."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._receiving = False
        self._lost = False
        self.session = Session()
        # Guards the session, and tells of everything that changes in it.
        self.changed = threading.Condition()

    def alive(self) -> bool:
        return not self._lost and self._connection.state is State.OPEN

    def send(self, frame: bytes) -> None:
        try:
            self._connection.send(frame, text=True)
        except ConnectionClosed as error:
            raise closing_error(error) from None

    def cancel(self, progress: Progress) -> None:
        with self.changed:
            frame = self.session.cancel(progress)
        if frame is not None:
            try:
                self.send(frame)
            except ConnectionLost:
                pass  # then the server ends it, and the execution itself fails

    def forget(self, progress: Progress) -> None:
        with self.changed:
            self.session.forget(progress)

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """Until ``ready``: by receiving, or while another thread receives."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while not ready():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError("no answer in time")
                if self._receiving:
                    self.changed.wait(left)
                else:
                    self._receive(left)

    def _receive(self, timeout: float | None) -> None:
        """Take one message, without keeping the others from looking at what there is."""
        self._receiving = True
        self.changed.release()
        message: bytes | None = None
        failure: TideboxError | None = None
        try:
            message = self._connection.recv(timeout, decode=False)
        except TimeoutError:
            pass
        except ConnectionClosed as error:
            failure = closing_error(error)
        finally:
            self.changed.acquire()
            self._receiving = False
            self.changed.notify_all()
        if message is not None:
            try:
                self.session.receive(message)
            except ServerProtocolError as error:
                failure = error
        if failure is not None:
            self._end(failure)

    def _end(self, failure: TideboxError) -> None:
        self._lost = True
        self.session.end(failure)
        self.changed.notify_all()

    def close(self, reason: TideboxError) -> None:
        with self.changed:
            self._end(reason)
        self._connection.close()
