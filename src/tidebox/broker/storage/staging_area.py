"""Staging directories: uploaded or fetched files before they are in a workspace. Nothing there outlives its use."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tidebox.errors import StoreUnavailable
from tidebox.model.ids import new_id
from tidebox.untrusted_files.trees import remove_tree


class StagingArea(abc.ABC):
    """Gives out directories. They are of this machine, whatever keeps the workspaces: archives are unpacked there."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Remove what an earlier server did not finish."""

    @abc.abstractmethod
    def directory(self) -> AbstractAsyncContextManager[Path]:
        """A fresh directory, gone with the context; raises ``StoreUnavailable`` where there can be none."""


class LocalStagingArea(StagingArea):
    """Directories below one of the local disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def start(self) -> None:
        """Remove what an earlier server did not finish."""
        await asyncio.to_thread(remove_tree, self._root)
        await asyncio.to_thread(self._root.mkdir, 0o700, True)

    @contextlib.asynccontextmanager
    async def directory(self) -> AsyncIterator[Path]:
        """A fresh directory, gone with the context."""
        directory = self._root / new_id("up")
        try:
            await asyncio.to_thread(directory.mkdir, 0o700)
        except OSError as error:
            raise StoreUnavailable(f"no upload can be taken: {error.strerror}") from error
        try:
            yield directory
        finally:
            await asyncio.to_thread(remove_tree, directory)
