"""The client for threads: blocking facades of the classes for asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from tidebox.model.principal import ClientSource
from tidebox.protocols.fathom import Status
from tidebox.sdk.asynchronous import AsyncClient, AsyncExecution
from tidebox.sdk.loop_thread import BlockingFacade, ClosingFacade, LoopThread, blocking
from tidebox.sdk.result import Health, Output, Result


class Execution(BlockingFacade[AsyncExecution]):
    """A program that runs on the server; iterate over it for its output as it comes."""

    cancel = blocking(AsyncExecution.cancel)

    @property
    def id(self) -> str:
        """The execution's name on its connection."""
        return self._inner.id

    @property
    def status(self) -> Status | None:
        """The state the server last told; None while the program waits for its turn."""
        return self._inner.status

    def __iter__(self) -> Iterator[Output]:
        while (piece := self._thread.call(self._inner.read)) is not None:
            yield piece

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end, and return the result. Raises if the server could not run it to its end.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds; the program goes on.
        """
        return self._thread.call(self._inner.result, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing running."""
        self._thread.finish(self._inner.leave)


class Client(ClosingFacade[AsyncClient]):
    """A connection to a server, kept up: many executions at once, each by ``run`` or ``start``.

    The arguments are those of ``AsyncClient``. Any number of threads may use one client.
    """

    connect = blocking(AsyncClient.connect)
    run = blocking(AsyncClient.run)
    start = blocking(AsyncClient.start, Execution)

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        source: ClientSource = "SDK",
    ) -> None:
        client = AsyncClient(url, api_key=api_key, connect_timeout=connect_timeout, source=source)
        super().__init__(LoopThread(), client)

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the connection; what still runs on it is given up."""
        super().close()
        self._thread.close()

    def ping(self, timeout: float | None = None) -> Health:
        """Ask the server whether it is there, and how busy.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds.
        """
        return self._thread.call(self._inner.ping, timeout)
