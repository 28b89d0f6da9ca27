"""Engines for tests of the contract of runtimes, and the check that nothing of their boxes is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.boxes import count_leaves, is_root, spawner_of
from tests.runtimes import RUNTIME, runtime_settings
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.runtime.base import Runtime

RUNTIMES_UNDER_TEST = ("native", "docker", "gvisor")


@pytest.fixture
def runtime_name() -> str:
    return RUNTIME


@pytest.fixture
async def engine(runtime_name: str, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine without a pool, whose default runtime is the one under test."""
    given = runtime_settings(runtime_name)
    settings = load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root(), **given)
    engine = Engine(settings, pool=False)
    assert engine.runtime.name == runtime_name
    yield engine
    spawner = spawner_of(engine)
    await engine.close()
    assert engine.runtime.live_boxes() == 0
    assert count_leaves(spawner) == {"leaves": 0, "populated": 0}


@pytest.fixture
def runtime(engine: Engine) -> Runtime:
    return engine.runtime
