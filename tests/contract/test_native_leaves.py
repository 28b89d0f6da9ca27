"""In a long-lived box every program has a cgroup leaf of its own: kill, usage and out-of-memory are per program."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.boxes import cgroups_of, is_root, native
from tests.patience import patient
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Event, Exited, OutputEvent
from tidebox.model.limits import MIB, Limits
from tidebox.runtime.base import Box, Exec
from tidebox.runtime.native.runtime import NativeRuntime

HOG = """
import time
held = bytearray(b"x" * (80 << 20))
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
"""
BOMB = "held = []\nwhile True:\n    held.append(bytearray(b'x' * (4 << 20)))"
ESCAPED = (
    "(setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 0.05; date +%s%N > /workspace/beat; done' &) ; sleep 600"
)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[NativeRuntime]:
    engine = Engine(load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root()), pool=False)
    if (await engine.runtime.probe()).missing:
        await engine.close()
        pytest.skip("needs a cgroup, which an ordinary user has only where one is delegated")
    yield native(engine)
    await engine.close()


@pytest.fixture
async def box(runtime: NativeRuntime) -> AsyncIterator[Box]:
    box = await runtime.open(BoxSpec(kind="sandbox", limits=Limits(memory=192 * MIB)))
    yield box
    await box.close()


async def events_of(program: Exec) -> list[Event]:
    return [event async for event in program.events()]


async def run(box: Box, *argv: str) -> tuple[bytes, Exited]:
    events = await events_of(await box.exec(Command(argv=argv)))
    assert isinstance(events[-1], Exited)
    return b"".join(event.data for event in events if isinstance(event, OutputEvent)), events[-1]


def leaves(runtime: NativeRuntime) -> list[Path]:
    """Those of programs in boxes; a walk, unlike a glob, goes on where one is removed meanwhile."""
    walks = (os.walk(root) for root in cgroups_of(runtime.spawner_pid()))
    return [Path(place, name) for walk in walks for place, names, _ in walk for name in names if name.startswith("e")]


async def test_usage_is_that_of_the_program_alone(box: Box) -> None:
    _, greedy = await run(box, "python3", "-c", HOG)
    _, modest = await run(box, "true")
    assert greedy.usage is not None
    assert modest.usage is not None
    assert greedy.usage["memory_peak_bytes"] >= 80 * MIB
    assert modest.usage["memory_peak_bytes"] < 40 * MIB
    assert greedy.usage["cpu_us"] >= 300_000 > modest.usage["cpu_us"]


async def test_a_kill_reaches_what_left_the_session_and_nothing_else(box: Box) -> None:
    neighbour = await box.exec(Command(argv=["cat"]))
    program = await box.exec(Command(argv=["sh", "-c", ESCAPED]))
    deadline = time.monotonic() + patient(30)
    while b"beat" not in (await run(box, "ls", "/workspace"))[0]:
        assert time.monotonic() < deadline, "the program did not start"
    await program.signal(signal.SIGKILL)
    last = (await events_of(program))[-1]
    assert isinstance(last, Exited)
    assert last.signal == signal.SIGKILL
    await asyncio.sleep(0.2)
    before, _ = await run(box, "cat", "/workspace/beat")
    await asyncio.sleep(0.5)
    assert (await run(box, "cat", "/workspace/beat"))[0] == before
    await neighbour.write(b"still here")
    await neighbour.end_input()
    assert (
        b"".join(event.data for event in await events_of(neighbour) if isinstance(event, OutputEvent)) == b"still here"
    )


async def test_a_program_out_of_memory_ends_alone(box: Box) -> None:
    neighbour = await box.exec(Command(argv=["cat"]))
    _, last = await run(box, "python3", "-c", BOMB)
    assert last.signal == signal.SIGKILL
    assert last.usage is not None
    assert last.usage["oom_kills"] >= 1
    await neighbour.end_input()
    end = (await events_of(neighbour))[-1]
    assert isinstance(end, Exited)
    assert (end.code, (end.usage or {}).get("oom_kills")) == (0, 0)


async def test_keys_never_wait_for_processor_time(runtime: NativeRuntime) -> None:
    """A shell that somebody types in uses so little that the limit never stops it, a small limit neither."""
    box = await runtime.open(BoxSpec(kind="sandbox", limits=Limits(cpus=0.25)))
    try:
        shell = await box.exec(Command(argv=["cat"], tty=(24, 80)))
        events = shell.events()
        before = throttled(runtime)
        for number in range(100):
            await shell.write(b"x" if number % 2 == 0 else b"\x7f")
            while not isinstance(await anext(events), OutputEvent):
                pass
            # A fast typist, and longer than time is counted over.
            await asyncio.sleep(0.025)
        assert throttled(runtime) == before
        # What was read is what counts: a program that does not stop is stopped.
        await run(box, "timeout", "1", "sh", "-c", "while :; do :; done")
        assert throttled(runtime) > before
    finally:
        await box.close()


def throttled(runtime: NativeRuntime) -> int:
    """How often boxes were stopped until they had processor time again."""
    files = [Path(place) / "cpu.stat" for root in cgroups_of(runtime.spawner_pid()) for place, _, _ in os.walk(root)]
    lines = [line.split() for file in files if file.exists() for line in file.read_text().splitlines()]
    return sum(int(value) for name, value in lines if name == "nr_throttled")


async def test_no_cgroup_of_the_machine_is_named(box: Box) -> None:
    text, _ = await run(box, "cat", "/proc/self/cgroup", "/proc/1/cgroup")
    assert b"tidebox" not in text
    assert b"slice" not in text


async def test_a_leaf_goes_with_its_program(runtime: NativeRuntime, box: Box) -> None:
    program = await box.exec(Command(argv=["cat"]))
    for _ in range(5):
        assert (await run(box, "true"))[1].code == 0
    # That of the program that runs, and with root that of the child kept ready for the next.
    ready = 1 if is_root() else 0
    await _until(lambda: len(_names(runtime)) == 1 + ready, "the leaf of a program that ended was not removed")
    before = _names(runtime)
    await program.end_input()
    await events_of(program)
    await _until(lambda: len(_names(runtime)) == ready, "the leaf was not removed")
    assert _names(runtime) < before


def _names(runtime: NativeRuntime) -> set[str]:
    return {path.name for path in leaves(runtime)}


async def _until(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + patient(30)
    while not condition():
        assert time.monotonic() < deadline, failure
        await asyncio.sleep(0.02)
