"""An editor whose language server runs programs here, shared by many tests: each has a folder of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.api.conftest import start_server
from tests.lsp.editor import Editor

__all__ = ["start_server"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Editor]:
    """An editor with a language server."""
    opened = Editor(tmp_path_factory.mktemp("first"))
    await opened.start(env={"XDG_CONFIG_HOME": str(tmp_path_factory.mktemp("config"))}, progress=True)
    yield opened
    await opened.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def editor(running: Editor, tmp_path: Path) -> Editor:
    """The same, with a folder of the test's own open."""
    folder = tmp_path / "folder"
    folder.mkdir()
    await running.add_folder(folder)
    return running
