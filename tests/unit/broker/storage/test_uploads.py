"""Uploads before they reach a workspace."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tests.unit.stage import ADA, BOB, until
from tidebox.api.interpreter import files
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.run_metrics import RunMetrics
from tidebox.broker.storage import uploads as module
from tidebox.broker.storage.git_fetch import GitRules
from tidebox.broker.storage.local_workspace_store import LocalWorkspaceStore
from tidebox.broker.storage.staging_area import LocalStagingArea
from tidebox.broker.storage.uploads import IncomingUpload, StagedFiles, UploadRules, Uploads
from tidebox.broker.storage.workspaces import Workspaces
from tidebox.errors import Overloaded, StoreUnavailable
from tidebox.model.git_source import GitSource
from tidebox.model.principal import Caller
from tidebox.untrusted_files.staging import StageLimits
from tidebox.untrusted_files.trees import TreeLimits


async def there() -> None:
    """The session is there."""


@pytest.fixture
async def uploads(tmp_path: Path) -> AsyncIterator[Uploads]:
    workspaces = Workspaces(LocalWorkspaceStore(tmp_path / "sessions", TreeLimits(max_bytes=1000)))
    await workspaces.store.start()
    audit = Audit(tmp_path / "audit")
    await audit.start()
    rules = UploadRules(max_received=1000, stage=StageLimits(max_bytes=1000))
    found = Uploads(
        LocalStagingArea(tmp_path / "uploads"), workspaces, rules, GitRules(hosts=("github.com",)), RunMetrics(), audit
    )
    await found.start()
    yield found
    found.close()
    await audit.close()


async def put(uploads: Uploads, name: str) -> None:
    async with uploads.receiving(ADA) as upload:
        upload.files = {name: b"1"}
        await uploads.put(ADA, "ses-1", upload, "json", there)


async def test_what_the_disk_does_not_take_does_not_take_the_place_of_what_it_has(
    uploads: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(uploads, "old")

    def fail(directory: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(module, "flush", fail)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            await put(uploads, "new")
    workspace = tmp_path / "sessions" / "ses-1" / "workspace"
    assert [path.name for path in workspace.iterdir()] == ["old"]
    await put(uploads, "new")
    assert sorted(path.name for path in workspace.iterdir()) == ["new", "old"]


async def test_one_user_leaves_room_for_the_others(uploads: Uploads) -> None:
    async with contextlib.AsyncExitStack() as slow:
        for _ in range(module.MAX_USER_UPLOADS):
            await slow.enter_async_context(uploads.receiving(ADA))
        with pytest.raises(Overloaded) as caught:
            await slow.enter_async_context(uploads.receiving(ADA))
        assert caught.value.details["scope"] == "user"
        await slow.enter_async_context(uploads.receiving(BOB))
    await put(uploads, "later")


async def test_archives_of_one_user_that_take_long_hold_up_nobody_else(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    at_once: list[str] = []
    stage = IncomingUpload.stage

    def slow(upload: IncomingUpload) -> StagedFiles:
        if "slow" in upload.files:
            at_once.append("slow")
            over.wait(60)
        return stage(upload)

    monkeypatch.setattr(IncomingUpload, "stage", slow)

    async def send(caller: Caller, name: str) -> None:
        async with uploads.receiving(caller) as upload:
            upload.files = {name: b"1"}
            await uploads.put(caller, f"ses-{name}", upload, "json", there)

    hers = [asyncio.create_task(send(ADA, "slow")) for _ in range(module.MAX_USER_UPLOADS)]
    try:
        await until(lambda: bool(at_once))
        await asyncio.wait_for(send(BOB, "quick"), 20)
        assert at_once == ["slow"]
    finally:
        over.set()
    await asyncio.gather(*hers)
    assert len(at_once) == len(hers)


async def test_a_client_that_leaves_keeps_its_turn_until_its_archive_is_put_away(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, begun = threading.Event(), threading.Event()
    stage = IncomingUpload.stage

    def slow(upload: IncomingUpload) -> StagedFiles:
        begun.set()
        over.wait(60)
        return stage(upload)

    monkeypatch.setattr(IncomingUpload, "stage", slow)
    leaving = asyncio.create_task(put(uploads, "slow"))
    await until(begun.is_set)
    leaving.cancel()
    await asyncio.wait([leaving], timeout=0.05)
    assert not leaving.done()
    over.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_slow_repositories_of_one_user_hold_up_nobody_else(
    uploads: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = asyncio.Event()

    async def fetch(source: GitSource, directory: Path) -> StagedFiles:
        if source.url.endswith("/slow"):
            await slow.wait()
        return StagedFiles(directory / "tree", 0)

    async def get(user: str, name: str) -> None:
        async with uploads.fetched(user, GitSource(url=f"https://github.com/a/{name}")):
            pass

    monkeypatch.setattr(uploads, "_fetch", fetch)
    hers = [asyncio.create_task(get("ada", "slow")) for _ in range(2 * module.MAX_CLONES)]
    await until(lambda: len(list((tmp_path / "uploads").glob("*/tree"))) == len(hers))
    await asyncio.sleep(0.05)  # for those who would take all places
    await asyncio.wait_for(get("bob", "quick"), 20)
    assert not any(task.done() for task in hers)
    slow.set()
    await asyncio.gather(*hers)
    assert list((tmp_path / "uploads").iterdir()) == []


async def test_a_client_that_says_nothing_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SILENCE_SECONDS", 0.05)
    arriving = [{"type": "http.request", "body": b"1", "more_body": True}]

    async def receive() -> dict[str, object]:
        if not arriving:
            await asyncio.Event().wait()
        return arriving.pop()

    chunks = files._chunks(Request({"type": "http"}, receive))
    assert await anext(chunks) == b"1"
    with pytest.raises(HTTPException) as caught:
        await anext(chunks)
    assert caught.value.status_code == 408
