"""Artifacts: files that runs left, kept for a while and described in the store.

A file without a record belongs to nobody and is removed; a record without its file is forgotten.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidebox.broker.run_metrics import RunMetrics
from tidebox.broker.storage.blob_store import BlobStore
from tidebox.errors import NotFound, StoreUnavailable
from tidebox.model.artifact import Artifact
from tidebox.model.box import CapturedFile, CapturedTree, CaptureRule
from tidebox.model.limits import MIB
from tidebox.model.run import Run
from tidebox.runtime.base import Box
from tidebox.store.base import Store

_log = logging.getLogger(__name__)

_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRules:
    """Limits of artifact capture, and the time to live of artifacts."""

    max_run_bytes: int = 32 * MIB
    max_user_bytes: int = 128 * MIB
    max_files: int = 1000
    ttl: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class CapturedArtifacts:
    """Totals of an artifact capture."""

    bytes: int = 0
    files: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Counts of matching files that were not kept, by reason: kind, name, count, file_size, total_size, user_limit."""


class RunArtifacts:
    """The artifacts of all runs."""

    def __init__(self, files: BlobStore, store: Store, rules: ArtifactRules, metrics: RunMetrics) -> None:
        self._files = files
        self._store = store
        self._rules = rules
        self._metrics = metrics
        self._capturing: set[str] = set()
        # Of the runs that captured something while files were held against the records.
        self._captured_meanwhile: set[str] = set()

    async def capture(self, run: Run, box: Box, patterns: Sequence[str]) -> CapturedArtifacts:
        """Capture artifacts: keep the matching files of a stopped box, within the rules."""
        self._capturing.add(run.id)
        self._captured_meanwhile.add(run.id)
        try:
            return await self._capture(run, box, patterns)
        finally:
            self._capturing.discard(run.id)

    async def _capture(self, run: Run, box: Box, patterns: Sequence[str]) -> CapturedArtifacts:
        rules = self._rules
        budget = min(rules.max_run_bytes, max(rules.max_user_bytes - await self._store.artifact_bytes(run.user), 0))
        rule = CaptureRule(
            tuple(patterns),
            max_file_bytes=rules.max_run_bytes,
            max_total_bytes=budget,
            max_files=rules.max_files,
        )
        try:
            captured, kinds = await self._files.capture(run.id, box, rule)
        except OSError as error:
            raise StoreUnavailable(f"the artifacts could not be kept: {error.strerror}") from error
        return await self._remember(run, captured, kinds)

    async def _remember(self, run: Run, captured: CapturedTree, kinds: Mapping[str, str]) -> CapturedArtifacts:
        now = time.time()
        found = [_artifact(run.id, file, kinds.get(file.path), now, self._rules.ttl) for file in captured.files]
        kept = await self._store.add_artifacts(run.id, found, user_limit=self._rules.max_user_bytes) if found else []
        skipped = dict(captured.skipped)
        if len(kept) < len(found):
            # Another run of the same user was quicker.
            remembered = {artifact.path for artifact in kept}
            lost = [artifact.path for artifact in found if artifact.path not in remembered]
            skipped["user_limit"] = len(lost)
            await self._files.discard(run.id, lost)
        size = sum(artifact.size for artifact in kept)
        if kept:
            self._metrics.for_runtime(run.facts.runtime).artifacts_kept(size)
        return CapturedArtifacts(size, len(kept), skipped)

    async def of_run(self, run_id: str) -> list[Artifact]:
        """Return the artifacts of a run, by path."""
        now = time.time()
        return [artifact for artifact in await self._store.artifacts(run_id) if artifact.expires_at > now]

    async def open(self, run_id: str, path: str) -> tuple[Artifact, int]:
        """An artifact and the descriptor of its file; ``NotFound`` where there is none, or only a link."""
        artifact = await self._store.artifact(run_id, path)
        if artifact is None or artifact.expires_at <= time.time():
            raise NotFound("no such artifact", run_id=run_id, path=path)
        if artifact.is_link:
            raise NotFound("this artifact is a symbolic link, of which nothing is kept", run_id=run_id, path=path)
        gone = NotFound("the file of this artifact is gone", run_id=run_id, path=path)
        try:
            descriptor = await self._files.open(run_id, path)
        except OSError as error:
            raise gone from error
        # A machine that lost its power may have kept the record and not all of the file.
        if os.fstat(descriptor).st_size != artifact.size:
            os.close(descriptor)
            raise gone
        return artifact, descriptor

    async def delete(self, run_id: str) -> int:
        """Remove the artifacts of a run; how many bytes they had."""
        freed = await self._store.delete_artifacts(run_id)
        await self._files.remove(run_id)
        return freed

    async def sweep(self) -> int:
        """Remove what is expired; of how many runs."""
        count = 0
        while expired := await self._store.expired_artifacts(time.time(), limit=_BATCH):
            for run_id in expired:
                await self.delete(run_id)
            count += len(expired)
        return count

    async def reconcile(self) -> int:
        """Remove files that no record speaks of; of how many runs."""
        self._captured_meanwhile = set(self._capturing)
        found = await self._files.run_ids()
        removed = 0
        for start in range(0, len(found), _BATCH):
            batch = found[start : start + _BATCH]
            known = await self._store.having_artifacts(batch)
            for run_id in batch:
                if run_id not in known and run_id not in self._captured_meanwhile:
                    await self._files.remove(run_id)
                    removed += 1
        if removed:
            _log.info("files of %d runs that nobody knows were removed", removed)
        return removed


def _artifact(run_id: str, file: CapturedFile, kind: str | None, now: float, ttl: float) -> Artifact:
    return Artifact(
        run_id=run_id,
        path=file.path,
        size=file.size,
        content_type=kind or "inode/symlink",
        created_at=now,
        expires_at=now + ttl,
        is_link=file.link_target is not None,
        link_target=file.link_target,
    )
