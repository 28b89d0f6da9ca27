"""The runtimes that the contract is tried on, by their names, and the check that nothing of their boxes is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.boxes import count_leaves, is_root
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.runtime.base import Runtime
from tidebox.runtime.native.runtime import NativeRuntime

RUNTIMES_UNDER_TEST = ("native",)


@pytest.fixture(params=RUNTIMES_UNDER_TEST)
def runtime_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def engine(runtime_name: str, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine without a pool, whose default runtime is the one under test."""
    settings = load_settings(data_dir=tmp_path, default_runtime=runtime_name, allow_weak_isolation=not is_root())
    engine = Engine(settings, pool=False)
    assert engine.runtime.name == runtime_name
    yield engine
    spawner = engine.runtime.spawner_pid() if isinstance(engine.runtime, NativeRuntime) else None
    await engine.close()
    assert engine.runtime.live_boxes() == 0
    assert count_leaves(spawner) == {"leaves": 0, "populated": 0}


@pytest.fixture
def runtime(engine: Engine) -> Runtime:
    return engine.runtime
