"""Artifacts of a run on a server, copied into a directory here."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tidebox.cli.artifacts import BOUNDS, Artifact, ArtifactDirectory, choose, refusal
from tidebox.cli.progress import ProgressLine
from tidebox.errors import NotFound
from tidebox.sdk.interpreter.client import AsyncInterpreter
from tidebox.sdk.interpreter.results import Artifact as Kept


async def find(client: AsyncInterpreter, run_id: str, paths: Sequence[str]) -> list[Kept]:
    """The artifacts of a run, all or those that are named."""
    there = {artifact.path: artifact for artifact in (await client.list_artifacts(run_id)).items}
    for path in paths:
        if path not in there:
            advice = f"'tidebox runs artifacts {run_id}' shows what it left"
            raise NotFound(f"the run {run_id} left no file {path!r}", path=path, advice=advice)
    return [there[path] for path in paths] if paths else list(there.values())


async def fetch(
    client: AsyncInterpreter, run_id: str, paths: Sequence[str], to: str, *, replace: bool
) -> list[Artifact]:
    """Copy artifacts into a directory; what could not be saved says why."""
    sizes = {each.path: each.size for each in await find(client, run_id, paths) if not each.is_link}
    left = BOUNDS.max_total_bytes
    chosen = choose(sizes, named=paths)
    directory = ArtifactDirectory(to, replace=replace)
    saved = []
    try:
        with ProgressLine("Copying", sum(sizes[path] for path in chosen)) as progress:
            for path in chosen:
                most = min(BOUNDS.max_file_bytes, left)
                try:
                    with directory.opened(path) as descriptor, os.fdopen(os.dup(descriptor), "wb") as file:
                        left -= await client.download_artifact(run_id, path, progress.writing(file, most))
                except OSError as error:
                    saved.append(Artifact(path, sizes[path], refusal(error)))
                else:
                    saved.append(Artifact(path, sizes[path]))
    finally:
        directory.close()
    return saved
