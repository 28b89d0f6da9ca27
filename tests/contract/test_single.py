"""A box for a single program: it has that one, and nothing that it does not need."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.boxes import init_of, is_root
from tests.contract.test_runtime import collect, output
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.errors import BoxGone, ExecFailed, PayloadTooLarge
from tidebox.model.events import Exited
from tidebox.model.limits import MIB, Limits
from tidebox.runtime.base import Box, BoxSpec, Command
from tidebox.runtime.native.runtime import NativeRuntime
from tidebox.runtime.native.spawner import Spawner


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[NativeRuntime]:
    engine = Engine(load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root()), pool=False)
    yield engine.runtime
    await engine.close()
    assert engine.runtime.live_boxes() == 0


@pytest.fixture
async def box(runtime: NativeRuntime) -> AsyncIterator[Box]:
    box = await runtime.open(BoxSpec(single=True, limits=Limits(workspace=4 * MIB)))
    yield box
    await box.close()


async def test_it_runs_one_program_and_no_second(box: Box) -> None:
    events = await collect(await box.exec(Command(argv=["cat"])), b"whole")
    assert output(events) == b"whole"
    assert isinstance(events[-1], Exited)
    assert events[-1].code == 0
    with pytest.raises(ExecFailed, match="one program"):
        await box.exec(Command(argv=["true"]))


async def test_a_program_that_could_not_be_started_was_the_one(box: Box) -> None:
    with pytest.raises(ExecFailed) as caught:
        await collect(await box.exec(Command(argv=["no-such-program"])))
    assert caught.value.details["kind"] == "not_found"


@pytest.mark.parametrize(
    "command", [Command(argv=["sh"], tty=(24, 80)), Command(argv=["echo", "x" * 100_000])], ids=["terminal", "size"]
)
async def test_what_it_cannot_run_is_refused_and_said_before(box: Box, command: Command) -> None:
    assert not command.single
    with pytest.raises(ExecFailed, match="one program"):
        await box.exec(command)


async def test_it_has_no_agent_to_ask_for_files(box: Box) -> None:
    with pytest.raises(ExecFailed, match="without an agent"):
        await box.files.list("/workspace")


async def test_signals_reach_the_program_and_what_it_started(box: Box) -> None:
    script = "trap 'echo told; exit 7' TERM; sleep 600 & echo ready; wait"
    program = await box.exec(Command(argv=["sh", "-c", script]))
    seen = b""
    async for event in program.events():
        seen += output([event])
        if seen == b"ready\n":
            await program.signal(signal.SIGTERM)
            seen += b"sent\n"
        if isinstance(event, Exited):
            assert event.code == 7
    assert seen == b"ready\nsent\ntold\n"


async def test_orphans_are_taken_whenever_they_end(box: Box) -> None:
    script = """
import os, time
for _ in range(100):
    if not os.fork():
        if not os.fork():
            time.sleep(0.01)
        os._exit(0)
    os.wait()
def dead():
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            pass
    return found
deadline = time.monotonic() + 20
while dead() and time.monotonic() < deadline:
    time.sleep(0.01)
print(dead())
"""
    events = await collect(await box.exec(Command(argv=["python3", "-c", script])))
    assert output(events) == b"0\n"


async def test_files_are_put_there_before_the_program(box: Box) -> None:
    await box.put({"main.txt": b"main", "deep/er/file.bin": bytes(range(256))})
    await box.put({"main.txt": b"again"})
    script = "cat main.txt; wc -c < deep/er/file.bin; echo more >> deep/er/file.bin && stat -c %U deep deep/er/file.bin"
    events = await collect(await box.exec(Command(argv=["sh", "-c", script])))
    assert output(events).splitlines() == [b"again256", b"user", b"user"]


async def test_files_that_do_not_fit_are_refused(box: Box) -> None:
    with pytest.raises(PayloadTooLarge, match="do not fit"):
        await box.put({"large": bytes(8 * MIB)})


async def test_a_box_that_cannot_be_asked_for_costs_no_descriptor(
    runtime: NativeRuntime, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "none left")

    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(Spawner, "send", refuse)
    for single in (True, False):
        with pytest.raises(OSError, match="none left"):
            await runtime.open(BoxSpec(single=single, limits=Limits(workspace=4 * MIB)))
    assert sorted(os.listdir("/proc/self/fd")) == before
    monkeypatch.undo()


async def test_the_end_of_init_ends_the_program(box: Box) -> None:
    seconds = str(100_000 + os.getpid())
    program = await box.exec(Command(argv=["sh", "-c", f"echo up; exec sleep {seconds}"]))
    events = program.events()
    while output([await anext(events)]) != b"up\n":
        pass
    gone = asyncio.Event()
    box.on_gone(gone.set)
    async with asyncio.timeout(20):
        program_pid = await asyncio.to_thread(_await_process, ["sleep", seconds])
        os.kill(init_of(program_pid), signal.SIGKILL)
        with pytest.raises(BoxGone):
            await anext(events)
        await gone.wait()


def _await_process(argv: list[str]) -> int:
    wanted = b"".join(argument.encode() + b"\0" for argument in argv)
    for _ in range(1000):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if _command(pid) == wanted:
                return int(pid)
        time.sleep(0.01)
    raise AssertionError(f"nothing runs {argv}")


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
