"""The pool over the native runtime, whose parked processes can be found and killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.boxes import in_boxes, init_of, is_root, native
from tests.contract.test_native_faults import wait_until
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """One that keeps a single cell."""
    sizes = {"pool_node": 0, "pool_python": 1, "pool_blank": 0, "pool_guests": 0}
    settings = load_settings(data_dir=tmp_path, **sizes, allow_weak_isolation=not is_root())
    engine = Engine(settings)
    engine.start()
    await engine.pool.filled()
    yield engine
    await engine.close()


async def test_a_cell_that_dies_while_others_work_is_replaced(engine: Engine) -> None:
    (before,) = engine.pool.made()
    spawner = native(engine).spawner_pid()
    assert spawner is not None
    (cell,) = (pid for pid in in_boxes(spawner) if init_of(pid) != pid)
    # Of a shape that the pool does not keep: no cell is taken, and the processors count as busy for a moment.
    program = "import time; time.sleep(60)"
    busy = [asyncio.ensure_future(run_on(engine, program, workspace=9 << 20)) for _ in range(os.cpu_count() or 1)]
    wanted = 1 + len(busy)
    await asyncio.to_thread(wait_until, lambda: engine.runtime.live_boxes() == wanted, "the programs did not start")
    os.kill(init_of(cell), signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: engine.pool.made() not in ([], [before]), "the cell was not replaced")
    for run in busy:
        run.cancel()
    await asyncio.wait(busy)
