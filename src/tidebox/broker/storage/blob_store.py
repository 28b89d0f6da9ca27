"""The contract of stores for artifact files. ``local_blob_store`` is the local disk."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

from tidebox.model.box import CapturedTree, CaptureRule
from tidebox.runtime.base import Box


class BlobStore(abc.ABC):
    """The files of all runs, each at the path it had in the workspace."""

    @abc.abstractmethod
    async def capture(self, run_id: str, box: Box, rule: CaptureRule) -> tuple[CapturedTree, Mapping[str, str]]:
        """Keep the files of a stopped box that match; what they are, and the content type of each that is no link.

        Raises OSError where they cannot be kept, and then none is.
        """

    @abc.abstractmethod
    async def open(self, run_id: str, path: str) -> int:
        """The descriptor of a file; raises OSError where there is none."""

    @abc.abstractmethod
    async def discard(self, run_id: str, paths: Sequence[str]) -> None:
        """Remove some files of a run."""

    @abc.abstractmethod
    async def remove(self, run_id: str) -> None:
        """Remove all files of a run."""

    @abc.abstractmethod
    async def run_ids(self) -> list[str]:
        """The runs that have files, or parts of them."""
