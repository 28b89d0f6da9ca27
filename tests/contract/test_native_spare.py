"""The child that a sandbox's agent forks ahead of the next program: whatever happens to it, programs run."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.boxes import in_boxes, init_of, is_root, native
from tests.contract.test_native_leaves import run
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.model.box import BoxSpec, Command
from tidebox.runtime.base import Box

# Everything that a program is given at its start.
STATE = """
import os, resource
keys = ("Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters", "CoreDumping")
for line in open("/proc/self/status"):
    name = line.split(":")[0]
    if name in keys or name.startswith(("Cap", "Sig", "Shd")):
        print(line.strip())
print([resource.getrlimit(getattr(resource, name)) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")])
print(sorted(os.listdir("/proc/self/fd")), os.getcwd(), sorted(os.environ.items()))
print(os.getpid() == os.getpgrp() == os.getsid(0), os.getppid(), os.nice(0), sorted(os.sched_getaffinity(0)))
print([open(f"/proc/self/{name}").read() for name in ("oom_score_adj", "timerslack_ns")])
print([os.stat(fd).st_mode for fd in (0, 1, 2)], [os.stat(fd).st_uid for fd in (0, 1, 2)])
"""

pytestmark = pytest.mark.skipif(not is_root(), reason="without root user code could reach such a child: there is none")


@pytest.fixture
async def spawner_and_box(tmp_path: Path) -> AsyncIterator[tuple[int, Box]]:
    engine = Engine(load_settings(data_dir=tmp_path), pool=False)
    box = await engine.runtime.open(BoxSpec(kind="sandbox"))
    spawner = native(engine).spawner_pid()
    assert spawner is not None
    yield spawner, box
    await box.close()
    await engine.close()


def _spares(spawner: int) -> list[int]:
    """What is below the only init, and lives: with no program under way that is what waits for one."""
    return [pid for pid in in_boxes(spawner) if init_of(pid) != pid and _command(pid)]


def _await_spare(spawner: int) -> int:
    """It is forked when the word of the last program's end is on its way."""
    for _ in range(1000):
        if found := _spares(spawner):
            return found[0]
        time.sleep(0.01)
    raise AssertionError("nothing is kept ready")


def _await_end(pid: int) -> None:
    for _ in range(1000):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} was not reaped")


def _command(pid: int) -> bytes:
    """Empty of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_there_is_one_after_the_first_program_and_it_becomes_the_next(spawner_and_box: tuple[int, Box]) -> None:
    spawner, box = spawner_and_box
    assert _spares(spawner) == []
    assert (await run(box, "echo", "one"))[0] == b"one\n"
    assert (await run(box, "echo", "two"))[0] == b"two\n"
    ready = await asyncio.to_thread(_await_spare, spawner)
    program = await box.exec(Command(argv=["sleep", "60"]))
    await anext(program.events())
    assert _command(ready) == b"sleep\x0060\x00"
    await program.signal(signal.SIGKILL)


async def test_what_it_becomes_is_what_any_child_becomes(spawner_and_box: tuple[int, Box]) -> None:
    spawner, box = spawner_and_box
    forked, _ = await run(box, "python3", "-c", STATE)
    await asyncio.to_thread(_await_spare, spawner)
    became, exited = await run(box, "python3", "-c", STATE)
    assert exited.code == 0
    assert became == forked
    assert b"Seccomp:\t2" in became
    assert b"CapEff:\t0000000000000000" in became
    assert b"Uid:\t1000\t1000\t1000\t1000" in became


async def test_one_that_died_is_replaced(spawner_and_box: tuple[int, Box]) -> None:
    spawner, box = spawner_and_box
    for _ in range(3):
        await run(box, "true")
        ready = await asyncio.to_thread(_await_spare, spawner)
        os.kill(ready, signal.SIGKILL)
        await asyncio.to_thread(_await_end, ready)
        text, exited = await run(box, "echo", "still")
        assert (text, exited.code) == (b"still\n", 0)


async def test_a_command_that_is_too_large_for_it_has_a_child_of_its_own(spawner_and_box: tuple[int, Box]) -> None:
    _, box = spawner_and_box
    await run(box, "true")
    words = ["x" * 100_000] * 3
    text, _ = await run(box, "sh", "-c", "printf %s $#", "sh", *words)
    assert text == b"3"


async def test_programs_cannot_see_or_signal_it(spawner_and_box: tuple[int, Box]) -> None:
    spawner, box = spawner_and_box
    await run(box, "true")
    await asyncio.to_thread(_await_spare, spawner)
    script = "for pid in $(seq 1 200); do kill -0 $pid 2>/dev/null && [ $pid != $$ ] && echo $pid; done; true"
    assert (await run(box, "bash", "-c", script))[0] == b""


async def test_many_programs_at_once(spawner_and_box: tuple[int, Box]) -> None:
    _, box = spawner_and_box
    await run(box, "true")
    programs = [await box.exec(Command(argv=["cat"])) for _ in range(10)]
    for number, program in enumerate(programs):
        await program.write(b"%d" % number)
        await program.end_input()
    for number, program in enumerate(programs):
        text = b"".join([event.data async for event in program.events() if hasattr(event, "data")])
        assert text == b"%d" % number
