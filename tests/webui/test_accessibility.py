"""Every page for everybody: axe finds nothing serious, light and dark, wide and narrow; and it is there at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import Service
from tests.patience import PATIENCE
from tests.webui.browser import Visit, needs_quiet, visiting

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = (Path(__file__).parent / "axe.min.js").read_text()
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 400, "height": 800}


async def serious_faults(page: Page) -> list[str]:
    await page.evaluate(AXE)
    found = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


async def fits(page: Page) -> bool:
    """Whether nothing makes the page wider than its window."""
    found: bool = await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return found


@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", NARROW)])
async def test_every_page_is_for_everybody(browser: Browser, server: RunningServer, scheme: str, size: object) -> None:
    with Service.of(server) as service:
        colours = "".join(f"\\033[{code}m{code}\\033[0m " for code in (*range(30, 38), *range(90, 98)))
        code = f"printf '{colours}\\n'; echo bad >&2; echo 'a,b' > t.csv; exit 3"
        run = service.run(["sh", "-c", code], capture_patterns=["*"], labels={"team": "sea"})["run_id"]
        other = service.run(["true"])["run_id"]
        session = service.session()
    async with visiting(browser, server, viewport=size, color_scheme=scheme) as visit:
        page = await visit.open()
        await expect(page.get_by_label("API key")).to_be_visible()
        assert not await serious_faults(page)
        await visit.sign_in()
        pages = {
            "": page.locator(".cm-editor"),
            "runs": page.get_by_role("link", name=run),
            f"sandbox/runs/{run}": page.get_by_text("exit code 3").first,
            f"compare?a={run}&b={other}": page.get_by_role("table", name="Facts"),
            "sandboxes": page.get_by_role("link", name=session),
            f"sessions/{session}": page.get_by_text("There are no files yet."),
            "admin": page.get_by_role("img", name="Load chart").locator("canvas"),
            "nowhere": page.get_by_role("alert"),
        }
        for path, ready in pages.items():
            await visit.open(path)
            await expect(ready).to_be_visible()
            if path == "":
                await page.get_by_role("button", name="Options").click()
            if path.startswith("sandbox/runs"):
                await page.get_by_role("button", name="Preview t.csv").click()
                await expect(page.get_by_role("columnheader", name="a", exact=True)).to_be_visible()
            assert not await serious_faults(page), path
            assert await fits(page), path
            assert await page.get_by_role("heading", level=1).count() == 1, path
            assert await page.title() != "Tidebox", path
        await visit.open("sandboxes")
        await page.get_by_role("button", name="New sandbox").click()
        await expect(page.get_by_role("region", name="Terminal")).to_contain_text("$")
        assert not await serious_faults(page)
        assert await fits(page)
        background = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert background == {"light": "rgb(247, 249, 250)", "dark": "rgb(16, 23, 27)"}[scheme]


@needs_quiet
async def test_it_can_be_used_at_once(visit: Visit) -> None:
    """From the request to a page that reacts; the best of three, so that only what it costs counts."""
    times = []
    for _ in range(3):
        page = await visit.open()
        await expect(page.get_by_label("API key")).to_be_visible()
        times.append(await page.evaluate("performance.now()"))
    assert min(times) <= 1000 * PATIENCE


async def test_a_run_is_made_with_the_keyboard_alone(visit: Visit) -> None:
    page = await visit.open()
    await page.get_by_label("API key").focus()
    await page.keyboard.type(visit.server.key)
    await page.keyboard.press("Enter")
    await expect(page.locator(".cm-editor")).to_be_visible()
    for _ in range(30):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.getAttribute('aria-label')") == "Code":
            break
    await page.keyboard.press("Control+Enter")
    await expect(page.get_by_role("log")).to_have_text("hello, tide")
