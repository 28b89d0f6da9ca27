"""Real boxes for tests, and the check that nothing of them is left on the machine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE, VARIABLE, patient
from tests.runtimes import runtime_settings
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.model.result import Result
from tidebox.runtime.native.runtime import NativeRuntime

ROOT = Path(__file__).parent.parent


class BoxRunner:
    """Runs programs in fresh boxes; callable from plain tests."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self.engine = engine
        self.loop = loop
        self.thread = thread

    def submit(self, coroutine: Any) -> Future[Any]:
        """Run a coroutine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def __call__(self, code: str | bytes | None = None, language: str = "python", **options: Any) -> Result:
        options.setdefault("timeout", patient(20.0))
        result: Result = self.submit(run_on(self.engine, code, language, **options)).result(timeout=patient(120))
        return result


def start_runner(data_dir: Path, **settings: Any) -> BoxRunner:
    """An engine on a loop and thread of its own, with the runtime that the suite is run on."""
    settings = {**runtime_settings(), **settings}
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="boxes", daemon=True)
    thread.start()

    async def make() -> Engine:
        engine = Engine(load_settings(data_dir=data_dir, **settings))
        engine.start()
        return engine

    return BoxRunner(asyncio.run_coroutine_threadsafe(make(), loop).result(), loop, thread)


def stop_runner(runner: BoxRunner) -> None:
    """End the engine and its loop."""
    runner.submit(runner.engine.close()).result(timeout=patient(60))
    runner.loop.call_soon_threadsafe(runner.loop.stop)
    runner.thread.join()
    runner.loop.close()


@pytest.fixture(scope="session")
def box_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxRunner]:
    """One engine for the whole test session."""
    runner = start_runner(tmp_path_factory.mktemp("tidebox-data"), pool_node=0, pool_python=2)
    yield runner
    stop_runner(runner)


@pytest.fixture
def box_run(box_runner: BoxRunner) -> Iterator[BoxRunner]:
    """Run code in a fresh box; afterwards nothing but the pool's cells may be left."""
    yield box_runner
    assert_nothing_left(box_runner)


@pytest.fixture
def box_arun(box_runner: BoxRunner) -> Iterator[Callable[..., Awaitable[Result]]]:
    """``box_run`` for tests that run several at once."""

    async def arun(code: str | bytes | None = None, language: str = "python", **options: Any) -> Result:
        options.setdefault("timeout", patient(20.0))
        future = box_runner.submit(run_on(box_runner.engine, code, language, **options))
        result: Result = await asyncio.wrap_future(future)
        return result

    yield arun
    assert_nothing_left(box_runner)


@functools.cache
def missing_guarantees() -> frozenset[str]:
    """The guarantees this user cannot be given on this machine."""

    async def ask() -> frozenset[str]:
        engine = Engine(load_settings(data_dir=Path("/nonexistent")), pool=False)
        try:
            report = await engine.runtime.probe()
        finally:
            await engine.close()
        return frozenset(finding.guarantee.value for finding in report.missing)

    return asyncio.run(ask())


def run_strictly(code: str) -> Result:
    """One run in an engine of its own, without the operator's leave for weak isolation."""

    async def once() -> Result:
        engine = Engine(load_settings(data_dir=Path("/nonexistent"), allow_weak_isolation=False), pool=False)
        try:
            return await run_on(engine, code)
        finally:
            await engine.close()

    return asyncio.run(once())


def as_user(command: list[str], *, allow_weak_isolation: bool, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a command of this project as an ordinary user, with a home of his own."""
    user = pwd.getpwnam("nobody")
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    environment[VARIABLE] = str(PATIENCE)
    if allow_weak_isolation:
        environment["SANDBOX_ALLOW_WEAK_ISOLATION"] = "1"
    if command[0] == sys.executable:
        # The environment's interpreter may lie in a home that only its owner can enter.
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        command = [shutil.which(version, path="/usr/local/bin:/usr/bin:/bin") or sys.executable, *command[1:]]
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), sysconfig.get_path("purelib")])
    with tempfile.TemporaryDirectory(prefix="tidebox-user-") as home:
        os.chown(home, user.pw_uid, user.pw_gid)
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment | {"HOME": home, "TMPDIR": home},
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=patient(timeout),
            check=False,
        )


def assert_nothing_left(runner: BoxRunner, within: float = patient(30.0)) -> None:
    """Every box but the pool's parked ones is gone: processes, cgroups, descriptors."""
    deadline = time.monotonic() + within
    while True:
        kept = runner.engine.pool.parked_total()
        live = runner.engine.runtime.live_boxes()
        leaves = count_leaves(spawner_of(runner.engine))
        # The spawner keeps a few empty leaves ready; they hold no process.
        if live <= kept and leaves["populated"] <= kept:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"left behind: {live} boxes, {leaves} cgroups, where the pool holds {kept}")
        time.sleep(0.02)


def cgroups_of(spawner_pid: int | None) -> list[Path]:
    """The cgroups of a spawner, wherever they are; those of others come and go meanwhile."""
    prefix = f"tidebox-{spawner_pid}-"
    walk = os.walk("/sys/fs/cgroup")
    return [Path(place, name) for place, names, _ in walk for name in names if name.startswith(prefix)]


def spawner_of(engine: Engine) -> int | None:
    """The spawner of an engine that has one."""
    return engine.runtime.spawner_pid() if isinstance(engine.runtime, NativeRuntime) else None


def native(engine: Engine) -> NativeRuntime:
    """The runtime of an engine, for what is told of the native one only."""
    assert isinstance(engine.runtime, NativeRuntime)
    return engine.runtime


def count_leaves(spawner_pid: int | None) -> dict[str, int]:
    """How many cgroup leaves of a spawner exist, and how many hold a process."""
    found = {"leaves": 0, "populated": 0}
    if spawner_pid is None:
        return found
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        for base in root.glob(f"tidebox-{spawner_pid}-*"):
            try:
                leaves = list(base.glob("b*"))
            except FileNotFoundError:
                continue  # removed while we looked
            found["leaves"] += len(leaves)
            found["populated"] += sum(map(_is_populated, leaves))
    return found


def _is_populated(leaf: Path) -> bool:
    try:
        return any(procs.read_text().strip() for procs in leaf.rglob("cgroup.procs"))
    except OSError:
        return False  # removed while we looked


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def parent_of(pid: int) -> int:
    """Whose child a process is; 0 for one that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def is_root() -> bool:
    """Whether this leg of the suite has root."""
    return os.geteuid() == 0


def init_of(pid: int) -> int:
    """The init of the box that ``pid`` is in."""
    namespace = os.readlink(f"/proc/{pid}/ns/pid")
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "ns/pid") == namespace and _pids(entry)[-1] == 1:
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError(f"nothing is the init of {pid}")


def in_boxes(spawner: int) -> list[int]:
    """Every process of the boxes of ``spawner``: in the innermost pid namespaces there are."""
    depths = {}
    for pid in descendants(spawner):
        with contextlib.suppress(OSError):
            depths[pid] = len(_pids(Path(f"/proc/{pid}")))
    return [pid for pid, depth in depths.items() if depth == max(depths.values())]


def _pids(entry: Path) -> list[int]:
    """The pid of a process in each of its namespaces, its own the last."""
    return [int(number) for number in (entry / "status").read_text().partition("NSpid:")[2].partition("\n")[0].split()]
