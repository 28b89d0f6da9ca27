"""Artifacts on the local disk: ``runs/<id>/artifacts`` has the bytes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tidebox.broker.storage.blob_store import BlobStore
from tidebox.model.box import CapturedTree, CaptureRule
from tidebox.runtime.base import Box
from tidebox.untrusted_files.content_types import HEAD_BYTES, content_type
from tidebox.untrusted_files.trees import directory_beneath, open_beneath, opened, remove_tree

_ARTIFACTS = "artifacts"
_FRESH = "artifacts.new"


class LocalBlobStore(BlobStore):
    """The files of all runs, in the directories of these."""

    def __init__(self, directory: Path) -> None:
        self._root = directory

    async def capture(self, run_id: str, box: Box, rule: CaptureRule) -> tuple[CapturedTree, Mapping[str, str]]:
        """Keep the files of a stopped box that match."""
        fresh = self._root / run_id / _FRESH
        try:
            await asyncio.to_thread(_make_anew, fresh)
            captured = await box.capture_into(fresh, rule)
            return captured, await asyncio.to_thread(_put_in_place, fresh, self._root / run_id / _ARTIFACTS, captured)
        except OSError:
            await asyncio.to_thread(remove_tree, fresh)
            raise

    async def open(self, run_id: str, path: str) -> int:
        """The descriptor of a file; raises OSError where there is none."""
        return await asyncio.to_thread(_open, self._root / run_id / _ARTIFACTS, path)

    async def discard(self, run_id: str, paths: Sequence[str]) -> None:
        """Remove some files of a run."""
        await asyncio.to_thread(_unlink, self._root / run_id / _ARTIFACTS, paths)

    async def remove(self, run_id: str) -> None:
        """Remove all files of a run."""
        await asyncio.to_thread(_remove, self._root / run_id)

    async def run_ids(self) -> list[str]:
        """The runs that have files, or parts of them."""
        return await asyncio.to_thread(self._with_files)

    def _with_files(self) -> list[str]:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [
            entry.name for entry in self._root.iterdir() if (entry / _ARTIFACTS).is_dir() or (entry / _FRESH).is_dir()
        ]


def _make_anew(directory: Path) -> None:
    remove_tree(directory)
    directory.mkdir(mode=0o700, parents=True)


def _put_in_place(fresh: Path, final: Path, captured: CapturedTree) -> dict[str, str]:
    """Let the captured files be those of the run; what is in each."""
    kinds = {}
    with opened(fresh) as root:
        for file in captured.files:
            if file.link_target is None:
                descriptor = open_beneath(root, file.path.split("/"))
                try:
                    kinds[file.path] = content_type(file.path, os.pread(descriptor, HEAD_BYTES, 0))
                finally:
                    os.close(descriptor)
    remove_tree(final)
    if kinds:
        fresh.rename(final)
    else:
        remove_tree(fresh)
    return kinds


def _open(directory: Path, path: str) -> int:
    with opened(directory) as root:
        return open_beneath(root, path.split("/"))


def _unlink(directory: Path, paths: Sequence[str]) -> None:
    with opened(directory) as root:
        for path in paths:
            *above, name = path.split("/")
            with suppress(FileNotFoundError), directory_beneath(root, above) as parent:
                os.unlink(name, dir_fd=parent)


def _remove(directory: Path) -> None:
    remove_tree(directory / _ARTIFACTS)
    remove_tree(directory / _FRESH)
    with suppress(OSError):
        # Its log may still be there.
        directory.rmdir()
