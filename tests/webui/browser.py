"""A real Chromium for the tests of the web UI, and pages in it that must not break their own rules."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, FilePayload, Page, Playwright, expect

from tests.api.conftest import RunningServer
from tests.patience import patient

# As root a browser has to do without its own sandbox; containers have little shared memory.
_ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
WAIT_MS = patient(60.0) * 1000

ALL = bool(os.environ.get("TIDEBOX_TEST_ALL_WEB"))
needs_quiet = pytest.mark.skipif(not ALL, reason="measures time: `make test-web` runs it, beside less")
needs_time = pytest.mark.skipif(not ALL, reason="takes long: `make test-web` runs it")

expect.set_options(timeout=WAIT_MS)


async def launch(playwright: Playwright) -> Browser:
    """The system's own Chromium."""
    path = shutil.which("chromium")
    assert path is not None, "there is no chromium: scripts/bootstrap --test installs it"
    return await playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)


def text_file(name: str, content: bytes) -> FilePayload:
    """A file that somebody chooses for an upload."""
    return {"name": name, "mimeType": "text/plain", "buffer": content}


@dataclass
class Visit:
    """A page, and what it did that a page of ours does not do."""

    page: Page
    server: RunningServer
    faults: list[str] = field(default_factory=list)

    async def open(self, path: str = "") -> Page:
        """Go to a page of the web UI."""
        await self.page.goto(f"{self.server.url}/webui/{path}")
        return self.page

    async def sign_in(self, key: str | None = None, path: str = "") -> Page:
        """Go to a page of the web UI, as somebody whom the server knows."""
        page = await self.open(path)
        await page.get_by_label("API key").fill(key or self.server.key)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("button", name="Sign out", include_hidden=True)).to_be_attached()
        return page

    async def write(self, code: str) -> None:
        """Put a program into the editor."""
        box = self.page.get_by_role("textbox", name="Code")
        await box.fill(code)
        await expect(box).not_to_be_empty()

    async def run(self, code: str, *, language: str = "python", artifacts: str = "") -> Page:
        """Run a program as a person does, and be on its page."""
        page = self.page
        await page.get_by_label("Language").select_option(language)
        if artifacts:
            await page.get_by_role("textbox", name="Artifacts").fill(artifacts)
        await self.write(code)
        await page.get_by_role("button", name="Run").click()
        await expect(page.get_by_role("status", name="Status")).to_be_visible()
        return page


@contextlib.asynccontextmanager
async def visiting(browser: Browser, server: RunningServer, **options: Any) -> AsyncIterator[Visit]:
    """A tab of its own; at its end it has asked nobody but its server, and broken no rule of its own."""
    context: BrowserContext = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
    context.set_default_timeout(WAIT_MS)
    try:
        page = await context.new_page()
        visit = Visit(page, server)
        _watch(page, visit)
        yield visit
        assert not visit.faults, visit.faults
    finally:
        await context.close()


def _watch(page: Page, visit: Visit) -> None:
    own = (f"{visit.server.url}/", visit.server.url.replace("http", "ws", 1) + "/", "blob:", "data:", "about:")
    page.on("request", lambda sent: None if sent.url.startswith(own) else visit.faults.append(f"asked {sent.url}"))
    page.on("websocket", lambda sent: None if sent.url.startswith(own) else visit.faults.append(f"asked {sent.url}"))
    page.on("pageerror", lambda error: visit.faults.append(f"raised {error}"))
    page.on(
        "console",
        lambda line: visit.faults.append(line.text) if "Content Security Policy" in line.text else None,
    )
    page.on("dialog", lambda dialog: visit.faults.append(f"opened a dialog: {dialog.message}"))
