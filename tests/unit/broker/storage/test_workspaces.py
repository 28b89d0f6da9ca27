"""Who may use a session's workspace when."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tidebox.broker.storage import local_workspace_store as workspace_files
from tidebox.broker.storage import workspaces as module
from tidebox.broker.storage.local_workspace_store import LocalWorkspaceStore
from tidebox.broker.storage.workspaces import Workspaces
from tidebox.errors import Conflict, NotFound, PayloadTooLarge
from tidebox.untrusted_files import durability
from tidebox.untrusted_files.trees import TreeLimits

LIMITS = TreeLimits(max_bytes=1000, max_entries=20)


async def there() -> None:
    """The session is there."""


async def gone() -> None:
    """The session is gone."""
    raise NotFound("no such session")


@pytest.fixture
async def workspaces(tmp_path: Path) -> Workspaces:
    found = Workspaces(LocalWorkspaceStore(tmp_path / "sessions", LIMITS))
    await found.store.start()
    return found


def stage(tmp_path: Path, **files: str) -> Path:
    """Files that are to be put into a workspace."""
    directory = tmp_path / "stage"
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_text(content)
    return directory


async def test_an_upload_does_not_wait_for_ever(workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UPLOAD_WAIT_SECONDS", 0.05)
    held = await workspaces.hold("ses-1")
    with pytest.raises(Conflict):
        async with workspaces.for_upload("ses-1", there):
            pass
    held.release()
    held.release()
    async with workspaces.for_upload("ses-1", there):
        pass


async def test_what_was_put_is_on_the_disk_before_anybody_hears_of_it(
    workspaces: Workspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[list[str]] = []

    def flush(directory: int) -> None:
        flushed.append(os.listdir(tmp_path / "sessions" / "ses-1" / "workspace"))
        durability.flush(directory)

    monkeypatch.setattr(workspace_files, "flush", flush)
    async with workspaces.for_upload("ses-1", there) as held:
        await held.put(stage(tmp_path, new="1"))
    assert flushed == [["new"]]


async def test_waiting_users_take_turns(workspaces: Workspaces) -> None:
    order: list[int] = []

    async def use(number: int) -> None:
        held = await workspaces.hold("ses-1")
        order.append(number)
        await asyncio.sleep(0.01)
        order.append(number)
        held.release()

    await asyncio.gather(*(use(number) for number in range(5)))
    assert order == [number for number in range(5) for _ in range(2)]


async def test_a_cancelled_waiter_does_not_block_the_workspace(workspaces: Workspaces) -> None:
    held = await workspaces.hold("ses-1")
    waiting = asyncio.create_task(workspaces.hold("ses-1"))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    held.release()
    (await asyncio.wait_for(workspaces.hold("ses-1"), 30)).release()


async def test_an_upload_to_a_session_that_was_removed_leaves_nothing(workspaces: Workspaces, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        async with workspaces.for_upload("ses-1", gone):
            pass
    assert await workspaces.store.ids() == []
    await workspaces.remove("ses-1")


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "a\0b", "x" * 100])
async def test_names_that_are_no_session_ids_are_refused(workspaces: Workspaces, name: str) -> None:
    with pytest.raises(NotFound):
        await workspaces.hold(name)
    with pytest.raises(NotFound):
        await workspaces.remove(name)


async def test_an_upload_that_is_too_large_changes_nothing(workspaces: Workspaces, tmp_path: Path) -> None:
    async with workspaces.for_upload("ses-1", there) as held:
        await held.put(stage(tmp_path, a="1" * 600))
        with pytest.raises(PayloadTooLarge):
            await held.put(_more(tmp_path, b="2" * 600))
        with pytest.raises(PayloadTooLarge):
            await held.put(_more(tmp_path, **{f"f{number}": "" for number in range(30)}))
        assert [path.name for path in (tmp_path / "sessions" / "ses-1").iterdir()] == ["workspace"]
    assert [file.path for file in await workspaces.store.listing("ses-1", 10)] == ["a"]


def _more(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "more").mkdir(exist_ok=True)
    base = tmp_path / "more" / str(len(list((tmp_path / "more").iterdir())))
    base.mkdir()
    return stage(base, **files)


async def test_a_file_that_is_read_while_it_is_replaced_is_one_of_both(workspaces: Workspaces, tmp_path: Path) -> None:
    async with workspaces.for_upload("ses-1", there) as held:
        await held.put(_more(tmp_path, a="0"))

    async def replace() -> None:
        for number in range(30):
            async with workspaces.for_upload("ses-1", there) as held:
                await held.put(_more(tmp_path, a=str(number)))

    async def read() -> None:
        for _ in range(60):
            assert [file.path for file in await workspaces.store.listing("ses-1", 10)] == ["a"]

    await asyncio.gather(replace(), read())


async def test_a_session_without_files(workspaces: Workspaces) -> None:
    assert await workspaces.store.listing("ses-1", 10) == []
    with pytest.raises(NotFound):
        await workspaces.store.open("ses-1", ["a"])


async def test_a_file_that_is_mostly_a_hole_takes_little_room(workspaces: Workspaces, tmp_path: Path) -> None:
    sparse = _more(tmp_path, hole="")
    os.truncate(sparse / "hole", LIMITS.max_bytes * 1000)
    async with workspaces.for_upload("ses-1", there) as held:
        await held.put(sparse)
        tally = await held.put(_more(tmp_path, a="1"))
    assert (tally.files, tally.bytes) == (2, 1)
