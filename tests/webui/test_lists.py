"""The list of runs: filters, paging, live updates, cancelling many."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.api.conftest import RunningServer, finish, start
from tests.api.interpreter.service import JWT_SECRET, Service, token
from tests.webui.browser import Visit, needs_time, visiting

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_nothing_yet_teaches_how_to_begin(visit: Visit) -> None:
    page = await visit.sign_in(token("nobody-yet"), "runs")
    await expect(page.get_by_text("There are no runs yet")).to_be_visible()
    line = page.get_by_label("Command that makes a run")
    await expect(line).to_contain_text("$TIDEBOX_API_KEY")


async def test_filters_choose_runs_and_are_in_the_address(visit: Visit) -> None:
    with Service.of(visit.server, "carol") as carol:
        good = carol.run(["true"], labels={"team": "sea"})["run_id"]
        bad = carol.run(["false"], base_image="node:20-alpine")["run_id"]
    page = await visit.sign_in(path="runs?user_id=carol")
    table = page.get_by_role("table", name="Runs")
    await expect(table.get_by_role("link")).to_have_count(2)
    await page.get_by_label("Phase").select_option("failed")
    await expect(table.get_by_role("link")).to_have_text([bad])
    assert "phase=failed" in page.url
    await page.reload()
    await expect(table.get_by_role("link")).to_have_text([bad])
    await page.get_by_label("Phase").select_option("")
    await page.get_by_label("Label").fill("team=sea")
    await expect(table.get_by_role("link")).to_have_text([good])
    await page.get_by_label("Label").fill("")
    await page.get_by_label("Image").fill("node:20-alpine")
    await expect(table.get_by_role("link")).to_have_text([bad])
    await page.get_by_label("Image").fill("")
    await page.get_by_label("To", exact=True).fill("2020-01-01T00:00")
    await expect(page.get_by_text("No run is like that.")).to_be_visible()
    await page.get_by_label("To", exact=True).fill("")
    await table.get_by_role("link", name=good).click()
    await expect(page.get_by_role("status", name="Status")).to_contain_text("completed")


async def test_users_filter_their_own(visit: Visit) -> None:
    with Service.of(visit.server, "dora") as dora, Service.of(visit.server, "emil") as emil:
        own = dora.run(["true"], labels={"n": "1"})["run_id"]
        dora.run(["true"])
        emil.run(["true"], labels={"n": "1"})
    page = await visit.sign_in(token("dora"), "runs?label=n%3D1")
    await expect(page.get_by_role("table", name="Runs").get_by_role("link")).to_have_text([own])
    await expect(page.get_by_label("User")).to_have_count(0)


async def test_runs_appear_by_themselves_and_many_are_cancelled(visit: Visit) -> None:
    page = await visit.sign_in(path="runs?user_id=fred")
    await expect(page.get_by_text("0 runs")).to_be_visible()
    with Service.of(visit.server, "fred") as fred:
        started = {fred.start(["sleep", "60"]) for _ in range(3)}
        table = page.get_by_role("table", name="Runs")
        await expect(table.get_by_role("link")).to_have_count(3)
        await page.get_by_label("Select all that go on").check()
        await page.get_by_role("button", name="Cancel selected").click()
        await expect(table.get_by_text("killed")).to_have_count(3)
        assert {fred.wait(run_id)["reason_code"] for run_id in started} == {"canceled_by_user"}


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with 100,000 runs of before."""
    first = start(tmp_path / "data", auth_jwt_secret=JWT_SECRET, rate_limit="off")
    with Service.of(first) as service:
        run_id = service.run(["true"])["run_id"]
    finish(first)
    database = next((tmp_path / "data").rglob("*.db"))
    with sqlite3.connect(database) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(sandbox_runs)")]
        copied = ", ".join({"id": "printf('run-%06d', n)"}.get(name, name) for name in columns)
        numbers = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 100000)"
        connection.execute(
            f"INSERT INTO sandbox_runs ({', '.join(columns)}) {numbers} SELECT {copied} FROM sandbox_runs, number "
            "WHERE id = ?",
            [run_id],
        )
        connection.execute(
            f"INSERT INTO sandbox_run_records (run_id, record) {numbers} SELECT printf('run-%06d', n), "
            "replace(record, ?, printf('run-%06d', n)) FROM sandbox_run_records, number WHERE run_id = ?",
            [run_id, run_id],
        )
    running = start(tmp_path / "data", auth_jwt_secret=JWT_SECRET, rate_limit="off")
    yield running
    finish(running)


@needs_time
async def test_a_hundred_thousand_runs_are_paged_through(browser: Browser, crowded: RunningServer) -> None:
    async with visiting(browser, crowded) as visit:
        page = await visit.sign_in(path="runs")
        await expect(page.get_by_text("1 to 50 of 100,001")).to_be_visible()
        await page.get_by_role("button", name="Older").click()
        await expect(page.get_by_text("51 to 100 of 100,001")).to_be_visible()
        await page.get_by_role("button", name="Last").click()
        await expect(page.get_by_text("100,001 to 100,001 of 100,001")).to_be_visible()
        await expect(page.get_by_role("table", name="Runs").get_by_role("link")).to_have_count(1)
        await page.get_by_label("Phase").select_option("failed")
        await expect(page.get_by_text("No run is like that.")).to_be_visible()
