"""The log of a run: long, fast, interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from playwright.async_api import Browser, Route, WebSocketRoute, expect

from tests.api.conftest import RunningServer, finish, start
from tests.api.interpreter.service import Service
from tests.patience import PATIENCE
from tests.webui.browser import ALL, Visit, visiting

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1024 * 1024
LONG_BYTES = (50 if ALL else 12) * MIB
LINE = 100

# Frames while somebody scrolls through all of it: how long each took, as the browser tells it.
SCROLL = """
async element => {
  const times = [];
  let before = performance.now();
  for (let frame = 0; frame < 200; frame += 1) {
    element.scrollTop = (element.scrollHeight - element.clientHeight) * (frame % 100) / 100;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - before);
    before = now;
  }
  return times.sort((one, other) => one - other)[100];
}
"""

# The last line does not reach below the log's own box.
END_IN_SIGHT = """
([log, last]) => last.getBoundingClientRect().bottom <= log.getBoundingClientRect().bottom + 2
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that keeps long logs."""
    running = start(tmp_path_factory.mktemp("logs"), rate_limit="off", max_log_bytes=str(120 * MIB))
    yield running
    finish(running)


@pytest.fixture(scope="module")
def lines(server: RunningServer) -> str:
    """A run that wrote 100,000 lines."""
    with Service.of(server) as service:
        run = service.run(["python", "-c", "for n in range(1, 100001): print(f'line {n} of 100000')"])
        assert run["phase"] == "completed"
        return str(run["run_id"])


async def test_a_long_log_is_scrolled_without_a_pause(visit: Visit, lines: str) -> None:
    page = await visit.sign_in(path=f"sandbox/runs/{lines}")
    log = page.get_by_role("log", name="Log")
    await expect(page.get_by_text("100,000 lines")).to_be_visible()
    await expect(log).to_contain_text("line 100000 of 100000")
    median = await log.evaluate(SCROLL)
    if ALL:  # beside everything else that `make test` does a frame takes as long as the others let it
        assert median <= 60 * PATIENCE
    assert await log.evaluate("element => element.querySelectorAll('*').length") < 2000
    await log.evaluate("element => { element.scrollTop = 0 }")
    await expect(log).to_contain_text("line 1 of 100000")
    await expect(log).not_to_contain_text("line 100000 of 100000")
    assert await log.locator(".row").count() < 100, "only what is in sight is drawn"
    await log.focus()
    await page.keyboard.press("End")
    await expect(log).to_contain_text("line 100000 of 100000")


async def test_a_text_is_found_wherever_it_is(visit: Visit, lines: str) -> None:
    page = await visit.sign_in(path=f"sandbox/runs/{lines}")
    await expect(page.get_by_text("100,000 lines")).to_be_visible()
    search = page.get_by_label("Search the output")
    await search.fill("line 5000")
    await expect(page.get_by_text("1 of 11 lines")).to_be_visible()
    log = page.get_by_role("log")
    await expect(log.locator(".current")).to_have_text("line 5000 of 100000")
    await search.press("Enter")
    await expect(log.locator(".current")).to_have_text("line 50000 of 100000")
    await expect(log.locator(".current mark")).to_have_text("line 5000")
    await search.fill("nothing like it")
    await expect(page.get_by_text("not found")).to_be_visible()
    await page.get_by_label("Wrap").check()
    await page.get_by_label("Follow").check()
    await expect(log).to_contain_text("line 100000 of 100000")


async def test_long_lines_are_wrapped_and_all_of_them_can_be_reached(visit: Visit) -> None:
    with Service.of(visit.server) as service:
        code = "for n in range(3): print('begin%d ' % n + 'x' * 9000 + ' end%d' % n)"
        run_id = service.run(["python", "-c", code])["run_id"]
    page = await visit.sign_in(path=f"sandbox/runs/{run_id}")
    log = page.get_by_role("log")
    await expect(page.get_by_role("status", name="Status")).to_contain_text("completed")
    await page.get_by_label("Wrap").check()
    last = log.get_by_text("end2")
    await page.wait_for_function(END_IN_SIGHT, arg=[await log.element_handle(), await last.element_handle()])
    await log.evaluate("element => { element.scrollTop = 0 }")
    await expect(log).to_contain_text("begin0 ")
    assert (await log.evaluate("element => element.scrollHeight / element.clientHeight")) > 1.5
    numbers = await log.locator(".row[data-n]").evaluate_all("rows => rows.map(row => row.dataset.n)")
    assert numbers[:2] == ["1", "2"]


async def test_many_megabytes_come_whole_while_they_are_written(visit: Visit) -> None:
    page = await visit.sign_in()
    count = LONG_BYTES // LINE
    await visit.run(f"for n in range({count}):\n    print(('%09d ' % n).ljust({LINE - 1}, 'x'))")
    await expect(page.get_by_role("status", name="Status")).to_contain_text("completed", timeout=120_000 * PATIENCE)
    await expect(page.get_by_text(f"{count:,} lines")).to_be_visible(timeout=120_000 * PATIENCE)
    log = page.get_by_role("log")
    await expect(log).to_contain_text(f"{count - 1:09d} xxx")
    await log.evaluate("element => { element.scrollTop = 0 }")
    await expect(log).to_contain_text(f"{0:09d} xxx")
    async with page.expect_download() as waiting:
        await page.get_by_role("button", name="Download log").click()
    assert (await (await waiting.value).path()).stat().st_size == count * LINE


async def test_a_lost_connection_is_made_again_where_it_was(visit: Visit) -> None:
    page = visit.page
    sockets: list[WebSocketRoute] = []
    seen = asyncio.Event()

    async def relay(socket: WebSocketRoute) -> None:
        if sockets:
            await seen.wait()
        socket.connect_to_server()
        sockets.append(socket)

    await page.route_web_socket(lambda url: "/stream" in url, relay)
    await visit.sign_in()
    await page.get_by_role("button", name="Options").click()
    await page.get_by_label("Send input while it runs").check()
    await visit.run("print('before', flush=True)\ninput()\nprint('after', flush=True)\ninput()")
    log = page.get_by_role("log")
    await expect(log).to_have_text("before")
    await sockets[0].close()
    await expect(page.get_by_text("The connection was lost")).to_be_visible()
    seen.set()
    await expect(page.get_by_text("The connection was lost")).to_be_hidden()
    await page.get_by_label("Input", exact=True).fill("go on")
    await page.get_by_role("button", name="Send").click()
    await expect(log).to_have_text("before\nafter")
    assert len(sockets) == 2
    assert "from_seq=1&" not in sockets[1].url + "&"
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("status", name="Status")).to_contain_text("killed")


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that gives no signed URLs, so a page cannot open a socket for a log."""
    running = start(tmp_path_factory.mktemp("unsigned"), ws_signed_urls="false", rate_limit="off")
    yield running
    finish(running)


async def test_a_log_is_live_also_without_signed_urls(browser: Browser, unsigned: RunningServer) -> None:
    async with visiting(browser, unsigned) as visit:
        page = await visit.sign_in()
        await page.get_by_role("button", name="Options").click()
        await page.get_by_label("Send input while it runs").check()
        code = "import sys, time\nprint('först', flush=True)\nprint('bad', file=sys.stderr)\ntime.sleep(60)"
        await visit.run(code)
        log = page.get_by_role("log")
        await expect(log).to_have_text("först\nbad")
        await expect(log.locator(".err")).to_have_text("bad")
        await expect(page.get_by_role("status", name="Status")).to_have_text("running")
        await page.get_by_label("Input", exact=True).fill("in vain")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("SANDBOX_WS_SIGNED_URLS")).to_be_visible()
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("status", name="Status")).to_contain_text("killed")
        await expect(log).to_have_text("först\nbad")


async def test_a_log_without_signed_urls_goes_on_where_it_was(browser: Browser, unsigned: RunningServer) -> None:
    with Service.of(unsigned) as service:
        run_id = service.run(["sh", "-c", "for n in 1 2 3 4; do echo $n; done"])["run_id"]
    asked: list[str] = []

    async def cut(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) > 1:
            await route.continue_()
            return
        whole = await route.fetch()
        # In the middle of a line.
        text = await whole.text()
        await route.fulfill(response=whole, body=text[: text.index('"data":"1') + 20])

    async with visiting(browser, unsigned) as visit:
        await visit.page.route("**/logs?follow=true*", cut)
        page = await visit.sign_in(path=f"sandbox/runs/{run_id}")
        await expect(page.get_by_role("log")).to_have_text("1\n2\n3\n4")
        await expect(page.get_by_text("The connection was lost")).to_be_hidden()
    assert len(asked) == 2


async def test_entries_that_nobody_has_are_a_visible_gap(browser: Browser, server: RunningServer) -> None:
    with Service.of(server) as service:
        run_id = service.run(["sh", "-c", "echo one; sleep 0.2; echo two"])["run_id"]
    async with visiting(browser, server) as visit:
        frames = [
            '{"type":"event","event":"start","data":{},"seq":3}',
            '{"type":"stdout","encoding":"utf8","data":"one\\n","seq":4}',
            '{"type":"event","event":"resume","seq":92,'
            '"data":{"requested_from_seq":5,"delivered_from_seq":92,"lost_count":87}}',
            '{"type":"stdout","encoding":"utf8","data":"two\\n","seq":92}',
        ]

        async def forgetful(socket: WebSocketRoute) -> None:
            for frame in frames[0 if "from_seq=1&" in socket.url + "&" else 2 :]:
                socket.send(frame)

        await visit.page.route_web_socket(lambda url: "/stream" in url, forgetful)
        page = await visit.sign_in(path=f"sandbox/runs/{run_id}")
        log = page.get_by_role("log")
        await expect(log).to_have_text("one\ntwo")
        await expect(page.get_by_text("87 entries of the log are missing here")).to_be_visible()
        await expect(log.locator("[data-gap]")).to_have_text("two")
        await expect(page.get_by_text("They are being loaded")).to_have_count(0)


async def test_a_server_that_is_away_for_a_while_is_asked_again(visit: Visit) -> None:
    with Service.of(visit.server) as service:
        run_id = service.run(["echo", "still here"])["run_id"]
    page = await visit.sign_in()
    failures = 0

    async def away(route: Route) -> None:
        nonlocal failures
        failures += 1
        await (route.abort() if failures in (1, 3) else route.continue_())

    # First the page itself, then its log.
    await page.route(f"**/api/**/runs/{run_id}", away)
    await visit.open(f"sandbox/runs/{run_id}")
    await expect(page.get_by_role("alert")).to_have_text("The server does not answer.")
    await expect(page.get_by_role("log")).to_have_text("still here")
    await expect(page.get_by_role("alert")).to_have_count(0)
    assert failures >= 4
