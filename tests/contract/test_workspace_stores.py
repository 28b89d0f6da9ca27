"""What every place for workspaces promises: one suite, with real boxes that their files come from and go to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.test_runtime import collect
from tidebox.broker.storage.local_workspace_store import LocalWorkspaceStore
from tidebox.broker.storage.workspace_store import WorkspaceStore
from tidebox.errors import NotFound, PayloadTooLarge, TideboxError
from tidebox.model.box import BoxSpec, Command
from tidebox.runtime.base import Runtime
from tidebox.untrusted_files.trees import TreeLimits

LIMITS = TreeLimits(max_bytes=100_000, max_entries=50)
STORES: dict[str, Callable[[Path], WorkspaceStore]] = {
    "files": lambda directory: LocalWorkspaceStore(directory / "sessions", LIMITS),
}


@pytest.fixture(params=STORES)
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], WorkspaceStore]:
    """Opens one store, as often as it is called."""
    return lambda: STORES[request.param](tmp_path)


@pytest.fixture
async def store(make_store: Callable[[], WorkspaceStore]) -> WorkspaceStore:
    store = make_store()
    await store.start()
    return store


@pytest.fixture
def stage(tmp_path: Path) -> Callable[..., Path]:
    """Makes directories with files in them."""

    def make(**files: str) -> Path:
        directory = tmp_path / f"stage-{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        for name, content in files.items():
            (directory / name).write_text(content)
        return directory

    return make


async def contents(store: WorkspaceStore, session_id: str) -> dict[str, bytes]:
    """The files of a session that are no links."""
    found = {}
    for file in await store.listing(session_id, 100):
        if file.link_target is None:
            descriptor = await store.open(session_id, file.path.split("/"))
            with os.fdopen(descriptor, "rb") as opened:
                found[file.path] = opened.read()
            assert file.size == len(found[file.path])
    return found


async def run(runtime: Runtime, store: WorkspaceStore, session_id: str, script: str) -> int:
    """Run a script on the files of a session, and keep what it leaves; how much was left out."""
    box = await runtime.open(BoxSpec())
    try:
        await store.place(session_id, box)
        await collect(await box.exec(Command(argv=("sh", "-c", script))))
        await box.stop()
        return await store.keep(session_id, box)
    finally:
        await box.close()


async def test_a_workspace_is_empty_at_first_and_gone_at_last(store: WorkspaceStore) -> None:
    assert await store.ids() == []
    for _ in range(2):
        await store.create("ses-1")
        assert (await store.ids(), await store.listing("ses-1", 10)) == (["ses-1"], [])
    for _ in range(2):
        await store.remove("ses-1")
        assert (await store.ids(), await store.listing("ses-1", 10)) == ([], [])


async def test_runs_find_what_was_put_and_what_others_left(
    store: WorkspaceStore, runtime: Runtime, stage: Callable[..., Path]
) -> None:
    await store.create("ses-1")
    tally = await store.put("ses-1", stage(a="1", b="2"))
    assert (tally.files, tally.bytes) == (2, 2)
    assert await run(runtime, store, "ses-1", "cat a b > c; rm a; mkdir d; echo x > d/e; ln -s c f; mkfifo g") == 1
    assert await contents(store, "ses-1") == {"b": b"2", "c": b"12", "d/e": b"x\n"}
    assert {file.path: file.link_target for file in await store.listing("ses-1", 10)}["f"] == "c"
    assert await run(runtime, store, "ses-1", "cat f d/e > h; rm -r b c d f") == 0
    assert await contents(store, "ses-1") == {"h": b"12x\n"}
    await store.put("ses-1", stage(h="new", i=""))
    assert await contents(store, "ses-1") == {"h": b"new", "i": b""}
    assert len(await store.listing("ses-1", 1)) == 1


async def test_sessions_do_not_see_each_other(store: WorkspaceStore, stage: Callable[..., Path]) -> None:
    for name in ("ses-1", "ses-2"):
        await store.create(name)
        await store.put(name, stage(name=name))
    assert [await contents(store, name) for name in ("ses-1", "ses-2")] == [{"name": b"ses-1"}, {"name": b"ses-2"}]
    await store.remove("ses-1")
    assert await contents(store, "ses-2") == {"name": b"ses-2"}


async def test_what_is_too_much_changes_nothing(
    store: WorkspaceStore, runtime: Runtime, stage: Callable[..., Path]
) -> None:
    await store.create("ses-1")
    await store.put("ses-1", stage(a="1"))
    with pytest.raises(PayloadTooLarge):
        await store.put("ses-1", stage(b="2" * 200_000))
    with pytest.raises(TideboxError):
        await run(runtime, store, "ses-1", "head -c 200000 /dev/zero | tr '\\0' x > b")
    assert await contents(store, "ses-1") == {"a": b"1"}


async def test_a_file_in_the_place_of_a_directory_is_refused(
    store: WorkspaceStore, runtime: Runtime, stage: Callable[..., Path]
) -> None:
    await store.create("ses-1")
    await run(runtime, store, "ses-1", "mkdir d; echo 1 > d/e")
    with pytest.raises(TideboxError):
        await store.put("ses-1", stage(d="2"))
    assert await contents(store, "ses-1") == {"d/e": b"1\n"}


async def test_no_path_leads_out(store: WorkspaceStore, runtime: Runtime) -> None:
    await store.create("ses-1")
    await run(runtime, store, "ses-1", "ln -s /etc/passwd p; ln -s / root; ln -s ../.. up")
    for parts in (["p"], ["root", "etc", "passwd"], ["up", "x"], ["no-such-file"], ["..", "..", "x"]):
        with pytest.raises(NotFound):
            await store.open("ses-1", parts)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "a\0b", "x" * 100])
async def test_what_is_no_name_of_a_session_is_refused(store: WorkspaceStore, name: str) -> None:
    for use in (store.create, store.remove):
        with pytest.raises(NotFound):
            await use(name)
    assert await store.ids() == []


async def test_what_was_kept_is_there_for_the_next_server(
    make_store: Callable[[], WorkspaceStore], stage: Callable[..., Path]
) -> None:
    first = make_store()
    await first.start()
    await first.create("ses-1")
    await first.put("ses-1", stage(a="1"))
    second = make_store()
    await second.start()
    assert await second.ids() == ["ses-1"]
    assert await contents(second, "ses-1") == {"a": b"1"}
