"""Boxes that are containers, for tests that run programs in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.boxes import BoxRunner, start_runner, stop_runner
from tests.runtimes import runtime_settings


@pytest.fixture(scope="session")
def docker_runner(docker_host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxRunner]:
    """One engine for all tests that run programs in containers."""
    runner = start_runner(tmp_path_factory.mktemp("docker-data"), **runtime_settings("docker"))
    yield runner
    stop_runner(runner)
