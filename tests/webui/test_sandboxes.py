"""Sandboxes with their terminals, files and processes; sessions."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Locator, Page, expect

from tests.api.interpreter.service import Service, token
from tests.webui.browser import Visit, text_file

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def new_sandbox(visit: Visit) -> tuple[Page, Locator]:
    """A page with a terminal that waits for input."""
    page = await visit.sign_in(path="sandboxes")
    await page.get_by_role("button", name="New sandbox").click()
    terminal = page.get_by_role("region", name="Terminal")
    await expect(terminal).to_contain_text("$")
    await terminal.click()
    return page, terminal


async def test_what_runs_is_shown_when_a_shell_was_opened(visit: Visit) -> None:
    page, _ = await new_sandbox(visit)
    processes = page.get_by_role("table", name="Processes")
    await expect(processes).to_contain_text("bash")
    await page.get_by_role("button", name="New shell").click()
    await expect(processes.get_by_text("bash")).to_have_count(2)


async def test_a_terminal_survives_a_reload_and_there_may_be_several(visit: Visit) -> None:
    page, terminal = await new_sandbox(visit)
    await page.keyboard.type("export TIDE=ebb; echo $((6*7))-one\n")
    await expect(terminal).to_contain_text("42-one")
    await page.get_by_role("button", name="New shell").click()
    await expect(page.get_by_role("tab")).to_have_count(2)
    await expect(terminal).to_contain_text("$")
    await terminal.click()
    await page.keyboard.type("echo other-${TIDE:-none}\n")
    await expect(terminal).to_contain_text("other-none")
    await page.reload()
    await expect(page.get_by_role("tab")).to_have_count(2)
    await page.get_by_role("tab", name="Shell 1").click()
    await expect(terminal).to_contain_text("42-one")
    await terminal.click()
    await page.keyboard.type("echo again-$TIDE\n")
    await expect(terminal).to_contain_text("again-ebb")
    await page.keyboard.press("Control+Shift+X")
    await expect(page.get_by_role("button", name="New shell")).to_be_focused()
    await page.get_by_role("button", name="Refresh processes").click()
    await expect(page.get_by_role("table", name="Processes")).to_contain_text("bash")


async def test_what_was_asked_before_a_reload_is_not_answered_again(visit: Visit) -> None:
    page, terminal = await new_sandbox(visit)
    # Where the cursor is: the terminal answers as if it had been typed.
    await page.keyboard.type("printf '\\033[6n'; read -s -d R place; echo told $?; cat -v\n")
    await expect(terminal).to_contain_text("told 0")
    await page.reload()
    await expect(terminal).to_contain_text("told 0")
    await terminal.click()
    await page.keyboard.type("as typed\n")
    await expect(terminal).to_contain_text(re.compile(r"as typed[\s\S]*as typed"))
    await expect(terminal).not_to_contain_text("^[[")


async def test_full_screen_programs_and_resizing(visit: Visit) -> None:
    page, terminal = await new_sandbox(visit)
    await page.keyboard.type("vim -u NONE tide.txt\n")
    await expect(terminal).to_contain_text("~")
    await page.keyboard.type("ihigh tide")
    await page.keyboard.press("Escape")
    await page.set_viewport_size({"width": 900, "height": 700})
    await page.keyboard.type(":wq\n")
    await expect(terminal).to_contain_text("vim -u NONE")
    await page.keyboard.type("clear; cat tide.txt; echo cols=$(stty size | cut -d' ' -f2)\n")
    await expect(terminal).to_contain_text("high tide")
    await expect(terminal).to_contain_text(re.compile(r"cols=\d+"))
    columns = re.search(r"cols=(\d+)", await terminal.inner_text())
    assert columns is not None
    assert 60 < int(columns[1]) < 110


async def test_files_are_uploaded_edited_renamed_downloaded_and_deleted(visit: Visit) -> None:
    page, _ = await new_sandbox(visit)
    await page.get_by_label("Upload files").set_input_files([text_file("note.txt", b"ebb")])
    files = page.get_by_role("list", name="Files")
    await expect(files).to_contain_text("note.txt")
    await files.get_by_role("button", name="Edit note.txt").click()
    box = page.get_by_role("textbox", name="Content")
    await expect(page.locator(".cm-editor")).to_be_visible()
    await box.fill("flood\n")
    await page.get_by_role("button", name="Save").click()
    await files.get_by_role("button", name="Rename note.txt").click()
    await page.get_by_label("New name of note.txt").fill("tide.txt")
    await page.get_by_role("button", name="Save name").click()
    async with page.expect_download() as waiting:
        await files.get_by_role("button", name="Download tide.txt").click()
    assert (await (await waiting.value).path()).read_bytes() == b"flood\n"
    await page.get_by_role("button", name="New directory").click()
    await page.get_by_label("Name of the directory").fill("sub")
    await page.get_by_role("button", name="Make").click()
    await files.get_by_role("button", name="Open sub").click()
    await expect(page.get_by_text("/workspace/sub")).to_be_visible()
    await page.get_by_role("button", name="Up", exact=True).click()
    await files.get_by_role("button", name="Delete tide.txt").click()
    await page.get_by_role("button", name="Yes, delete").click()
    await expect(files.get_by_role("listitem")).to_have_count(1)


async def test_a_sandbox_is_listed_and_released(visit: Visit) -> None:
    page, _ = await new_sandbox(visit)
    name = (await page.get_by_role("heading", level=1).inner_text()).split()[-1]
    await expect(page.get_by_role("status", name="Status")).to_have_text("active")
    await page.get_by_role("link", name="Sandboxes").click()
    table = page.get_by_role("table", name="Sandboxes")
    await table.get_by_role("link", name=name).click()
    await page.get_by_role("button", name="Release").click()
    await page.get_by_role("button", name="Yes, release").click()
    await expect(page.get_by_role("button", name="New sandbox")).to_be_visible()
    await expect(table).not_to_contain_text(name)


async def test_a_session_has_files_and_runs(visit: Visit) -> None:
    with Service.of(visit.server, "ines") as ines:
        session = ines.session()
        ines.run(["sh", "-c", "echo kept > kept.txt"], session_id=session)
    page = await visit.sign_in(token("ines"), "sandboxes")
    await expect(page.get_by_text("There are no sandboxes")).to_be_visible()
    await page.get_by_role("table", name="Sessions").get_by_role("link", name=session).click()
    await expect(page.get_by_role("list", name="Files")).to_contain_text("kept.txt")
    await page.get_by_label("Upload files").set_input_files([text_file("more.txt", b"more")])
    await expect(page.get_by_role("list", name="Files")).to_contain_text("more.txt")
    await page.get_by_role("link", name="Use it for a program").click()
    await visit.run("print(open('kept.txt').read() + open('more.txt').read())")
    await expect(page.get_by_role("log")).to_contain_text("more")
    await page.get_by_role("link", name=session).click()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Yes, delete").click()
    await expect(page.get_by_text("There are no sessions.")).to_be_visible()


async def test_a_sandbox_that_is_not_there_is_an_alert(visit: Visit) -> None:
    page = await visit.sign_in(path="sandboxes/bind-nosuch")
    await expect(page.get_by_role("alert")).to_be_visible()
