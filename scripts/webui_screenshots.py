"""Makes the pictures of docs/webui.md: a real server with something on it, seen in a real browser.

.venv/bin/python -m scripts.webui_screenshots
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright, expect

from tests.api.conftest import RunningServer, finish, start
from tests.api.interpreter.service import JWT_SECRET, Service
from tests.webui.browser import Visit, launch, visiting

IMAGES = Path(__file__).parents[1] / "docs" / "images"

PROGRAM = """\
import csv, math, sys

print("\\x1b[1mTide table\\x1b[0m")
with open("tides.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["hour", "height"])
    for hour in range(0, 25, 2):
        height = 2.1 + 1.8 * math.sin(hour / 12.4 * 2 * math.pi)
        table.writerow([hour, f"{height:.2f}"])
        colour = 34 if height > 2.1 else 33
        print(f"{hour:2d}:00  \\x1b[{colour}m{'#' * round(height * 8):32s}\\x1b[0m {height:.2f} m")
print("warning: no wind was thought of", file=sys.stderr)
"""

Picture = Callable[[Visit], Awaitable[Page]]


def populate(server: RunningServer) -> None:
    """Let some users have run something."""
    with Service.of(server, "ada") as ada, Service.of(server, "bob") as bob:
        for number in range(12):
            (ada if number % 3 else bob).run(["python", "-c", f"import time; time.sleep({number} / 50)"])
        ada.run(["python", "-c", "raise SystemExit(3)"], labels={"team": "sea"})
        bob.run(["sleep", "9"], timeout_sec=0.2)
        bob.run(["python", "-c", "x = bytearray(2**28)"], resources={"memory_mb": 64})
        bob.start(["sleep", "120"])


async def run_page(visit: Visit) -> Page:
    """The Run page."""
    page = await visit.sign_in()
    await expect(page.locator(".cm-editor")).to_be_visible()
    await page.get_by_role("textbox", name="Artifacts").fill("*.csv")
    await visit.write(PROGRAM)
    return page


async def one_run(visit: Visit) -> Page:
    """The page of a run, with a table in it."""
    await visit.sign_in()
    page = await visit.run(PROGRAM, artifacts="*.csv")
    await page.get_by_role("button", name="Preview tides.csv").click()
    await expect(page.get_by_role("columnheader", name="height")).to_be_visible()
    await page.mouse.move(0, 0)
    return page


async def runs(visit: Visit) -> Page:
    """The list of runs."""
    page = await visit.sign_in(path="runs")
    await expect(page.get_by_role("table", name="Runs").get_by_role("link").nth(5)).to_be_visible()
    return page


async def sandbox(visit: Visit) -> Page:
    """A sandbox with its terminal and files."""
    page = await visit.sign_in(path="sandboxes")
    await page.get_by_role("button", name="New sandbox").click()
    terminal = page.get_by_role("region", name="Terminal")
    await expect(terminal).to_contain_text("$")
    await terminal.click()
    await page.keyboard.type("echo 'print(6 * 7)' > answer.py; python3 answer.py; ls -la --color /\n")
    await expect(terminal).to_contain_text("workspace")
    await page.get_by_role("button", name="Refresh files").click()
    await page.get_by_role("button", name="Refresh processes").click()
    await expect(page.get_by_role("list", name="Files")).to_contain_text("answer.py")
    await expect(page.get_by_role("table", name="Processes")).to_contain_text("bash")
    return page


async def admin(visit: Visit) -> Page:
    """What operators see."""
    page = await visit.sign_in(path="admin")
    await page.get_by_label("The last").select_option("900")
    await expect(page.get_by_role("img", name="Use chart").locator("canvas")).to_be_visible()
    return page


PICTURES: dict[str, tuple[Picture, str, int, int]] = {
    "run": (run_page, "light", 1280, 800),
    "one-run": (one_run, "light", 1280, 1500),
    "runs": (runs, "dark", 1280, 760),
    "sandbox": (sandbox, "dark", 1280, 1000),
    "admin": (admin, "light", 1280, 1300),
    "one-run-narrow": (one_run, "dark", 400, 1200),
    "admin-narrow": (admin, "light", 400, 1200),
}


async def take(browser: Browser, server: RunningServer) -> None:
    """Make every picture."""
    for name, (show, scheme, width, height) in PICTURES.items():
        size = {"width": width, "height": height}
        async with visiting(browser, server, viewport=size, color_scheme=scheme) as visit:
            page = await show(visit)
            await page.evaluate("document.fonts.ready.then(() => new Promise(requestAnimationFrame))")
            await page.screenshot(path=IMAGES / f"webui-{name}.png", animations="disabled")
        print(f"docs/images/webui-{name}.png")


async def main() -> None:
    """Make the pictures of a server that is gone afterwards."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        server = start(Path(directory), auth_jwt_secret=JWT_SECRET, rate_limit="off")
        try:
            await asyncio.to_thread(populate, server)
            async with async_playwright() as playwright:
                browser = await launch(playwright)
                await take(browser, server)
                await browser.close()
        finally:
            finish(server)


if __name__ == "__main__":
    asyncio.run(main())
