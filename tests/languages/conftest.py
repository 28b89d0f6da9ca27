"""Engines that have the languages: of the machine's own tools, or of images that recipes make."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boxes import BoxRunner, start_runner, stop_runner
from tests.cli.command import tidebox
from tests.languages.programs import LIGHT, PROGRAMS
from tidebox.model.recipes import RECIPES

ALL = "TIDEBOX_TEST_ALL_LANGUAGES"
"""Set: every language, each in the image that its recipe makes; it names a directory in which these are kept."""
LANGUAGES = sorted(PROGRAMS) if ALL in os.environ else list(LIGHT)


@pytest.fixture(scope="session")
def languages_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxRunner]:
    """One engine for all languages."""
    kept = os.environ.get(ALL)
    data_dir = Path(kept) if kept else tmp_path_factory.mktemp("languages")
    runner = start_runner(data_dir, pool_node=0, pool_python=0, pool_blank=0, pool_elixir=0)
    yield runner
    stop_runner(runner)


@pytest.fixture
def language(request: pytest.FixtureRequest) -> str:
    """A language whose image is there, where there is to be one."""
    name: str = request.param
    if ALL in os.environ and name in RECIPES:
        data_dir = os.environ[ALL]
        env = {"SANDBOX_DATA_DIR": data_dir}
        if not (Path(data_dir) / "images" / "names" / f"tidebox%2F{name}.json").exists():
            done = tidebox("image", "build", "--recipe", name, env=env, seconds=1200)
            assert done.returncode == 0, done.stderr
    return name
