"""A program that is ordered together with its box: it is what a later one is, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.boxes import is_root, native
from tests.contract.test_native_single import template_of
from tests.contract.test_native_spare import STATE
from tests.contract.test_runtime import collect, output
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited
from tidebox.model.launch import plan_code
from tidebox.runtime.base import Box
from tidebox.runtime.native.runtime import NativeRuntime
from tidebox.runtime.native.spawner import SpawnerClient
from tidebox.runtime.program import encode_program

_SPEC = BoxSpec()


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[NativeRuntime]:
    engine = Engine(load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root()), pool=False)
    yield native(engine)
    await engine.close()
    assert engine.runtime.live_boxes() == 0


def block(source: str) -> bytes:
    return encode_program(plan_code("python", source).program, 0)


async def finish(box: Box) -> tuple[bytes, int | None]:
    assert box.first is not None
    events = await collect(box.first)
    await box.close()
    assert isinstance(events[-1], Exited)
    return output(events), events[-1].code


async def test_what_it_becomes_is_what_a_later_one_becomes(runtime: NativeRuntime) -> None:
    program = block(STATE)
    order = _order(runtime)
    first, code = await finish(await runtime.open(_SPEC, first=order, first_input=program))
    box = await runtime.open(_SPEC)
    box.first = await box.exec(order)
    await box.first.write(program)
    assert (first, code) == await finish(box)
    assert code == 0
    assert b"Seccomp:\t2" in first
    assert b"CapEff:\t0000000000000000" in first
    assert b"Uid:\t1000\t1000\t1000\t1000" in first


async def test_it_is_alone_in_a_box_that_stands(runtime: NativeRuntime) -> None:
    source = """
import os
print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()), os.getppid())
open("/workspace/file", "w").close(), open("/tmp/file", "w").close(), open("/dev/shm/file", "w").close()
for path in "/proc/self/oom_score_adj", "/proc/sys/kernel/hostname", "/usr/file":
    try:
        open(path, "w")
    except OSError as error:
        print(error.strerror)
print(os.uname().nodename, open("/proc/kallsyms").read() == "", os.listdir("/proc/irq"))
"""
    text, code = await finish(await runtime.open(_SPEC, first=_order(runtime), first_input=block(source)))
    assert text == b"[2] 0\n" + b"Read-only file system\n" * 3 + b"tidebox True []\n"
    assert code == 0


def _order(runtime: NativeRuntime) -> Command:
    command = runtime.parking("python", "host", at_once=True)
    assert command is not None
    return command


@pytest.mark.parametrize("ending", ["os._exit(3)", "os.kill(os.getpid(), 9)", "os.close(2); raise SystemExit(3)"])
async def test_the_end_of_one_that_is_over_at_once_is_told(runtime: NativeRuntime, ending: str) -> None:
    for _ in range(10):
        box = await runtime.open(_SPEC, first=_order(runtime), first_input=block(f"import os; {ending}"))
        assert (await finish(box))[1] == (None if "kill" in ending else 3)


async def test_one_that_is_over_before_its_box_is_known_was_there(
    runtime: NativeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidebox.runtime.native.spawner._LAST_WORD_SECONDS", 0.0)
    await (await runtime.open(_SPEC)).close()
    spawner = runtime.spawner_pid()
    assert spawner is not None
    template = template_of(runtime)
    os.kill(template, signal.SIGSTOP)
    opening = asyncio.ensure_future(runtime.open(_SPEC, first=_order(runtime), first_input=block("print(1)")))
    # Time to pass the order on, then to run the program: nobody would tell.
    await asyncio.sleep(0.3)
    os.kill(spawner, signal.SIGSTOP)
    os.kill(template, signal.SIGCONT)
    await asyncio.sleep(0.5)
    os.kill(spawner, signal.SIGCONT)
    assert await finish(await opening) == (b"1\n", 0)


async def test_one_whose_directory_is_not_there_says_so(runtime: NativeRuntime) -> None:
    argv = _order(runtime).argv
    box = await runtime.open(_SPEC, first=Command(argv=argv, cwd="/nowhere"), first_input=block("print(1)"))
    assert box.first is not None
    with pytest.raises(Exception, match="No such file or directory"):
        await collect(box.first)
    await box.close()


async def test_many_at_once_and_some_that_nobody_waits_for(runtime: NativeRuntime, tmp_path: Path) -> None:
    async def one(number: int) -> None:
        box = await runtime.open(_SPEC, first=_order(runtime), first_input=block(f"print({number})"))
        assert await finish(box) == (b"%d\n" % number, 0)

    async def left(number: int) -> None:
        opening = asyncio.ensure_future(runtime.open(_SPEC, first=_order(runtime)))
        await asyncio.sleep(number / 1000)
        if not opening.cancel():
            await (await opening).close()

    await asyncio.gather(*(one(number) for number in range(20)), *(left(number) for number in range(10)))


async def test_usage_is_counted_although_nobody_waited_for_the_first_box(
    runtime: NativeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_root():
        pytest.skip("needs a cgroup, which an ordinary user has only where one is delegated")
    asked: asyncio.Future[SpawnerClient] = asyncio.get_running_loop().create_future()
    send = SpawnerClient.send

    def noting(spawner: SpawnerClient, operation: str, **fields: Any) -> asyncio.Future[Any]:
        if operation == "open" and not asked.done():
            asked.set_result(spawner)
        return send(spawner, operation, **fields)

    monkeypatch.setattr(SpawnerClient, "send", noting)
    opening = asyncio.ensure_future(runtime.open(_SPEC))
    spawner = await asked
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    # Answered only after the box that nobody waits for.
    await spawner.request("facts")
    box = await runtime.open(_SPEC, first=_order(runtime), first_input=block("print(1)"))
    usage = await box.usage()
    assert usage.cpu_seconds is not None
    assert usage.memory_peak is not None
    assert await finish(box) == (b"1\n", 0)


async def test_a_program_has_its_limits(tmp_path: Path) -> None:
    engine = Engine(load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root()), pool=False)
    source = "import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE))"
    result = await run_on(engine, source, open_files=77)
    assert result.stdout == b"(77, 77) (1, 1)\n"
    await engine.close()
