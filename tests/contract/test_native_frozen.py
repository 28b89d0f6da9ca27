"""A frozen process cannot act, and on cgroup v1 not even die: frozen boxes go all the same when their keepers do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boxes import cgroups_of, descendants, in_boxes, init_of, parent_of
from tests.contract.test_native_faults import alive, wait_until

Owner = tuple[subprocess.Popen[str], int, list[int]]
OWNER = """
import asyncio, sys
from pathlib import Path
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.model.box import BoxSpec, Command

async def main():
    engine = Engine(load_settings(data_dir=Path(sys.argv[1]), allow_weak_isolation=True), pool=False)
    if (await engine.runtime.probe()).missing:
        print("nothing can be frozen")
        return await engine.close()
    box = await engine.runtime.open(BoxSpec(kind="sandbox"))
    program = await box.exec(Command(argv=["sh", "-c", "echo; exec sleep 600"]))
    await anext(program.events())
    await box.freeze()
    print(engine.runtime.spawner_pid(), flush=True)
    if len(sys.argv) > 2:
        await box.close()
        await engine.close()
    else:
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """A process with a frozen box, its spawner, and what lives below that."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
    if not line.strip().isdigit():
        process.wait()
        pytest.skip("needs a cgroup, which an ordinary user has only where one is delegated")
    yield process, int(line), descendants(int(line))
    process.kill()
    process.wait()


@pytest.mark.parametrize("also_the_spawner", [False, True], ids=["owner", "owner-and-spawner"])
def test_a_frozen_box_goes_with_its_owner(owner: Owner, tmp_path: Path, also_the_spawner: bool) -> None:
    process, spawner, processes = owner
    for pid in [process.pid, spawner] if also_the_spawner else [process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    if also_the_spawner:
        # Nobody was left to clean up: the next one does.
        subprocess.run([sys.executable, "-c", OWNER, str(tmp_path), "end"], check=True, stdout=subprocess.DEVNULL)
    wait_until(lambda: not alive([spawner, *processes]), "frozen processes outlived their owner")
    wait_until(lambda: not cgroups_of(spawner), "cgroups were left behind")


def test_a_frozen_box_goes_with_its_template(owner: Owner) -> None:
    process, spawner, processes = owner
    template = parent_of(init_of(in_boxes(spawner)[0]))
    processes = [template, *descendants(template)]
    os.kill(template, signal.SIGKILL)
    wait_until(lambda: not alive(processes), "frozen processes outlived their template")
    assert alive([spawner]) == [spawner]
    process.kill()
    process.wait()
    wait_until(lambda: not alive([spawner]) and not cgroups_of(spawner), "the spawner did not end")
