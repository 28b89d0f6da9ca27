"""The sweep at the start of a spawner: dead spawners leave nothing for long, living ones are not touched.

Containers often share the machine's control groups while each has a pid namespace of its own: there the processes of a
neighbour cannot be seen, and on cgroup v1 are not even counted in ``cgroup.procs``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.boxes import cgroups_of, descendants, is_root
from tests.contract.test_native_faults import alive, wait_until

pytestmark = [
    pytest.mark.skipif(not is_root(), reason="only root shares the top of the hierarchies with others"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed"),
]

LIVING = """
import asyncio, json, sys
from pathlib import Path
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.model.box import BoxSpec, Command

async def main():
    engine = Engine(load_settings(data_dir=Path(sys.argv[1])), pool=False)
    spec = BoxSpec(kind="sandbox")
    frozen, running = await engine.runtime.open(spec), await engine.runtime.open(spec)
    for box in (frozen, running):
        program = await box.exec(Command(argv=["sh", "-c", "echo; exec sleep 600"]))
        await anext(program.events())
    await frozen.freeze()
    print(engine.runtime.spawner_pid(), flush=True)
    for line in sys.stdin:
        await frozen.thaw()
        for box in (frozen, running):
            async for event in (await box.exec(Command(argv=["true"]))).events():
                pass
            print(event.code, flush=True)
        third = await engine.runtime.open(spec)
        print("opened", flush=True)
    await engine.close()

asyncio.run(main())
"""
NEXT = """
import asyncio, json, sys, time
from pathlib import Path
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on

async def main():
    engine = Engine(load_settings(data_dir=Path(sys.argv[1])), pool=False)
    began = time.monotonic()
    report = await engine.runtime.probe()
    seconds = time.monotonic() - began
    result = await run_on(engine, "print('fine')")
    await engine.close()
    print(json.dumps({"seconds": seconds, "stdout": result.stdout.decode(), "facts": dict(report.facts)}))

asyncio.run(main())
"""
# In a mount namespace where these are the tops of the hierarchies: other spawners of this machine sweep too.
APART = 'for top in $1; do mount --bind "$top/$2" "$top" || exit 1; done; shift 2; exec "$@"'
IN_A_CONTAINER = ("--pid", "--fork", "--mount-proc", "--cgroup", "--kill-child")
# The sweep has a second; the interpreter, the first template and a busy machine have the rest.
START_SECONDS = 4.0


class Hierarchies:
    """Control groups that stand for the whole machine's."""

    def __init__(self) -> None:
        top = Path("/sys/fs/cgroup")
        self.name = f"sweep-test-{uuid.uuid4().hex}"
        if (top / "cgroup.controllers").exists():
            self.tops = {top}
            (top / "cgroup.subtree_control").write_text("+memory +pids +cpu")
        else:
            self.tops = {(top / name).resolve() for name in ("memory", "pids", "cpu", "cpuacct", "freezer")}
        for path in self.places:
            path.mkdir()

    @property
    def places(self) -> list[Path]:
        return [path / self.name for path in self.tops]

    def command(self, *words: str | Path, container: bool = False) -> list[str]:
        """A command that sees nothing above them; in a container it sees no process of ours either."""
        tops = " ".join(map(str, self.tops))
        namespaces = IN_A_CONTAINER if container else ()
        return ["unshare", "--mount", *namespaces, "sh", "-c", APART, "sh", tops, self.name, *map(str, words)]

    def remove(self) -> None:
        """End and remove whatever is left."""
        deadline = time.monotonic() + 30
        while any(path.exists() for path in self.places):
            assert time.monotonic() < deadline, "control groups of this test were left"
            for path in self.places:
                # They go while this looks.
                for directory, _, _ in os.walk(path, topdown=False):
                    self._empty(Path(directory))
                    with contextlib.suppress(OSError):
                        Path(directory).rmdir()
            time.sleep(0.02)

    @staticmethod
    def _empty(place: Path) -> None:
        with contextlib.suppress(OSError):
            for pid in map(int, (place / "cgroup.procs").read_text().split()):
                os.kill(pid, signal.SIGKILL)
        if (place / "freezer.state").exists():
            with contextlib.suppress(OSError):
                (place / "freezer.state").write_text("THAWED")


@pytest.fixture
def hierarchies() -> Iterator[Hierarchies]:
    made = Hierarchies()
    yield made
    made.remove()


@pytest.fixture
def living(tmp_path: Path, hierarchies: Hierarchies) -> Iterator[subprocess.Popen[str]]:
    """A Tidebox with a frozen sandbox, a running one, and empty leaves kept ready."""
    command = hierarchies.command(sys.executable, "-c", LIVING, tmp_path / "living")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


@dataclass
class Seen:
    """What another Tidebox tells after it was started, had run a program and was ended."""

    seconds: float
    stdout: str
    facts: dict[str, str]

    @property
    def left_alone(self) -> str:
        return self.facts.get("control groups left alone", "")


def start_next(tmp_path: Path, hierarchies: Hierarchies, *, container: bool = False) -> Seen:
    """Start another Tidebox, run a program and end it."""
    command = hierarchies.command(sys.executable, "-c", NEXT, tmp_path / "next", container=container)
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=100, check=True)
    return Seen(**json.loads(done.stdout))


def spawner_of(living: subprocess.Popen[str]) -> int:
    assert living.stdout is not None
    return int(living.stdout.readline())


def picture(spawner: int) -> dict[Path, str]:
    """Every control group of a spawner, with what the freezer says of it."""
    found = {}
    for base in cgroups_of(spawner):
        for place in [base, *(path for path in base.rglob("*") if path.is_dir())]:
            state = next((place / name for name in ("freezer.state", "cgroup.freeze") if (place / name).exists()), None)
            found[place] = "" if state is None else state.read_text().strip()
    return found


def settled_picture(spawner: int) -> dict[Path, str]:
    """The same, once the spawner has made its spare leaves."""
    before: dict[Path, str] = {}
    while before != (now := picture(spawner)) or not now:
        before = now
        time.sleep(0.3)
    return now


def go_on(living: subprocess.Popen[str]) -> list[str]:
    """Have the frozen sandbox thawed, a program run in both, and a third opened."""
    assert living.stdin is not None
    assert living.stdout is not None
    living.stdin.write("go on\n")
    living.stdin.flush()
    return [living.stdout.readline() for _ in range(3)]


def kill(living: subprocess.Popen[str], spawner: int) -> None:
    # The spawner first: it cleans up as soon as its owner is gone.
    for pid in (spawner, living.pid):
        os.kill(pid, signal.SIGKILL)
    living.wait()


def test_a_tidebox_of_another_pid_namespace_is_not_touched(
    living: subprocess.Popen[str], tmp_path: Path, hierarchies: Hierarchies
) -> None:
    spawner = spawner_of(living)
    before = settled_picture(spawner)
    assert any(state in ("FROZEN", "1") for state in before.values())
    seen = start_next(tmp_path, hierarchies, container=True)
    assert seen.stdout == "fine\n"
    assert seen.seconds < START_SECONDS
    assert picture(spawner) == before
    assert f"tidebox-{spawner}-" in seen.left_alone
    assert "its spawner lives" in seen.left_alone
    # The third needs one of the leaves that were kept ready.
    assert go_on(living) == ["0\n", "0\n", "opened\n"]


def test_processes_that_cannot_be_seen_are_left_alone_though_their_owner_is_gone(
    living: subprocess.Popen[str], tmp_path: Path, hierarchies: Hierarchies
) -> None:
    spawner = spawner_of(living)
    if hierarchies.tops == {Path("/sys/fs/cgroup")}:
        pytest.skip("on cgroup v2 frozen processes die like others: none is left when its owner is gone")
    # Its init and its program.
    wait_until(lambda: len(frozen_below(spawner)) == 2, "nothing was frozen")
    frozen = frozen_below(spawner)
    kill(living, spawner)
    before = settled_picture(spawner)
    seen = start_next(tmp_path, hierarchies, container=True)
    assert f"tidebox-{spawner}-" in seen.left_alone
    assert "holds processes of another pid namespace" in seen.left_alone
    assert seen.seconds < START_SECONDS
    assert picture(spawner) == before
    assert alive(frozen) == frozen
    # The first server that sees them ends them.
    assert start_next(tmp_path, hierarchies).left_alone == ""
    assert not alive(frozen)
    assert not cgroups_of(spawner)


def frozen_below(spawner: int) -> list[int]:
    return [pid for pid in descendants(spawner) if is_frozen(pid)]


def is_frozen(pid: int) -> bool:
    place = Path(f"/proc/{pid}/cgroup").read_text().partition(":freezer:")[2].partition("\n")[0]
    state = Path(f"/sys/fs/cgroup/freezer{place}/freezer.state")
    # The top has none.
    return state.exists() and state.read_text() == "FROZEN\n"


def test_leaves_of_a_dead_tidebox_go_also_from_another_pid_namespace(
    living: subprocess.Popen[str], tmp_path: Path, hierarchies: Hierarchies
) -> None:
    spawner = spawner_of(living)
    assert go_on(living) == ["0\n", "0\n", "opened\n"]
    processes = descendants(spawner)
    kill(living, spawner)
    wait_until(lambda: not alive(processes), "boxes outlived their spawner")
    assert cgroups_of(spawner)
    assert start_next(tmp_path, hierarchies, container=True).left_alone == ""
    assert not cgroups_of(spawner)
