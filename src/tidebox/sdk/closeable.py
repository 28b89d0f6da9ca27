"""What asynchronous objects that are closed after use have in common."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self


class AsyncCloseable(abc.ABC):
    """Closed at the end of a context."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End it; see the class for what that means."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
