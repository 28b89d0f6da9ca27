"""Base class of asynchronous objects that are closed after use."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self


class AsyncCloseable(abc.ABC):
    """An asynchronous context manager that closes itself at the end."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close it; see the class for what that ends."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
