"""The Run page and the page of a run, as people and screen readers find them."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import Service, token
from tests.webui.browser import Visit, text_file, visiting

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest_asyncio.fixture(loop_scope="session")
async def copying(browser: Browser, server: RunningServer) -> AsyncIterator[Visit]:
    """A tab that may read what it has copied."""
    async with visiting(browser, server, permissions=["clipboard-read", "clipboard-write"]) as found:
        yield found


async def test_a_program_is_run_and_its_page_shows_what_became_of_it(visit: Visit) -> None:
    page = await visit.sign_in()
    await visit.run("print('hello')\nprint('world')")
    await expect(page.get_by_role("status", name="Status")).to_have_text("completed, exit code 0")
    log = page.get_by_role("log", name="Log")
    await expect(log).to_have_text("hello\nworld")
    assert await log.inner_text() == "hello\nworld\n"
    await log.focus()
    assert await log.evaluate("element => document.activeElement === element")
    await expect(page.get_by_text("ended by itself, without an error")).to_be_visible()
    assert "/webui/sandbox/runs/run-" in page.url


async def test_a_program_in_another_language_is_run_and_repeated(copying: Visit) -> None:
    visit, page = copying, await copying.sign_in()
    await visit.run('words=(hello "tide")\necho "${words[@]^^}"', language="bash")
    await expect(page.get_by_role("log", name="Log")).to_have_text("HELLO TIDE")
    await expect(page.get_by_text("Program (bash)")).to_be_visible()
    await page.get_by_role("button", name="Copy as CLI").click()
    copied = await page.evaluate("() => navigator.clipboard.readText()")
    assert " --language bash -c " in copied
    first = page.url
    await page.get_by_role("button", name="Run again").click()
    await page.wait_for_url(lambda url: url != first)
    await expect(page.get_by_role("log", name="Log")).to_have_text("HELLO TIDE")


async def test_a_program_in_a_language_of_the_operators_is_in_the_file_that_it_names(visit: Visit) -> None:
    page = await visit.sign_in()
    await visit.run("anything", language="named")
    await expect(page.get_by_role("log", name="Log")).to_have_text("/workspace/main.named")


async def test_output_is_shown_while_the_program_runs_and_it_can_be_cancelled(visit: Visit) -> None:
    page = await visit.sign_in()
    await visit.run("import sys, time\nprint('first', flush=True)\nprint('bad', file=sys.stderr)\ntime.sleep(60)")
    log = page.get_by_role("log", name="Log")
    await expect(log).to_have_text("first\nbad")
    await expect(log.locator(".err")).to_have_text("bad")
    await expect(page.get_by_role("status", name="Status")).to_have_text("running")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("status", name="Status")).to_contain_text("killed")
    await expect(page.get_by_text("It was cancelled.")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


async def test_a_program_gets_input_while_it_runs(visit: Visit) -> None:
    page = await visit.sign_in()
    await page.get_by_role("button", name="Options").click()
    await page.get_by_label("Send input while it runs").check()
    await visit.run("for line in open(0): print('got', line.strip(), flush=True)\nprint('over')")
    await page.get_by_label("Input", exact=True).fill("tide")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("log")).to_have_text("got tide")
    await page.get_by_role("button", name="End of input").click()
    await expect(page.get_by_role("log")).to_have_text("got tide\nover")
    await expect(page.get_by_role("status", name="Status")).to_contain_text("completed")


async def test_a_run_that_was_started_elsewhere_gets_input_too(visit: Visit) -> None:
    code = "for line in open(0): print('got', line.strip(), flush=True)\nprint('over')"
    with Service.of(visit.server) as service:
        run_id = service.start(["python3", "-c", code], spec_version="1.1", interactive=True)
        quiet_id = service.start(["sleep", "60"])
    page = await visit.sign_in(path=f"sandbox/runs/{quiet_id}")
    await expect(page.get_by_role("status", name="Status")).to_have_text("running")
    await expect(page.get_by_label("Input", exact=True)).to_have_count(0)
    await page.get_by_role("button", name="Cancel").click()
    await visit.open(f"sandbox/runs/{run_id}")
    await page.get_by_label("Input", exact=True).fill("tide")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("log")).to_have_text("got tide")
    await page.get_by_role("button", name="End of input").click()
    await expect(page.get_by_role("log")).to_have_text("got tide\nover")
    await expect(page.get_by_role("status", name="Status")).to_contain_text("completed")


async def test_ctrl_enter_runs_and_escape_tab_leaves_the_editor(visit: Visit) -> None:
    page = await visit.sign_in()
    await visit.write("print(6 * 7)")
    await expect(page.locator(".cm-editor")).to_be_visible()
    box = page.get_by_role("textbox", name="Code")
    await box.focus()
    await page.keyboard.press("Escape")
    await page.keyboard.press("Tab")
    assert not await box.evaluate("element => element.contains(document.activeElement)")
    await box.focus()
    await page.keyboard.press("Control+Enter")
    await expect(page.get_by_role("log")).to_have_text("42")


async def test_options_reach_the_run_and_limits_are_named_in_a_sentence(visit: Visit) -> None:
    page = await visit.sign_in()
    await page.get_by_role("button", name="Options").click()
    await page.get_by_label("Memory").fill("64")
    await page.get_by_label("Environment").fill("WHO=tide")
    await page.get_by_label("Labels").fill("team=sea")
    await page.get_by_label("Files").set_input_files([text_file("data.txt", b"from a file")])
    await visit.run("import os\nprint(os.environ['WHO'], open('data.txt').read())\nx = bytearray(2**28)")
    await expect(page.get_by_role("log")).to_contain_text("tide from a file")
    await expect(page.get_by_role("status", name="Status")).to_contain_text("failed")
    await expect(page.get_by_text("Out of memory: the program needed more than the 64 MiB")).to_be_visible()
    await expect(page.get_by_text("64 MiB of 64 MiB")).to_be_visible()
    await expect(page.get_by_text("team = sea")).to_be_visible()


async def test_a_refused_run_is_an_alert(visit: Visit) -> None:
    page = await visit.sign_in()
    await page.get_by_role("button", name="Options").click()
    await page.get_by_label("Memory").fill("1")
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("alert")).to_contain_text("memory_mb")


async def test_a_run_that_is_not_there_is_an_alert(visit: Visit) -> None:
    page = await visit.sign_in(path="sandbox/runs/run-nosuch")
    await expect(page.get_by_role("alert")).to_contain_text("no such run")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("run-nosuch")


async def test_artifacts_are_previewed_and_downloaded(visit: Visit) -> None:
    page = await visit.sign_in()
    await visit.run(
        "import base64, json\n"
        "open('table.csv', 'w').write('name,size\\n\"a, b\",1\\n')\n"
        "json.dump({'tide': [1, 2]}, open('data.json', 'w'))\n"
        "open('note.txt', 'w').write('low tide')\n"
        "open('page.html', 'w').write('<h1 style=\"color: red\">Hi</h1><script>parent.alert(1)</script>"
        "<img src=x onerror=alert(2)>')\n"
        "open('dot.png', 'wb').write(base64.b64decode("
        "'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='))",
        artifacts="*.csv, *.json, *.txt, *.html, *.png",
    )
    listed = page.get_by_role("list", name="Artifacts")
    await expect(listed.get_by_role("listitem")).to_have_count(5)

    async with page.expect_download() as waiting:
        await listed.get_by_role("button", name="Download note.txt").click()
    download = await waiting.value
    assert download.suggested_filename == "note.txt"
    assert (await download.path()).read_bytes() == b"low tide"

    async with page.expect_download() as waiting:
        await page.get_by_role("button", name="Save all as zip").click()
    archive = zipfile.ZipFile(io.BytesIO((await (await waiting.value).path()).read_bytes()))
    assert sorted(archive.namelist()) == ["data.json", "dot.png", "note.txt", "page.html", "table.csv"]

    for name in ("table.csv", "data.json", "note.txt", "dot.png", "page.html"):
        await page.get_by_role("button", name=f"Preview {name}").click()
        shown = page.get_by_role("group", name=f"Preview of {name}")
        if name == "table.csv":
            await expect(shown.get_by_role("cell", name="a, b")).to_be_visible()
        elif name == "data.json":
            await expect(shown).to_contain_text('"tide": [')
        elif name == "note.txt":
            await expect(shown).to_have_text("low tide")
        elif name == "dot.png":
            await expect(shown.get_by_role("img")).to_have_js_property("naturalWidth", 1)
        else:
            frame = shown.locator("iframe")
            assert await frame.get_attribute("sandbox") == ""
            heading = frame.content_frame.get_by_role("heading", name="Hi")
            await expect(heading).to_have_css("color", "rgb(255, 0, 0)")


async def test_what_a_program_prints_and_names_stays_text(visit: Visit) -> None:
    page = await visit.sign_in()
    await visit.run(
        f"print({HOSTILE!r})\n"
        "print('\\x1b]8;;javascript:alert(1)\\x07link\\x1b]8;;\\x07')\n"
        "print('\\x1b[31mred\\x1b[0m \\x1b[2J\\x1b[Hcleared')\n"
        "print('\\u202etxt.exe\\u202c &lt;b&gt;')\n"
        f"open({HOSTILE!r}, 'w').write('x')\n"
        "open('a\\u202egpj.exe', 'w').write('x')",
        artifacts="*",
    )
    log = page.get_by_role("log")
    await expect(log).to_have_text(f"{HOSTILE}\nlink\nred cleared\n\u202etxt.exe\u202c &lt;b&gt;")
    await expect(log.locator(".fg-1")).to_have_text("red")
    listed = page.get_by_role("list", name="Artifacts")
    await expect(listed.get_by_role("button", name=f"Download {HOSTILE}")).to_be_visible()
    await expect(listed).to_contain_text("a\\u{202e}gpj.exe")
    assert await page.locator("main img, main a[href^='javascript']").count() == 0


async def test_copies_hold_the_run_and_never_the_key(copying: Visit) -> None:
    page = await copying.sign_in()
    await copying.run("print('it\\'s', 6 * 7)", artifacts="*.png")
    await expect(page.get_by_role("status", name="Status")).to_contain_text("completed")
    copies = {}
    for name in ("curl", "Python", "CLI", "run spec"):
        await page.get_by_role("button", name=f"Copy as {name}").click()
        await expect(page.get_by_text(f"Copied as {'a command' if name == 'CLI' else name}.")).to_be_visible()
        copies[name] = await page.evaluate("navigator.clipboard.readText()")
        assert copying.server.key not in copies[name]
    assert "$TIDEBOX_API_KEY" in copies["curl"]
    spec = json.loads(copies["run spec"])
    assert spec["command"] == ["python", "-c", "print('it\\'s', 6 * 7)"]
    assert spec["capture_patterns"] == ["*.png"]
    environment = {"PATH": "/usr/bin:/bin", "TIDEBOX_API_KEY": copying.server.key}
    command = ("sh", "-c", copies["curl"])
    shell = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    answer, _ = await shell.communicate()
    with Service.of(copying.server) as service:
        run_id = json.loads(answer)["run_id"]
        service.wait(run_id)
        assert service.log(run_id) == "it's 42\n"
    compile(copies["Python"], "copied", "exec")
    assert copies["CLI"].startswith("tidebox run --server http")


async def test_a_run_is_repeated_and_compared(visit: Visit) -> None:
    page = await visit.sign_in()
    await visit.run("import os\nprint('same')\nprint(os.urandom(8).hex())")
    await expect(page.get_by_role("status", name="Status")).to_contain_text("completed")
    first = page.url.rpartition("/")[2]
    await page.get_by_role("button", name="Run again").click()
    await page.wait_for_url(lambda url: first not in url)
    second = page.url.rpartition("/")[2]
    await expect(page.get_by_role("status", name="Status")).to_contain_text("completed")
    await page.get_by_role("link", name="Compare").click()
    await page.get_by_label("Second run").select_option(first)
    await expect(page.get_by_role("table", name="Facts")).to_contain_text(second)
    await expect(page.get_by_role("heading", name="Outputs")).to_contain_text("lines differ")
    await expect(page.get_by_role("heading", name="Programs")).to_contain_text("no difference")


async def test_elsewhere_a_link_opens_the_run_but_not_its_code(visit: Visit) -> None:
    with Service.of(visit.server, "ada") as ada:
        run = ada.run(["python", "-c", "print('of ada')"])
    page = await visit.sign_in(token("ada"), f"sandbox/runs/{run['run_id']}")
    await expect(page.get_by_role("log")).to_have_text("of ada")
    await expect(page.get_by_text("The server keeps no code")).to_be_visible()
    await page.get_by_role("button", name="Copy as curl").click()
    await expect(page.get_by_role("alert")).to_contain_text("The server keeps no code")
    await page.get_by_role("button", name="Run again").click()
    await expect(page.get_by_role("alert")).to_contain_text("The server keeps no code")


async def test_a_run_of_somebody_else_is_not_there(visit: Visit) -> None:
    with Service.of(visit.server, "ada") as ada:
        run_id = ada.start()
    page = await visit.sign_in(token("bob"), f"sandbox/runs/{run_id}")
    await expect(page.get_by_role("alert")).to_contain_text("no such run")
