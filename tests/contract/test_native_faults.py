"""Killing parts of Tidebox leaves nothing behind: no process of a box within two seconds, no cgroup after the sweep."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.boxes import (
    BoxRunner,
    cgroups_of,
    descendants,
    in_boxes,
    init_of,
    is_root,
    native,
    start_runner,
    stop_runner,
)
from tests.patience import patient
from tidebox.embedded import run_on
from tidebox.errors import BoxGone

SLEEPER = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
OWNER = """
import asyncio, sys
from pathlib import Path
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on

async def main():
    engine = Engine(load_settings(data_dir=Path(sys.argv[1]), allow_weak_isolation=True, pool_node=0))
    engine.start()
    await engine.pool.filled()
    run = asyncio.create_task(run_on(engine, sys.argv[2], timeout=600.0))
    while engine.runtime.live_boxes() < 5:
        await asyncio.sleep(0.01)
    print(engine.runtime.spawner_pid(), flush=True)
    await run

asyncio.run(main())
"""


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[BoxRunner]:
    # No guests: the processes of one template are counted.
    runner = start_runner(tmp_path, pool_node=0, pool_python=2, pool_guests=0, allow_weak_isolation=not is_root())
    yield runner
    stop_runner(runner)


def wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + patient(30)
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and not is_zombie(pid)]


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def start_sleeper(runner: BoxRunner) -> tuple[Future[Any], int, list[int]]:
    """A long run, the spawner, and every process of every box."""
    run = runner.submit(run_on(runner.engine, SLEEPER, timeout=600.0))
    wait_until(lambda: native(runner.engine).spawner_pid() is not None, "no spawner was started")
    spawner = native(runner.engine).spawner_pid()
    assert spawner is not None
    wait_until(lambda: command_lines(descendants(spawner)).count(b"sleep\x00600\x00") == 1, "the program did not start")
    return run, spawner, descendants(spawner)


def command_lines(pids: list[int]) -> list[bytes]:
    found = []
    for pid in pids:
        try:
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            continue
    return found


def test_a_killed_spawner_takes_its_boxes_along_and_is_replaced(runner: BoxRunner) -> None:
    run, spawner, processes = start_sleeper(runner)
    os.kill(spawner, signal.SIGKILL)
    wait_until(lambda: not alive(processes), "processes of boxes outlived the spawner")
    with pytest.raises(BoxGone):
        run.result(timeout=patient(50))
    assert runner("print('again')").stdout == b"again\n"
    wait_until(lambda: not cgroups_of(spawner), "cgroups of the killed spawner were not swept")


@pytest.mark.parametrize("which", range(3 if is_root() else 2))
def test_a_killed_template_takes_its_boxes_along_and_is_replaced(runner: BoxRunner, which: int) -> None:
    run, spawner, processes = start_sleeper(runner)
    # As root what built the root of its boxes, which stays as its parent; the template; the maker of hulls.
    template = sorted(set(processes) - set(in_boxes(spawner)))
    assert len(template) == (3 if is_root() else 2)
    os.kill(template[which], signal.SIGKILL)
    wait_until(lambda: not alive(processes), "processes of boxes outlived their template")
    with pytest.raises(BoxGone):
        run.result(timeout=patient(50))
    assert runner("print('again')").stdout == b"again\n"
    assert native(runner.engine).spawner_pid() == spawner


def test_a_killed_init_takes_its_box_along(runner: BoxRunner) -> None:
    run, _, processes = start_sleeper(runner)
    (sleeper,) = [pid for pid in processes if command_lines([pid]) == [b"sleep\x00600\x00"]]
    status = Path(f"/proc/{sleeper}/status").read_text()
    program = int(status.partition("PPid:\t")[2].split()[0])
    init = init_of(sleeper)
    os.kill(init, signal.SIGKILL)
    wait_until(lambda: not alive([sleeper, program, init]), "processes outlived the init of their box")
    with pytest.raises(BoxGone):
        run.result(timeout=patient(50))
    assert runner("print('again')").stdout == b"again\n"


def test_a_crashed_parked_cell_is_replaced_quietly(runner: BoxRunner) -> None:
    runner("pass")
    runner.submit(runner.engine.pool.filled()).result(timeout=patient(50))
    spawner = native(runner.engine).spawner_pid()
    assert spawner is not None
    parked = in_boxes(spawner)
    killed = time.monotonic()
    for pid in parked:
        # What an init leaves behind goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(made > killed for made in runner.engine.pool.made()), "the cells were not replaced")
    for _ in range(3):
        assert runner("print('fine')").stdout == b"fine\n"
    runner.submit(runner.engine.pool.filled()).result(timeout=patient(50))


@pytest.mark.parametrize("also_the_spawner", [False, True], ids=["owner", "owner-and-spawner"])
def test_a_killed_owner_leaves_nothing(tmp_path: Path, also_the_spawner: bool) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), SLEEPER], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    spawner = int(owner.stdout.readline())
    # A template, five boxes with two processes each, and a child.
    wait_until(lambda: len(descendants(spawner)) >= 12, "the program did not start")
    processes = descendants(spawner)
    victims = [owner.pid, spawner] if also_the_spawner else [owner.pid]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not alive([spawner, *processes]), "processes of boxes outlived their owner")
    if also_the_spawner:
        # Nobody was left to clean up: the next one does.
        stop_runner(start_and_run(tmp_path))
    wait_until(lambda: not cgroups_of(spawner), "cgroups were left behind")


DEAF = """
import asyncio, signal, sys
from pathlib import Path
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on

async def main():
    engine = Engine(load_settings(data_dir=Path(sys.argv[1]), allow_weak_isolation=True), pool=False)
    look = "[print(line.split()[1]) for line in open('/proc/self/status') if line.startswith('SigIgn')]"
    result = await run_on(engine, f"import os; os.wait() if os.fork() else os._exit(0); {look}")
    print(result.stdout, result.exit_code)
    result = await run_on(engine, command=["sed", "-n", "s/SigIgn:.//p", "/proc/self/status"])
    print(result.stdout, result.exit_code)
    await engine.close()

for name in sys.argv[2:]:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
asyncio.run(main())
"""


@pytest.mark.parametrize("ignored", ["SIGCHLD", "SIGHUP", "SIGQUIT SIGINT", "SIGUSR1 SIGTSTP SIGTERM SIGRTMIN"])
def test_a_server_started_with_ignored_signals_has_boxes_too(tmp_path: Path, ignored: str) -> None:
    """That is inherited: nohup does it to what it starts, a shell to what it starts in the background."""
    command = [sys.executable, "-c", DEAF, str(tmp_path), *ignored.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=True)
    # What Python itself ignores, and what any other program does.
    assert (done.stdout, done.stderr) == ("b'0000000001001000\\n' 0\nb'0000000000000000\\n' 0\n", "")


INTERRUPTED = """
import signal, sys, tidebox
tidebox.run("pass")
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGUSR1, interrupt)
print("ready", flush=True)
try:
    tidebox.run(command=["sleep", sys.argv[1]], timeout=600)
except KeyboardInterrupt:
    print(tidebox.run("print('next')").text, flush=True)
sys.stdin.read()
"""


def test_a_caller_that_is_interrupted_leaves_no_program(tmp_path: Path) -> None:
    seconds = str(100_000 + os.getpid())
    environment = os.environ | {"SANDBOX_DATA_DIR": str(tmp_path), "SANDBOX_ALLOW_WEAK_ISOLATION": "1"}
    caller = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, seconds],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert caller.stdin is not None
    assert caller.stdout is not None
    with caller:
        assert caller.stdout.readline() == "ready\n"
        wait_until(lambda: sleepers(seconds) != [], "the program did not start")
        caller.send_signal(signal.SIGUSR1)
        assert caller.stdout.readline() == "next\n"
        wait_until(lambda: sleepers(seconds) == [], "the program was left running")
        caller.stdin.close()
    assert caller.returncode == 0


def sleepers(seconds: str) -> list[Path]:
    """Who sleeps so long."""
    wanted = f"sleep\0{seconds}\0".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if entry.read_bytes() == wanted:
                found.append(entry)
    return found


def start_and_run(data_dir: Path) -> BoxRunner:
    runner = start_runner(data_dir, pool_node=0, pool_python=0, allow_weak_isolation=not is_root())
    assert runner("print(1)").stdout == b"1\n"
    return runner


@pytest.mark.skipif(not is_root(), reason="without root there is no process above a template")
def test_what_stands_above_a_template_dies_with_the_spawner(tmp_path: Path) -> None:
    """Also if the template itself cannot notice: it may be stopped."""
    runner = start_runner(tmp_path, pool_node=0, pool_python=0)
    try:
        runner("pass")
        spawner = native(runner.engine).spawner_pid()
        assert spawner is not None
        family = descendants(spawner)
        for pid in family[1:]:
            with contextlib.suppress(ProcessLookupError):  # of the box that is being closed
                os.kill(pid, signal.SIGSTOP)
        os.kill(spawner, signal.SIGKILL)
        deadline = time.monotonic() + patient(5)
        while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [pid for pid in family if Path(f"/proc/{pid}").exists()] == []
    finally:
        stop_runner(runner)
