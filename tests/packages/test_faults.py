"""What must never be used half-made: two at once, a killed process, a full disk, a download that ends too soon."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.boxes import native
from tests.cli.command import TIDEBOX, error_line, tidebox
from tests.packages.conftest import Box
from tests.packages.index import Index
from tidebox.embedded import Engine, run_on
from tidebox.errors import FetchFailed, PackageUnresolvable
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.runtime.images import ImageStore
from tidebox.runtime.layers import LayerStore
from tidebox.runtime.packaging import making
from tidebox.runtime.shelf import Shelf, closing

PROGRAM = "import slow; print(slow.X)"


@pytest.fixture
def slow(index: Index) -> Index:
    """An index with a package of some size that does not come yet."""
    index.add("slow", {"slow.py": "X = 7\n", "slow.bin": os.urandom(2 << 20)})
    index.gate.clear()
    return index


def wait_for_archive(index: Index, count: int = 1) -> None:
    deadline = time.monotonic() + 40
    while index.asked["/files/slow-1.0-py3-none-any.whl"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def settings(index: Index, data_dir: Path) -> dict[str, str]:
    return {**index.environment, "SANDBOX_DATA_DIR": str(data_dir)}


def test_many_who_ask_at_once_wait_for_one(box: Box, slow: Index) -> None:
    running = [box.runner.submit(run_on(box.engine, PROGRAM, packages=["slow"])) for _ in range(4)]
    wait_for_archive(slow)
    slow.gate.set()
    assert [future.result(60).stdout for future in running] == [b"7\n"] * 4
    assert slow.asked["/files/slow-1.0-py3-none-any.whl"] == 1


def test_two_processes_at_once_make_one_layer(slow: Index, tmp_path: Path) -> None:
    command = [TIDEBOX, "run", "--with", "slow", "-c", PROGRAM]
    environment = {**os.environ, **settings(slow, tmp_path)}
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, env=environment, stdout=pipe, stdin=subprocess.DEVNULL) as first,
        subprocess.Popen(command, env=environment, stdout=pipe, stdin=subprocess.DEVNULL) as second,
    ):
        wait_for_archive(slow)
        time.sleep(1)
        slow.gate.set()
        assert [process.communicate(timeout=90)[0] for process in (first, second)] == [b"7\n"] * 2
    assert slow.asked["/files/slow-1.0-py3-none-any.whl"] == 1
    assert len(ImageStore(tmp_path / "images").layers.list()) == 1


def test_what_a_killed_process_left_is_not_used_and_goes(slow: Index, tmp_path: Path) -> None:
    command = [TIDEBOX, "run", "--with", "slow", "-c", PROGRAM]
    environment = {**os.environ, **settings(slow, tmp_path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as process:
        wait_for_archive(slow)
        process.send_signal(signal.SIGKILL)
    root = tmp_path / "images" / "packages"
    assert list(root.glob("staging-*"))
    assert not ImageStore(tmp_path / "images").layers.list()
    slow.gate.set()
    done = tidebox("run", "--with", "slow", "-c", PROGRAM, env=settings(slow, tmp_path), seconds=90)
    assert (done.stdout, done.stderr) == (b"7\n", b"")
    assert not list(root.glob("staging-*"))
    assert not list(root.glob("building/*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A data directory with room for very little."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_told_and_leaves_nothing(index: Index, small_disk: Path) -> None:
    index.add("slow", {"slow.py": "X = 7\n", "slow.bin": os.urandom(8 << 20)})
    done = tidebox("run", "--with", "slow", "-c", PROGRAM, env=settings(index, small_disk), seconds=90)
    assert "No space left on device" in error_line(done)
    store = ImageStore(small_disk / "images")
    assert not store.layers.list()
    assert not list((small_disk / "images" / "packages").glob("staging-*"))
    # There is room for a smaller one.
    index.add("little", {"little.py": "X = 1\n"})
    done = tidebox("run", "--with", "little", "-c", "import little; print(little.X)", env=settings(index, small_disk))
    assert (done.stdout, done.stderr) == (b"1\n", b"")


def test_an_archive_that_ends_too_soon(box: Box, index: Index) -> None:
    file_name = index.add("short", {"short.py": "X = 7\n"})
    index.served[file_name] = index.files[file_name][:100]
    with pytest.raises(FetchFailed, match=r"short==1\.0"):
        box("1", packages=["short"])
    assert not any(item.lock.packages[0].name == "short" for item in box.images.layers.list())


def test_an_index_that_is_not_there(box: Box) -> None:
    box.use({"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"})
    with pytest.raises(PackageUnresolvable, match="cannot resolve unreachable"):
        box("1", packages=["unreachable"])


def test_a_program_can_be_cancelled_while_its_packages_come(box: Box, slow: Index) -> None:
    cancel = OneShotFlag()

    async def cancelled() -> object:
        task = asyncio.ensure_future(run_on(box.engine, PROGRAM, packages=["slow"], cancel=cancel))
        await asyncio.to_thread(wait_for_archive, slow)
        cancel.set()
        return (await task).outcome.value

    assert box.runner.submit(cancelled()).result(60) == "cancelled"
    # Somebody else may need them, and nobody their turn: they are made all the same.
    slow.gate.set()
    assert box(PROGRAM, packages=["slow"]).stdout == b"7\n"
    assert slow.asked["/files/slow-1.0-py3-none-any.whl"] == 1


def add_slow(index: Index, count: int) -> list[str]:
    names = [f"slow{number}" for number in range(count)]
    for name in names:
        index.add(name, {f"{name}.py": ""})
    return names


def fetched(index: Index) -> set[str]:
    return {path for path in index.asked if path.startswith("/files/slow") and path.endswith(".whl")}


async def eventually(wanted: Callable[[], bool]) -> None:
    def wait() -> None:
        deadline = time.monotonic() + 40
        while not wanted():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    await asyncio.to_thread(wait)


def test_what_is_there_is_found_while_others_are_made(box: Box, index: Index) -> None:
    index.add("tide", {"tide.py": "X = 7\n"})
    program = "import tide; print(tide.X)"
    box(program, packages=["tide"])
    names = add_slow(index, 4)
    index.gate.clear()

    async def run_beside() -> bytes:
        slow = [asyncio.ensure_future(run_on(box.engine, "1", packages=[name])) for name in names]
        await eventually(lambda: len(fetched(index)) == 2)
        try:
            async with asyncio.timeout(20):
                return (await run_on(box.engine, program, packages=["tide"])).stdout
        finally:
            index.gate.set()
            await asyncio.gather(*slow)

    assert box.runner.submit(run_beside()).result(90) == b"7\n"


def test_what_nobody_waits_for_takes_nobody_s_turn(box: Box, index: Index) -> None:
    names = add_slow(index, 12)
    index.gate.clear()

    async def give_up() -> int:
        switches = [OneShotFlag() for _ in names]
        tasks = [
            asyncio.ensure_future(run_on(box.engine, "1", packages=[name], cancel=switch))
            for name, switch in zip(names, switches, strict=True)
        ]
        await eventually(lambda: len(fetched(index)) == 2)
        for switch in switches:
            switch.set()
        await asyncio.gather(*tasks)
        index.gate.set()
        index.add("tide", {"tide.py": "X = 7\n"})
        done = await run_on(box.engine, "import tide; print(tide.X)", packages=["tide"])
        assert done.stdout == b"7\n"
        packager = box.engine._packager
        assert packager is not None
        await eventually(lambda: not packager._making)
        return len(fetched(index))

    assert box.runner.submit(give_up()).result(90) == 2


def test_who_asks_for_what_is_being_ended_gets_it_made_again(box: Box, index: Index) -> None:
    names = add_slow(index, 3)
    index.gate.clear()

    async def again() -> int | None:
        cancel = OneShotFlag()
        tasks = [
            asyncio.ensure_future(run_on(box.engine, "1", packages=[name], cancel=cancel if number == 2 else None))
            for number, name in enumerate(names)
        ]
        packager = box.engine._packager
        assert packager is not None
        await eventually(lambda: len(fetched(index)) == 2 and len(packager._making) == 3)
        last_made = list(packager._making.values())[-1]
        cancel.set()
        await eventually(lambda: last_made.ended)
        last = asyncio.ensure_future(run_on(box.engine, "import slow2", packages=[names[2]]))
        index.gate.set()
        await asyncio.gather(*tasks)
        return (await last).exit_code

    assert box.runner.submit(again()).result(90) == 0


def test_no_more_wait_than_may(box: Box, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "MOST_WAITING", 1)
    names = add_slow(index, 4)
    index.gate.clear()

    async def ask() -> list[object]:
        tasks = [asyncio.ensure_future(run_on(box.engine, "1", packages=[name])) for name in names]
        done, _ = await asyncio.wait(tasks, timeout=40, return_when=asyncio.FIRST_COMPLETED)
        index.gate.set()
        assert len(done) == 1
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = box.runner.submit(ask()).result(90)
    (refused,) = [result for result in results if isinstance(result, Exception)]
    assert isinstance(refused, FetchFailed)
    assert "try again later" in refused.message


def test_an_engine_that_ends_leaves_nothing(box: Box, slow: Index) -> None:
    future = box.runner.submit(run_on(box.engine, PROGRAM, packages=["slow"]))
    wait_for_archive(slow)

    async def close() -> None:
        assert box.engine._packager is not None
        await box.engine._packager.close()

    closing = box.runner.submit(close())
    slow.gate.set()
    closing.result(60)
    assert future.result(60).outcome.value == "cancelled"
    assert box.leftovers() == []
    box.use(slow.environment)
    assert box(PROGRAM, packages=["slow"]).stdout == b"7\n"


def test_images_that_were_not_used_the_longest_are_let_go_of(
    box: Box, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native(box.engine)._templates, "most", 4)
    for number in range(6):
        index.add(f"many{number}", {f"many{number}.py": ""})
        assert box(f"import many{number}", packages=[f"many{number}"]).exit_code == 0
    layers = {layer.lock.packages[0].name: layer for layer in box.images.layers.list()}
    for number in range(6):
        os.utime(layers[f"many{number}"].path.parent / "used", (1, 1))
    box.images.prune(0)
    assert not layers["many0"].path.exists(), "no box is made of it any more"
    assert layers["many5"].path.exists()
    assert box("import many0; print(1)", packages=["many0"]).stdout == b"1\n"


@pytest.fixture
def other_process(box: Box) -> Iterator[Callable[[], None]]:
    """Takes the lock of the layers for some seconds, when it is called."""
    taken, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with open(box.root / "lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            taken.set()
            let_go.wait(3)

    thread = threading.Thread(target=hold)

    def take() -> None:
        thread.start()
        assert taken.wait(10)

    yield take
    let_go.set()
    thread.join()


def test_the_event_loop_never_waits_for_the_lock(
    box: Box, index: Index, other_process: Callable[[], None], tmp_path: Path
) -> None:
    index.add("tide", {"tide.py": "X = 7\n"})
    box("1", packages=["tide"])

    async def slowest() -> float:
        # One that has made no box of the layer yet.
        engine = Engine(replace(box.engine.settings), pool=False)
        engine._packager = box.engine._packager
        try:
            await run_on(engine, "1")
            other_process()
            task = asyncio.ensure_future(run_on(engine, "import tide", packages=["tide"]))
            longest = 0.0
            while not task.done():
                before = time.monotonic()
                await asyncio.wait([task], timeout=0.01)
                longest = max(longest, time.monotonic() - before)
            assert (await task).exit_code == 0
            return longest
        finally:
            engine._packager = None
            await engine.close()

    assert box.runner.submit(slowest()).result(60) < 1.5


def test_files_are_removed_without_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(tmp_path, "things")
    with shelf.locked():
        (shelf.place / "old").mkdir()
        (shelf.place / "new").mkdir()
    free = []
    remove = shutil.rmtree

    def look(path: Path, ignore_errors: bool = False) -> None:
        with open(tmp_path / "lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free.append(path)
        remove(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", look)
    with shelf.locked():
        shelf.remove(lambda name: name == "new")
        assert [path.name for path in shelf.place.iterdir()] == ["new"]
    assert len(free) == 1
    assert not list(tmp_path.glob("staging-*"))


def test_staging_that_ends_while_another_begins(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "things")

    def stage(_number: int) -> None:
        with shelf.staging() as path:
            (path / "file").touch()

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(stage, range(3000)))) == 3000
    assert not list(tmp_path.glob("staging-*"))


def test_two_who_note_the_same(tmp_path: Path) -> None:
    store = LayerStore(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: store.keep_note("key", b"%d" % number, 60), range(2000)))
    assert store.note("key", 60)
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["key"]


def test_a_tool_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from tidebox.runtime.packaging.tools import PackageTools, Stop, ToolLimits\n"
        "command = ['/bin/sh', '-c', 'ulimit -f > limit; echo $$ > pid.new; mv pid.new pid; exec sleep 60']\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "tools = PackageTools({'PATH': '/usr/bin:/bin'}, ToolLimits(disk_bytes=1 << 20), place / 'log')\n"
        "tools.run(command, place, Stop(), purpose='tide', seconds=60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path]) as process:
        deadline = time.monotonic() + 20
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        tool = os.pidfd_open(int((tmp_path / "pid").read_text()))
        process.kill()
    with closing(tool):
        assert select.select([tool], [], [], 5)[0], "it still runs"
    assert (tmp_path / "limit").read_text() == "2048\n"
