"""Files of runs: copied into their boxes before the program starts, workspace and artifacts captured at its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.internal_errors import internal_error
from tidebox.broker.runs.run_files import FileManager, RunFiles
from tidebox.broker.runs.run_plan import RunPlan
from tidebox.broker.storage.artifacts import RunArtifacts
from tidebox.broker.storage.uploads import Uploads
from tidebox.broker.storage.workspaces import HeldWorkspace, Workspaces
from tidebox.errors import StoreUnavailable
from tidebox.model.principal import Caller
from tidebox.model.run import Run
from tidebox.runtime.base import Box
from tidebox.store.base import Store

_log = logging.getLogger(__name__)

SWEEP_SECONDS = 900.0


class StoredRunFiles(RunFiles):
    """The files of a run that has a session, a repository or artifacts.

    A session's workspace is the run's alone from ``open`` to ``close``.
    """

    def __init__(
        self, run: Run, plan: RunPlan, workspaces: Workspaces, artifacts: RunArtifacts, uploads: Uploads
    ) -> None:
        super().__init__()
        self._run = run
        self._plan = plan
        self._workspaces = workspaces
        self._artifacts = artifacts
        self._uploads = uploads
        self.has_input = run.facts.session_id is not None or plan.git is not None
        self.keep_as = run.facts.session_id or ""
        self._opened = contextlib.AsyncExitStack()
        self._workspace: HeldWorkspace | None = None
        self._fetched: Path | None = None

    async def open(self) -> None:
        """Hold the workspace of the session and fetch the repository, where the run has them."""
        if self._run.facts.session_id is not None:
            self._workspace = await self._workspaces.hold(self._run.facts.session_id)
            self._opened.callback(self._workspace.release)
        if self._plan.git is None:
            return
        fetched = self._uploads.fetched(self._run.user, self._plan.git)
        if self._workspace is None:
            self._fetched = (await self._opened.enter_async_context(fetched)).tree
        else:
            async with fetched as staged:
                await self._workspace.put(staged.tree)

    async def copy_in(self, box: Box) -> None:
        """Copy the files into a box whose program was not started yet."""
        if self._workspace is not None:
            await self._workspace.place(box)
        elif self._fetched is not None:
            await box.place(self._fetched)

    def is_in(self, box: Box) -> bool:
        """Whether a box, which served the last run of the session, has the files already."""
        return self._workspace is not None and self._workspace.is_in(box)

    async def collect(self, box: Box) -> None:
        """Keep what a stopped box has: artifacts, and the workspace of the session even where those cannot be kept."""
        try:
            if self._plan.capture_patterns:
                harvest = await self._artifacts.capture(self._run, box, self._plan.capture_patterns)
                self.artifact_bytes = harvest.bytes
                self.left_out.update({f"artifact_{reason}": count for reason, count in harvest.skipped.items()})
        finally:
            if self._workspace is not None:
                await self._workspace.keep(box)
                if self._workspace.left_out:
                    self.left_out["workspace_kind"] = self._workspace.left_out

    async def close(self) -> None:
        """Let others have the session's workspace, and remove what was fetched."""
        try:
            await self._opened.aclose()
        except Exception as error:
            # What cannot be removed now goes at the next start; the run has its end all the same.
            internal_error("the files of a run", error)


class StoredFileManager(FileManager):
    """Gives runs their workspaces and keeps their artifacts."""

    def __init__(
        self, store: Store, workspaces: Workspaces, artifacts: RunArtifacts, uploads: Uploads, audit: Audit
    ) -> None:
        self.workspaces = workspaces
        self.artifacts = artifacts
        self.uploads = uploads
        self._store = store
        self._audit = audit
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Clean up after an earlier server, and start the sweeper of expired artifacts."""
        await self.uploads.start()
        await self.workspaces.store.start()
        for session_id in await self.workspaces.store.ids():
            if await self._store.session(session_id) is None:
                await self.workspaces.remove(session_id)
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="artifact sweeper")

    async def close(self) -> None:
        """Stop the artifact sweeper."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        self.uploads.close()

    def read(self, caller: Caller, **what: Any) -> None:
        """Audit that files of a session or of a run are read."""
        self._audit.check()
        self._audit.record("sandbox.files.read", caller, "allowed", **what)

    def run_files(self, run: Run, plan: RunPlan) -> RunFiles:
        """The files of one run."""
        if run.facts.session_id is None and plan.git is None and not plan.capture_patterns:
            return RunFiles()
        return StoredRunFiles(run, plan, self.workspaces, self.artifacts, self.uploads)

    async def forget_session(self, session_id: str) -> None:
        """Remove the files of a session that has no runs any more."""
        await self.workspaces.remove(session_id)

    async def _sweep(self) -> None:
        while True:
            try:
                await self.artifacts.sweep()
                # The store forgets runs by itself, and their artifacts with them.
                await self.artifacts.reconcile()
            except StoreUnavailable as error:
                _log.warning("expired artifacts could not be looked for: %s", error)
            except Exception as error:
                internal_error("the removal of artifacts", error)
            await asyncio.sleep(SWEEP_SECONDS)
