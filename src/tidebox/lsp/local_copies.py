"""Local copies of artifacts and logs for the editor to open, in a directory that is removed with the server."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

from tidebox.errors import InvalidRequest, TideboxError
from tidebox.model.limits import MIB
from tidebox.sdk.interpreter.client import AsyncInterpreter
from tidebox.sdk.interpreter.results import Artifact
from tidebox.untrusted_files.file_names import shown, split_name
from tidebox.untrusted_files.trees import directory_beneath, opened, remove_tree

MAX_FILE_BYTES = 16 * MIB
"""A larger artifact is listed, and not copied."""
MAX_BYTES = 64 * MIB
MAX_FILES = 1000
_MAX_RUNS = 20
_MAX_DEPTH = 64
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_ARTIFACTS, _LIST, _LOG = "artifacts", "artifacts.txt", "log.txt"


class LocalCopies:
    """The directory of copies, with a subdirectory for each of the runs that were asked for last."""

    def __init__(self, client: AsyncInterpreter, directory: Path) -> None:
        self._client = client
        self._root = directory / "runs"
        self._root.mkdir(mode=0o700)
        self._runs: list[str] = []

    async def artifacts(self, run_id: str) -> tuple[list[dict[str, Any]], str]:
        """Copy a run's artifacts; return them, with the URIs of those that were copied, and the URI of a list."""
        self._keep_run(run_id)
        found = (await self._client.list_artifacts(run_id)).items
        items: list[dict[str, Any]] = []
        left, files = MAX_BYTES, MAX_FILES
        for artifact in found:
            item = {"path": artifact.path, "size": artifact.size, "content_type": artifact.content_type}
            if not artifact.is_link and artifact.size <= min(left, MAX_FILE_BYTES) and files:
                uri = await self._copy(run_id, artifact)
                if uri is not None:
                    left, files = left - artifact.size, files - 1
                    item["uri"] = uri
            items.append(item)
        lines = [f"{item['size']:>12}  {shown(item['path'])}" for item in items]
        text = "\n".join([f"{len(items)} artifacts of run {run_id}", "", *lines, ""])
        return items, await asyncio.to_thread(self._write, run_id, (_LIST,), text.encode())

    async def log(self, run_id: str) -> str:
        """Copy a run's log; return the URI of the copy."""
        self._keep_run(run_id)
        content = await self._client.read_log(run_id)
        return await asyncio.to_thread(self._write, run_id, (_LOG,), content)

    async def _copy(self, run_id: str, artifact: Artifact) -> str | None:
        try:
            # The name is the program's choice.
            parts = split_name(artifact.path, _MAX_DEPTH)
            content = await self._client.download_artifact(run_id, artifact.path, max_bytes=artifact.size)
            return await asyncio.to_thread(self._write, run_id, (_ARTIFACTS, *parts), content)
        except (TideboxError, OSError):
            return None

    def _keep_run(self, run_id: str) -> None:
        if not _RUN_ID.fullmatch(run_id):
            raise InvalidRequest("run_id: there is no run of that name", field="run_id")
        if run_id in self._runs:
            self._runs.remove(run_id)
        self._runs.append(run_id)
        while len(self._runs) > _MAX_RUNS:
            remove_tree(self._root / self._runs.pop(0))

    def _write(self, run_id: str, parts: tuple[str, ...], content: bytes) -> str:
        *parents, name = parts
        with opened(self._root) as root, directory_beneath(root, [run_id, *parents]) as directory:
            with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=directory), "wb") as file:
                file.write(content)
        return self._root.joinpath(run_id, *parts).as_uri()
