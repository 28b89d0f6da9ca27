"""The contract of stores for session workspaces between runs. ``local_workspace_store`` is the local disk."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidebox.runtime.base import Box
from tidebox.untrusted_files.trees import Tally


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of a kept workspace, or a link in it."""

    path: str
    size: int
    modified: float
    link_target: str | None = None


class WorkspaceStore(abc.ABC):
    """The files of all sessions: of each one state, which is replaced as a whole or stays as it is.

    One caller at a time changes those of a session; others may read them meanwhile. Changes raise ``StoreUnavailable``
    where they cannot be kept.
    """

    @abc.abstractmethod
    async def start(self) -> None:
        """Make whole what a crash interrupted."""

    @abc.abstractmethod
    async def ids(self) -> list[str]:
        """The sessions that have files here."""

    @abc.abstractmethod
    async def create(self, session_id: str) -> None:
        """Make the workspace of a session, empty, where there is none; ``NotFound`` for what is no session's name."""

    @abc.abstractmethod
    async def place(self, session_id: str, box: Box) -> None:
        """Copy the files of a session into a fresh box."""

    @abc.abstractmethod
    async def keep(self, session_id: str, box: Box) -> int:
        """Make what a stopped box has in its workspace the new state.

        Returns how much of it was no file, directory or link, and is not kept.
        """

    @abc.abstractmethod
    async def put(self, session_id: str, stage: Path) -> Tally:
        """Put the files of ``stage``, a directory of ours, over those there are; how much there is then.

        Where the files of ``stage`` are on the disk, so is the new state, before anybody hears of it. Raises
        ``PayloadTooLarge`` where it is too much, and ``InvalidRequest`` for a file in the place of a directory.
        """

    @abc.abstractmethod
    async def listing(self, session_id: str, limit: int) -> list[KeptFile]:
        """The files of a session as they are between its runs, by path; no more than ``limit`` of them."""

    @abc.abstractmethod
    async def open(self, session_id: str, parts: Sequence[str]) -> int:
        """The descriptor of one of them; ``NotFound`` where there is none that can be read."""

    @abc.abstractmethod
    async def remove(self, session_id: str) -> None:
        """Remove the files of a session; harmless where there are none."""
