"""Both clients behind one face, so that each test holds for both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack

from tidebox.sdk import AsyncClient, AsyncExecution, Health, Output, Result, Status
from tidebox.sdk.fathom_session import ExecuteOptions

Answer = TypeVar("Answer")


class AnyExecution(Protocol):
    """What both kinds of execution can do."""

    @property
    def id(self) -> str: ...
    @property
    def status(self) -> Status | None: ...
    def __iter__(self) -> Iterator[Output]: ...
    def result(self) -> Result: ...
    def cancel(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AnyClient(Protocol):
    """What both clients can do."""

    def connect(self) -> None: ...
    def close(self) -> None: ...
    def run(self, code: str, language: str = "python", **options: Unpack[ExecuteOptions]) -> Result: ...
    def start(self, code: str, language: str = "python", **options: Unpack[ExecuteOptions]) -> AnyExecution: ...
    def ping(self) -> Health: ...


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def close(self) -> None:
        left = asyncio.all_tasks(self.loop)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert left == set()


class BlockingClient:
    """The asynchronous client for a test that is not."""

    def __init__(self, loop: Loop, *arguments: Any, **options: Any) -> None:
        self._loop = loop
        self._client = AsyncClient(*arguments, **options)

    def connect(self) -> None:
        self._loop.call(self._client.connect())

    def close(self) -> None:
        self._loop.call(self._client.close())

    def run(self, code: str, language: str = "python", **options: Unpack[ExecuteOptions]) -> Result:
        return self._loop.call(self._client.run(code, language, **options))

    def start(self, code: str, language: str = "python", **options: Unpack[ExecuteOptions]) -> BlockingExecution:
        return BlockingExecution(self._loop, self._loop.call(self._client.start(code, language, **options)))

    def ping(self) -> Health:
        return self._loop.call(self._client.ping())


class BlockingExecution:
    """The asynchronous execution for a test that is not."""

    def __init__(self, loop: Loop, execution: AsyncExecution) -> None:
        self._loop = loop
        self._execution = execution

    @property
    def id(self) -> str:
        return self._execution.id

    @property
    def status(self) -> Status | None:
        return self._execution.status

    def __iter__(self) -> Iterator[Output]:
        iterator = aiter(self._execution)

        async def step() -> Output | None:
            return await anext(iterator, None)

        while (piece := self._loop.call(step())) is not None:
            yield piece

    def result(self) -> Result:
        return self._loop.call(self._execution.result())

    def cancel(self) -> None:
        self._loop.call(self._execution.cancel())

    def __enter__(self) -> Self:
        self._loop.call(self._execution.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call(self._execution.__aexit__(kind, error, trace))
