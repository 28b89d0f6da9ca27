"""Parts of Tidebox that do not answer, as those that are stuck in the kernel: nobody waits for them for ever.

A process that is stopped does not answer and can be killed. One in a frozen control group (v1) cannot even be killed,
like one in an uninterruptible call.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.boxes import BoxRunner, descendants, in_boxes, is_root, native, parent_of, start_runner
from tests.contract.test_native_faults import alive, wait_until
from tidebox.embedded import run_on
from tidebox.errors import BoxGone, StartupTimeout
from tidebox.runtime.native import box as native_box
from tidebox.runtime.native.spawner import SpawnerClient

FREEZER = Path("/sys/fs/cgroup/freezer")
needs_freezer = pytest.mark.skipif(
    not is_root() or not FREEZER.is_dir(), reason="on cgroup v2 frozen processes can be killed"
)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[BoxRunner]:
    """One that has run a program; no cell is ready."""
    runner = start_runner(
        tmp_path,
        pool_node=0,
        pool_python=0,
        pool_blank=0,
        allow_weak_isolation=not is_root(),
    )
    assert runner("print(1)").stdout == b"1\n"
    yield runner
    runner.loop.call_soon_threadsafe(runner.loop.stop)
    runner.thread.join()
    runner.loop.close()


@contextlib.contextmanager
def starting_within(runner: BoxRunner, seconds: float) -> Iterator[None]:
    """Give programs so little time to start, while they cannot: on a busy machine it may be too little for others."""
    usual = runner.engine.settings
    runner.engine.settings = dataclasses.replace(usual, default_startup_timeout_sec=seconds)
    yield
    runner.engine.settings = usual


def close(runner: BoxRunner, within: float) -> None:
    began = time.monotonic()
    runner.submit(runner.engine.close()).result(timeout=60)
    assert time.monotonic() - began < within


def parts(runner: BoxRunner) -> dict[str, list[int]]:
    spawner = native(runner.engine).spawner_pid()
    assert spawner is not None
    # What built the root of the boxes, the template, the maker of hulls.
    return {"spawner": [spawner], "templates": sorted(set(descendants(spawner)) - set(in_boxes(spawner)))}


@pytest.mark.parametrize("which", ["spawner", "templates"])
def test_a_start_that_hangs_is_given_up_and_the_next_works(runner: BoxRunner, which: str) -> None:
    wait_until(lambda: runner.engine.runtime.live_boxes() == 0, "a box was left")
    (spawner,) = parts(runner)["spawner"]
    stopped = parts(runner)[which]
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    for _ in range(2):
        began = time.monotonic()
        refused = pytest.raises(StartupTimeout, match="could not be started within 1 s")
        with starting_within(runner, 1.0), refused:
            runner("print(2)")
        assert time.monotonic() - began < 10
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: answers(runner), "it did not recover")
    processes = [spawner, *descendants(spawner)]
    close(runner, within=30)
    wait_until(lambda: not alive(processes), "something was left")


def answers(runner: BoxRunner) -> bool:
    try:
        return runner("print(3)").stdout == b"3\n"
    except StartupTimeout:
        return False


def test_closing_does_not_wait_for_a_spawner_that_does_not_answer(runner: BoxRunner) -> None:
    wait_until(lambda: runner.engine.runtime.live_boxes() == 0, "a box was left")
    run = runner.submit(run_on(runner.engine, command=["sleep", "600"], timeout=600.0))
    wait_until(lambda: runner.engine.runtime.live_boxes() == 1, "the program did not start")
    (spawner,) = parts(runner)["spawner"]
    processes = [spawner, *descendants(spawner)]
    os.kill(spawner, signal.SIGSTOP)
    close(runner, within=8)
    with pytest.raises(BoxGone):
        run.result(timeout=20)
    wait_until(lambda: not alive(processes), "something outlived the spawner")


def test_a_spawner_whose_start_was_given_up_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not half of it: what it has not told yet is needed for every box."""
    started = []
    start = SpawnerClient.start

    def start_stopped(*arguments: object) -> SpawnerClient:
        spawner = start(*arguments)  # type: ignore[arg-type]
        started.append(spawner.pid)
        if len(started) == 1:
            os.kill(spawner.pid, signal.SIGSTOP)
        return spawner

    monkeypatch.setattr(SpawnerClient, "start", start_stopped)
    runner = start_runner(
        tmp_path,
        pool_node=0,
        pool_python=0,
        pool_blank=0,
        allow_weak_isolation=not is_root(),
    )
    with starting_within(runner, 1.5), pytest.raises(StartupTimeout):
        runner("print(1)")
    wait_until(lambda: answers(runner), "the next start did not work")
    assert started[1:]
    assert not alive(started[:1])
    close(runner, within=30)


class Freezer:
    """A frozen control group for processes that are to be stuck."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, pid: int) -> None:
        if not self.path.exists():
            self.path.mkdir()
        (self.path / "cgroup.procs").write_text(str(pid))
        self.set("FROZEN")

    def set(self, state: str) -> None:
        (self.path / "freezer.state").write_text(state)

    def remove(self) -> None:
        self.set("THAWED")
        wait_until(lambda: not (self.path / "cgroup.procs").read_text(), "the frozen process lives on")
        self.path.rmdir()


@needs_freezer
def test_closing_does_not_wait_for_a_spawner_that_cannot_be_killed(runner: BoxRunner) -> None:
    (spawner,) = parts(runner)["spawner"]
    freezer = Freezer(FREEZER / f"stuck-test-{os.getpid()}")
    freezer.add(spawner)
    try:
        close(runner, within=20)
        assert alive([spawner])
    finally:
        freezer.remove()


@needs_freezer
def test_a_box_that_cannot_be_killed_keeps_nobody_waiting(runner: BoxRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_box, "_DEATH_SECONDS", 1.0)
    run = runner.submit(run_on(runner.engine, command=["sleep", "600"], timeout=4.0))
    spawner = parts(runner)["spawner"][0]
    wait_until(lambda: b"sleep" in commands(descendants(spawner)), "the program did not start")
    (program,) = (pid for pid in descendants(spawner) if commands([pid]) == {b"sleep"})
    place = Path(f"/proc/{program}/cgroup").read_text().partition(":freezer:")[2].partition("\n")[0]
    freezer = Freezer(Path(f"{FREEZER}{place}"))
    freezer.set("FROZEN")
    with pytest.raises(BoxGone, match="stuck in the kernel"):
        run.result(timeout=30)
    assert alive([program])
    # The others have theirs.
    assert runner("print('next')").stdout == b"next\n"
    freezer.set("THAWED")
    wait_until(lambda: not alive([program]), "it outlived its box")
    close(runner, within=20)


def commands(pids: list[int]) -> set[bytes]:
    found = set()
    for pid in pids:
        try:
            found.add(Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0])
        except OSError:
            continue
    return found


STUCK_TEMPLATE = """
import os, signal, sys, time
from tidebox.spawner import template
from tidebox.spawner.steps import StepFailed

template._ANSWER_SECONDS = 1
found = []
def stop(pid):
    found.append(pid)
    os.kill(pid, signal.SIGSTOP)
began = time.monotonic()
try:
    template.start([], [], 0x60000000 if os.getuid() == 0 else None, False, False, False, stop)
except StepFailed as error:
    print(error.step, os.strerror(error.errno), time.monotonic() - began < 8, os.path.exists(f"/proc/{found[0]}"))
"""


def test_the_spawner_does_not_wait_for_a_template_that_never_stands() -> None:
    command = [sys.executable, "-c", STUCK_TEMPLATE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("set up the template Connection timed out True False\n", "")


CALLER = """
import sys, time, tidebox
while True:
    try:
        tidebox.run("pass")
        break
    except tidebox.errors.StartupTimeout:
        pass  # a busy machine
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
try:
    tidebox.run("pass", timeout=1)
except tidebox.errors.StartupTimeout as error:
    print(error.code, time.monotonic() - began < 10, flush=True)
"""


def test_the_library_call_raises_and_the_process_ends(tmp_path: Path) -> None:
    cells = {f"SANDBOX_POOL_{name}": "0" for name in ("BLANK", "PYTHON", "NODE")}
    environment = {
        **os.environ,
        **cells,
        "SANDBOX_DATA_DIR": str(tmp_path),
        "SANDBOX_ALLOW_WEAK_ISOLATION": "1",
        "SANDBOX_DEFAULT_STARTUP_TIMEOUT_SEC": "1",
    }
    caller = subprocess.Popen(
        [sys.executable, "-c", "import tidebox.errors" + CALLER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert caller.stdout is not None
    assert caller.stdout.readline() == "ready\n"
    (spawner,) = (pid for pid in descendants(caller.pid) if parent_of(pid) == caller.pid)
    below = [spawner, *descendants(spawner)]
    os.kill(spawner, signal.SIGSTOP)
    began = time.monotonic()
    out, _ = caller.communicate("go\n", timeout=50)
    assert (caller.returncode, out) == (0, "startup_timeout True\n")
    assert time.monotonic() - began < 30
    wait_until(lambda: not alive(below), "the spawner was left")


async def test_cancelling_a_start_that_hangs_ends_it(runner: BoxRunner) -> None:
    from tidebox.model.one_shot_flag import OneShotFlag

    (spawner,) = parts(runner)["spawner"]
    os.kill(spawner, signal.SIGSTOP)
    cancel = OneShotFlag()
    run = runner.submit(run_on(runner.engine, "print(1)", cancel=cancel))
    await asyncio.sleep(0.2)
    set_it: Callable[[], None] = cancel.set
    runner.loop.call_soon_threadsafe(set_it)
    result = await asyncio.wait_for(asyncio.wrap_future(run), 10)
    assert (result.outcome.value, result.exit_code) == ("cancelled", None)
    os.kill(spawner, signal.SIGCONT)
    await asyncio.wrap_future(runner.submit(runner.engine.close()))
