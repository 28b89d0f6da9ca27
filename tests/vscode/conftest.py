"""One code-server for all tests of the extension, and one browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.vscode.editor import CodeServer, browsing, serving


@pytest.fixture(scope="session")
def code_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodeServer]:
    """A real VS Code, with the extension that `make vsix` built."""
    with serving(tmp_path_factory.mktemp("code-server")) as served:
        yield served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A real Chromium."""
    async with browsing() as found:
        yield found
