"""What operators see."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.api.interpreter.service import Service
from tests.webui.browser import Visit

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_charts_guarantees_and_the_audit_log(visit: Visit) -> None:
    with Service.of(visit.server, "gina") as gina:
        gina.run(["true"])
        bad = gina.run(["false"])["run_id"]
    page = await visit.sign_in(path="admin")
    for name in ("Load", "Throughput", "Duration", "Waiting time", "Pool", "Use"):
        chart = page.get_by_role("img", name=f"{name} chart")
        await expect(chart.locator("canvas")).to_be_visible()
    drawn = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
    assert await page.get_by_role("img", name="Throughput chart").locator("canvas").evaluate(drawn)
    await expect(page.get_by_role("table", name="Failures by reason")).to_contain_text("exit_code_nonzero")
    await expect(page.get_by_role("table", name="Use by user and day")).to_contain_text("gina")
    guarantees = page.get_by_role("table", name="Guarantees of native")
    await expect(guarantees).to_contain_text("network")
    await expect(guarantees.get_by_text("enforced").first).to_be_visible()
    await page.get_by_label("Run id").fill(bad)
    audit = page.get_by_role("table", name="Audit log")
    await expect(audit.get_by_role("link", name=bad).first).to_be_visible()
    await page.get_by_label("Event").fill("sandbox.run.created")
    await expect(audit.get_by_role("link")).to_have_count(1)
    await page.get_by_label("Event").fill("nothing")
    await expect(page.get_by_text("Nothing like that is in the audit log.")).to_be_visible()
    await page.get_by_label("The last").select_option("86400")
    await expect(page.get_by_role("img", name="Load chart")).to_be_visible()
