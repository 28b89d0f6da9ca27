"""Files and records of artifacts are brought together while the server runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

from tidebox.broker.artifact_files import ArtifactFiles
from tidebox.broker.artifacts import ArtifactRules, Artifacts
from tidebox.broker.meter import Meter
from tidebox.model.box import CapturedFile, CapturedTree, CaptureRule
from tidebox.model.principal import Caller, Principal
from tidebox.model.run import Run, RunFacts
from tidebox.runtime.base import Box
from tidebox.store.base import Creation
from tidebox.store.memory import MemoryStore

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


async def _run(store: MemoryStore, name: str) -> Run:
    run = Run(id=name, caller=Caller(Principal("u"), "", "", ""), facts=FACTS, created_at=time.time())
    await store.create_run(Creation(run=run, work=b""))
    return run


async def test_files_that_are_just_being_captured_are_not_taken_for_nobodys(tmp_path: Path) -> None:
    store = MemoryStore()
    artifacts = Artifacts(ArtifactFiles(tmp_path / "runs"), store, ArtifactRules(), Meter())
    box = _Stopped()
    capturing = asyncio.create_task(artifacts.capture(await _run(store, "run-1"), cast(Box, cast(Any, box)), ["*"]))
    await box.copied.wait()
    assert await artifacts.reconcile() == 0
    box.go_on.set()
    assert (await capturing).bytes == 1
    assert await artifacts.reconcile() == 0
    assert (tmp_path / "runs" / "run-1" / "artifacts" / "a").read_text() == "x"


async def test_files_of_runs_that_the_store_has_forgotten_go(tmp_path: Path) -> None:
    store = MemoryStore()
    artifacts = Artifacts(ArtifactFiles(tmp_path / "runs"), store, ArtifactRules(), Meter())
    box = _Stopped()
    box.go_on.set()
    await artifacts.capture(await _run(store, "run-1"), cast(Box, cast(Any, box)), ["*"])
    logs = tmp_path / "runs" / "run-1" / "log"
    logs.write_text("kept by others")
    await store.delete_artifacts("run-1")
    assert await artifacts.reconcile() == 1
    assert [path.name for path in (tmp_path / "runs" / "run-1").iterdir()] == ["log"]
