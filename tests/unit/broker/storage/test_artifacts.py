"""Files and records of artifacts are brought together while the server runs."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tests.memory_store import DictStore
from tests.unit.broker.runs.test_sessions import make_session
from tests.unit.stage import ADA, make_ending
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.broker import Broker
from tidebox.broker.run_metrics import RunMetrics
from tidebox.broker.runs.run_plan import RunPlan
from tidebox.broker.runs.stored_run_files import StoredFileManager
from tidebox.broker.storage.artifacts import ArtifactRules, RunArtifacts
from tidebox.broker.storage.git_fetch import GitRules
from tidebox.broker.storage.local_blob_store import LocalBlobStore
from tidebox.broker.storage.local_workspace_store import LocalWorkspaceStore
from tidebox.broker.storage.staging_area import LocalStagingArea
from tidebox.broker.storage.uploads import UploadRules, Uploads
from tidebox.broker.storage.workspaces import Workspaces
from tidebox.model.box import BoxSpec, CapturedFile, CapturedTree, CaptureRule
from tidebox.model.events import Started
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest, Sink
from tidebox.model.launch import plan_code
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.principal import Caller, Principal
from tidebox.model.run import Phase, Reason, Run, RunFacts
from tidebox.runtime.base import NO_FILES, Box, BoxFiles, Runner
from tidebox.store.base import Creation
from tidebox.untrusted_files.staging import StageLimits
from tidebox.untrusted_files.trees import Tally, TreeLimits

FACTS = RunFacts(runtime="native", base_image="host", spec_version="1.0", policy_hash="x")


class _Stopped:
    """A box of which only one file is wanted, and which takes its time."""

    def __init__(self) -> None:
        self.copied = asyncio.Event()
        self.go_on = asyncio.Event()

    async def capture_into(self, target: Path, rule: CaptureRule) -> CapturedTree:
        (target / "a").write_text("x")
        self.copied.set()
        await self.go_on.wait()
        return CapturedTree(files=(CapturedFile(path="a", size=1),), skipped={})


async def _run(store: DictStore, name: str) -> Run:
    run = Run(id=name, caller=Caller(Principal("u"), "", "", ""), facts=FACTS, created_at=time.time())
    await store.create_run(Creation(run=run, work=b""))
    return run


async def test_files_that_are_just_being_captured_are_not_taken_for_nobodys(tmp_path: Path) -> None:
    store = DictStore()
    artifacts = RunArtifacts(LocalBlobStore(tmp_path / "runs"), store, ArtifactRules(), RunMetrics())
    box = _Stopped()
    capturing = asyncio.create_task(artifacts.capture(await _run(store, "run-1"), cast(Box, cast(Any, box)), ["*"]))
    await box.copied.wait()
    assert await artifacts.reconcile() == 0
    box.go_on.set()
    assert (await capturing).bytes == 1
    assert await artifacts.reconcile() == 0
    assert (tmp_path / "runs" / "run-1" / "artifacts" / "a").read_text() == "x"


async def test_files_of_runs_that_the_store_has_forgotten_go(tmp_path: Path) -> None:
    store = DictStore()
    artifacts = RunArtifacts(LocalBlobStore(tmp_path / "runs"), store, ArtifactRules(), RunMetrics())
    box = _Stopped()
    box.go_on.set()
    await artifacts.capture(await _run(store, "run-1"), cast(Box, cast(Any, box)), ["*"])
    logs = tmp_path / "runs" / "run-1" / "log"
    logs.write_text("kept by others")
    await store.delete_artifacts("run-1")
    assert await artifacts.reconcile() == 1
    assert [path.name for path in (tmp_path / "runs" / "run-1").iterdir()] == ["log"]


class _CannotBeCollected:
    """A stopped box with one file that can be captured, and a workspace that the disk does not take."""

    async def place(self, source: Path) -> Tally:
        return Tally()

    async def capture_into(self, target: Path, rule: CaptureRule) -> CapturedTree:
        (target / "a").write_text("kept")
        return CapturedTree(files=(CapturedFile(path="a", size=4),), skipped={"kind": 2})

    async def collect(self, target: Path, limits: TreeLimits) -> Tally:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Hooked(Runner):
    """Runs nothing, and does with its box what the order says."""

    async def run(
        self, order: ExecutionRequest, sink: Sink, cancel: OneShotFlag | None = None, files: BoxFiles = NO_FILES
    ) -> ExecutionOutcome:
        box = cast(Box, cast(Any, _CannotBeCollected()))
        assert files.has_input
        await files.copy_in(box)
        await sink(Started(1))
        await files.collect(box)
        return make_ending()


async def test_artifacts_are_counted_when_the_workspace_cannot_be_kept(tmp_path: Path) -> None:
    store, audit = DictStore(), Audit(tmp_path / "audit")
    workspaces = Workspaces(LocalWorkspaceStore(tmp_path / "sessions", TreeLimits(max_bytes=1000, max_entries=10)))
    artifacts = RunArtifacts(LocalBlobStore(tmp_path / "runs"), store, ArtifactRules(), RunMetrics())
    rules = UploadRules(max_received=1000, stage=StageLimits(max_bytes=1000, max_files=10, max_depth=10))
    uploads = Uploads(LocalStagingArea(tmp_path / "uploads"), workspaces, rules, GitRules(), RunMetrics(), audit)
    file_manager = StoredFileManager(store, workspaces, artifacts, uploads, audit)
    broker = Broker(runner=_Hooked(), store=store, audit=audit, file_manager=file_manager)
    await broker.start()
    try:
        session = make_session()
        await broker.sessions.create(ADA, session)
        work = RunPlan(launch=plan_code("python", ""), spec=BoxSpec(), capture_patterns=("*",))
        receipt = await broker.runs.submit(ADA, replace(FACTS, session_id=session.id), work)
        run = await broker.runs.wait_finished(receipt.run, 20)
        assert (run.phase, run.reason) == (Phase.FAILED, Reason.RUNTIME_ERROR)
        assert (run.artifact_bytes, run.left_out) == (4, {"artifact_kind": 2})
        # Nothing of the run is held any more: another has the workspace at once.
        async with asyncio.timeout(20):
            (await workspaces.hold(session.id)).release()
    finally:
        await broker.close()
