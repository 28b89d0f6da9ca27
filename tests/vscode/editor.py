"""A real VS Code for the tests of the extension: npm's code-server, and its workbench in Chromium."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Locator, Page, async_playwright, expect

from tests.patience import patient
from tests.webui.browser import launch

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors" / "vscode"
CODE_SERVER = ROOT / ".code-server"
TIDEBOX = ROOT / ".venv" / "bin" / "tidebox"
START_SECONDS = patient(60.0)
# An editor with its extensions is slower to start than a page, and an empty cache of Go than either.
WAIT_SECONDS = patient(90.0)

expect.set_options(timeout=WAIT_SECONDS * 1000)

# What would stand in the way of what is tested, or ask something of others.
QUIET = {
    "workbench.startupEditor": "none",
    "workbench.tips.enabled": False,
    "telemetry.telemetryLevel": "off",
    "extensions.ignoreRecommendations": True,
    "chat.disableAIFeatures": True,
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "git.enabled": False,
    "files.autoSave": "off",
    "editor.minimap.enabled": False,
    "testing.automaticallyOpenPeekView": "never",
    "testing.automaticallyOpenTestResults": "neverOpen",
    # So that the text of every line is in the page.
    "editor.stickyScroll.enabled": False,
}


def program(*arguments: str) -> list[str]:
    """The command line of code-server, with the Node that it was installed for."""
    entry = CODE_SERVER / "node_modules" / "code-server"
    assert (CODE_SERVER / "installed").exists(), "there is no code-server: `make test-vscode` installs it"
    return [str(CODE_SERVER / "bin" / "node"), str(entry), *arguments]


@dataclass(frozen=True)
class CodeServer:
    """A code-server that runs, with the extension."""

    url: str
    home: Path

    def settings(self, **values: Any) -> None:
        """Write the user's settings: those of the extension that are given, and no others."""
        own = {f"tldw.sandbox.{name}": value for name, value in values.items()}
        self._settings.parent.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(json.dumps(QUIET | own))

    def settings_text(self) -> str:
        """The user's settings, as they are on the disk."""
        return self._settings.read_text()

    @property
    def _settings(self) -> Path:
        return self.home / "data" / "User" / "settings.json"


@contextlib.contextmanager
def serving(home: Path) -> Iterator[CodeServer]:
    """Install the extension that `make vsix` left, and serve."""
    [vsix] = EXTENSION.glob("*.vsix")
    places = ["--user-data-dir", str(home / "data"), "--extensions-dir", str(home / "extensions")]
    # Nothing of the machine's Tidebox, nor of its code-server, is read or changed.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SANDBOX_", "TIDEBOX_"))}
    environment |= {
        "CODE_SERVER_CONFIG": str(home / "code-server.yaml"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "share"),
    }
    subprocess.run(
        program(*places, "--install-extension", str(vsix)),
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        timeout=START_SECONDS,
    )
    port = _free_port()
    log = (home / "code-server.log").open("wb")
    process = subprocess.Popen(
        program(
            *places,
            "--auth=none",
            f"--bind-addr=127.0.0.1:{port}",
            "--disable-telemetry",
            "--disable-update-check",
            "--disable-workspace-trust",
        ),
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        served = CodeServer(f"http://127.0.0.1:{port}", home)
        served.settings(command=str(TIDEBOX))
        _wait_until_ready(served.url, process)
        yield served
    finally:
        # Of its own session: what it started ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(patient(20.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None, "code-server ended"
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=5):
                return
        except OSError:
            assert time.monotonic() < deadline, "code-server does not answer"
            time.sleep(0.2)


@contextlib.asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """A real Chromium."""
    async with async_playwright() as playwright:
        found = await launch(playwright)
        yield found
        await found.close()


class Workbench:
    """One window of the editor, used as a person does: with the mouse and the keyboard."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def palette(self, title: str) -> None:
        """Carry out a command of the palette."""
        await self.page.keyboard.press("F1")
        box = self.page.locator(".quick-input-widget input[type=text]")
        await expect(box).to_be_visible()
        await box.fill(f">{title}")
        entry = self.page.locator(".quick-input-list .monaco-list-row").filter(has_text=title).first
        await entry.click()

    async def open(self, name: str) -> None:
        """Open a file of the folder by its name."""
        await self.page.keyboard.press("Control+p")
        box = self.page.locator(".quick-input-widget input[type=text]")
        await expect(box).to_be_visible()
        await box.fill(name)
        await self.page.locator(".quick-input-list .monaco-list-row").filter(has_text=name).first.click()
        await expect(self.page.get_by_role("tab", name=name, selected=True)).to_be_visible()

    def lens(self, title: str = "Run in Sandbox") -> Locator:
        """The lenses of the active editor that begin so."""
        return self.page.locator(".editor-instance .codelens-decoration a").filter(has_text=title)

    async def replace_text(self, text: str) -> None:
        """Put another text into the active editor, and do not save it."""
        await self.page.locator(".editor-instance .view-lines").first.click()
        await self.page.keyboard.press("Control+a")
        # As one piece: nothing is completed, indented or closed.
        await self.page.keyboard.insert_text(text)

    async def see_output(self, *pieces: str) -> None:
        """Wait until the log panel shows some text."""
        lines = self.page.locator(".output-view-content .view-lines, .output-view .view-lines").first
        for piece in pieces:
            await expect(lines).to_contain_text(piece)

    async def choose(self, label: str) -> None:
        """Choose one entry of a list that the extension shows."""
        await self.page.locator(".quick-input-list .monaco-list-row").filter(has_text=label).first.click()

    async def answer(self, text: str) -> None:
        """Answer a question of the extension."""
        box = self.page.locator(".quick-input-widget input[type=text]")
        await box.fill(text)
        await box.press("Enter")

    async def confirm_path(self, path: Path, proposed: str) -> None:
        """Answer a dialog that asks for a file, once it proposes one: what was typed before that it would replace."""
        box = self.page.locator(".quick-input-widget input[type=text]")
        await expect(box).to_have_value(re.compile(re.escape(proposed)))
        await self.answer(str(path))

    async def see_test(self, name: str, state: str) -> None:
        """Wait until the Test Explorer shows a test in some state."""
        row = self.page.locator(f'.test-explorer .monaco-list-row[aria-label^="{name} ({state})"]')
        await expect(row).to_be_visible()

    async def expand_tests(self) -> None:
        """Show every test in the Test Explorer."""
        rows = self.page.locator(".test-explorer .monaco-list-row")
        await expect(rows.first).to_be_visible()
        while await (closed := rows.and_(self.page.locator("[aria-expanded=false]"))).count():
            await closed.first.locator(".monaco-tl-twistie").click()

    async def wait_for(self, fact: Callable[[], bool]) -> None:
        """Wait until something is so, outside of the page."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not fact():
            assert time.monotonic() < deadline, "it did not come about"
            await asyncio.sleep(0.05)

    def problem(self, text: str) -> Locator:
        """A row of the Problems panel."""
        return self.page.locator(".markers-panel .monaco-list-row").filter(has_text=text)

    def status(self) -> Locator:
        """The entry of the status bar."""
        return self.page.locator(".statusbar-item").filter(has_text="Sandbox")


@contextlib.asynccontextmanager
async def window(browser: Browser, served: CodeServer, folder: Path) -> AsyncIterator[Workbench]:
    """A window of the editor with a folder."""
    context = await browser.new_context(viewport={"width": 1500, "height": 950})
    context.set_default_timeout(WAIT_SECONDS * 1000)
    try:
        page = await context.new_page()
        await page.goto(f"{served.url}/?folder={folder}")
        await expect(page.locator(".monaco-workbench")).to_be_visible()
        await expect(page.locator(".statusbar")).to_be_visible()
        try:
            yield Workbench(page)
        except BaseException:
            # The folder is kept for a while: what was seen last tells more than the locator that was waited for.
            await page.screenshot(path=folder / "screen.png")
            raise
    finally:
        await context.close()
