"""An index on loopback, and an engine that gets its packages from there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.boxes import BoxRunner, start_runner, stop_runner
from tests.packages.index import Index, running_index
from tidebox.embedded import Engine
from tidebox.model.result import Result
from tidebox.runtime.images import ImageStore
from tidebox.runtime.packaging.packager import PackageLimits, Packager


@pytest.fixture
def index() -> Iterator[Index]:
    with running_index() as found:
        yield found


class Box:
    """Runs programs with packages of one index, and tells what is kept of these."""

    def __init__(self, runner: BoxRunner, data_dir: Path) -> None:
        self.runner = runner
        self.images = ImageStore(data_dir / "images")
        self.root = data_dir / "images" / "packages"

    @property
    def engine(self) -> Engine:
        return self.runner.engine

    def __call__(self, code: str, language: str = "python", **options: Any) -> Result:
        return self.runner(code, language, **options)

    def use(self, environment: Mapping[str, str], **limits: int) -> None:
        """Get packages as these settings say, within these limits."""
        own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}

        async def change() -> None:
            if self.engine._packager is not None:
                await self.engine._packager.close()
            self.engine._packager = Packager(
                self.images, self.engine.runners.run, PackageLimits(**limits), {**own, **environment}
            )

        self.runner.submit(change()).result(30)

    def leftovers(self) -> list[str]:
        """What lies beside finished layers."""
        kept = (*self.root.glob("staging-*"), *self.root.glob("building/*"))
        return sorted(path.name for path in kept)


@pytest.fixture(scope="session")
def package_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BoxRunner, Path]]:
    data_dir = tmp_path_factory.mktemp("packages")
    runner = start_runner(data_dir, pool_blank=0, pool_python=0, pool_node=0)
    yield runner, data_dir
    stop_runner(runner)


@pytest.fixture
def box(package_runner: tuple[BoxRunner, Path], index: Index) -> Iterator[Box]:
    """Programs with packages of ``index``; afterwards nothing half-made may be left."""
    found = Box(*package_runner)
    found.use(index.environment)
    yield found
    index.gate.set()

    async def close() -> None:
        assert found.engine._packager is not None
        await found.engine._packager.close()
        found.engine._packager = None

    asyncio.run_coroutine_threadsafe(close(), found.runner.loop).result(60)
    assert found.leftovers() == []
