"""Who is signed in, and what they are shown."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import token
from tests.webui.browser import Visit, visiting

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_wrong_key_is_refused_in_words(visit: Visit) -> None:
    page = await visit.open()
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    field = page.get_by_label("API key")
    await expect(field).to_have_attribute("type", "password")
    await field.fill("tb_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("wrong")
    await expect(page.get_by_role("button", name="Sign out")).to_have_count(0)


async def test_the_key_is_kept_for_the_tab_alone(visit: Visit) -> None:
    page = await visit.sign_in()
    for name in ("Run", "Runs", "Sandboxes", "Admin"):
        await expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    assert await page.context.cookies() == []
    assert await page.evaluate("localStorage.length") == 0
    other = await page.context.new_page()
    await other.goto(f"{visit.server.url}/webui/")
    await expect(other.get_by_role("button", name="Sign in")).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    assert await page.evaluate("sessionStorage.length") == 0


async def test_a_page_that_was_asked_for_is_shown_after_signing_in(visit: Visit) -> None:
    page = await visit.sign_in(path="runs")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    await expect(page).to_have_title("Runs · Tidebox")
    assert await page.locator("html").get_attribute("lang") == "en"


async def test_what_somebody_may_not_see_is_not_shown(visit: Visit) -> None:
    page = await visit.sign_in(token("ada"), "admin")
    await expect(page.get_by_role("alert")).to_have_text("Only an admin may see this.")
    await expect(page.get_by_role("link", name="Admin")).to_have_count(0)
    await expect(page.get_by_role("img")).to_have_count(0)


async def test_a_token_that_is_no_longer_good_leads_back(visit: Visit) -> None:
    page = await visit.sign_in()
    await page.evaluate("sessionStorage.setItem('tidebox.credential', 'tb_gone')")
    await page.get_by_role("link", name="Runs").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await expect(page.get_by_role("button", name="Sign in")).to_be_visible()


async def test_on_a_small_screen_the_links_are_behind_a_button(browser: Browser, server: RunningServer) -> None:
    async with visiting(browser, server, viewport={"width": 400, "height": 800}) as visit:
        page = await visit.sign_in(path="runs")
        link = page.get_by_role("link", name="Sandboxes")
        await expect(link).to_be_hidden()
        await page.get_by_role("button", name="Menu").click()
        await link.click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Sandboxes")
        await expect(link).to_be_hidden()
