"""One browser for each worker, one server for each module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.api.conftest import RunningServer, finish, start
from tests.api.interpreter.service import JWT_SECRET
from tests.webui.browser import Visit, launch, visiting

OWN_LANGUAGE = """
[languages.named]
file = "main.named"
run = ["echo", "{file}"]
"""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A real Chromium."""
    async with async_playwright() as playwright:
        found = await launch(playwright)
        yield found
        await found.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of which nobody asks too much, with a language of its operator's."""
    directory = tmp_path_factory.mktemp("webui")
    (directory / "own.toml").write_text(OWN_LANGUAGE)
    languages = str(directory / "own.toml")
    running = start(directory / "data", auth_jwt_secret=JWT_SECRET, rate_limit="off", languages=languages)
    yield running
    finish(running)


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, server: RunningServer) -> AsyncIterator[Visit]:
    """A tab of its own."""
    async with visiting(browser, server) as found:
        yield found
