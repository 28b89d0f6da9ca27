"""The extension, used as a person uses it, in a real VS Code with the real language server: `make test-vscode`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.api.conftest import finish, start
from tests.patience import patient
from tests.vscode.editor import EXTENSION, TIDEBOX, CodeServer, window

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(patient(600))]

PROGRAMS = EXTENSION / "test" / "programs"

BROKEN = """\
from shop import price


def main():
    print("adding up")
    print(price("apple") + price("pear"))


if __name__ == "__main__":
    main()
"""
SHOP = """\
PRICES = {"apple": 3}


def price(name):
    return PRICES[name]
"""


TESTS = [
    "tests/test_pt.py",
    "tests/test_ut.py",
    "js/sum.test.mjs",
    "js/typed.test.ts",
    "go/go.mod",
    "go/calc/calc.go",
    "go/calc/calc_test.go",
]
RESULTS = [
    ("test_passes", "Passed"),
    ("test_fails", "Failed"),
    ("test_params", "Failed"),
    ("test_skipped", "Skipped"),
    ("test_error", "Errored"),
    ("test_right", "Passed"),
    ("test_wrong", "Failed"),
    ("adds", "Passed"),
    ("fails in it", "Failed"),
    ("works in it", "Passed"),
    ("adds with types", "Passed"),
    ("fails with types", "Failed"),
    ("TestRight", "Passed"),
    ("TestWrong", "Failed"),
    ("TestLater", "Skipped"),
    ("TestPanics", "Failed"),
]


def write(folder: Path, **files: str) -> None:
    """Put files into a folder; a name has __ for its dot."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


async def test_the_line_that_failed_is_marked_until_it_works(
    code_server: CodeServer, browser: Browser, tmp_path: Path
) -> None:
    write(tmp_path, main__py=BROKEN, shop__py=SHOP)
    async with window(browser, code_server, tmp_path) as work:
        await work.open("main.py")
        await work.lens("Run in Sandbox").first.click()
        await work.see_output("adding up", "KeyError: 'pear'")
        await expect(work.status()).to_contain_text("exit 1")
        await work.palette("Problems: Focus on Problems View")
        problem = work.problem("KeyError: 'pear'")
        await expect(problem).to_be_visible()
        await problem.dblclick()
        await expect(work.page.get_by_role("tab", name="shop.py", selected=True)).to_be_visible()
        await expect(work.page.locator(".statusbar-item").filter(has_text="Ln 5")).to_be_visible()
        await expect(work.page.locator(".editor-instance .squiggly-error").first).to_be_visible()

        # Mended, not saved, and run by the button in the title of another editor.
        await work.replace_text(SHOP.replace('{"apple": 3}', '{"apple": 3, "pear": 4}'))
        await work.open("main.py")
        await work.page.get_by_role("button", name="Run in Sandbox").click()
        await expect(work.status()).to_contain_text("ok")
        await work.see_output("adding up", "7")
        await expect(problem).to_have_count(0)
        assert (tmp_path / "shop.py").read_text() == SHOP


async def test_tests_of_four_kinds_run_in_the_test_explorer(
    code_server: CodeServer, browser: Browser, tmp_path: Path
) -> None:
    for path in TESTS:
        copy = tmp_path / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((PROGRAMS / path).read_bytes())
    async with window(browser, code_server, tmp_path) as work:
        await work.open("test_pt.py")
        await expect(work.status()).to_be_visible()
        await work.palette("Testing: Focus on Test Explorer View")
        await work.palette("Test: Run All Tests")
        # Of the four, pytest alone is nothing that a language brings.
        await work.page.get_by_role("button", name="Add and Run Again").click()
        await work.expand_tests()
        for name, state in RESULTS:
            await work.see_test(name, state)
        settings = json.loads((tmp_path / ".vscode" / "settings.json").read_text())
        assert settings == {"tldw.sandbox.packages": {"python": ["pytest"]}}


async def test_results_behind_much_output_are_read(code_server: CodeServer, browser: Browser, tmp_path: Path) -> None:
    write(
        tmp_path,
        test_much__py="import sys\nimport unittest\n\n\nclass Much(unittest.TestCase):\n"
        "    def test_a(self):\n        print('x' * 150_000, file=sys.stderr)\n\n"
        "    def test_b(self):\n        pass\n\n"
        "    def test_c(self):\n        self.fail('after all that')\n",
    )
    async with window(browser, code_server, tmp_path) as work:
        await work.open("test_much.py")
        await expect(work.status()).to_be_visible()
        await work.palette("Testing: Focus on Test Explorer View")
        await work.palette("Test: Run All Tests")
        await work.expand_tests()
        await work.see_test("test_b", "Passed")
        await work.see_test("test_c", "Failed")


async def test_what_a_program_reads_is_what_the_editor_shows(
    code_server: CodeServer, browser: Browser, tmp_path: Path
) -> None:
    write(tmp_path, main__py='print("it is", open("words.txt").read())\n', words__txt="saved")
    async with window(browser, code_server, tmp_path) as work:
        await work.open("words.txt")
        await work.replace_text("not saved")
        await work.open("main.py")
        await work.palette("Run in Sandbox")
        await work.see_output("it is not saved")
        assert (tmp_path / "words.txt").read_text() == "saved"


async def test_an_artifact_is_opened_and_saved(code_server: CodeServer, browser: Browser, tmp_path: Path) -> None:
    write(tmp_path, make__py='import json\n\njson.dump({"answer": 42}, open("result.json", "w"))\n', given__json="{}")
    async with window(browser, code_server, tmp_path) as work:
        await work.open("make.py")
        await work.palette("Run in Sandbox")
        await expect(work.status()).to_contain_text("ok")
        await work.palette("Sandbox: Open Artifacts")
        artifact = work.page.locator(".pane-body .monaco-list-row").filter(has_text="result.json")
        await expect(artifact).to_be_visible()
        # What the run was given is not what it left.
        await expect(work.page.locator(".pane-body .monaco-list-row").filter(has_text="given.json")).to_have_count(0)
        await artifact.click()
        await expect(work.page.get_by_role("tab", name="result.json", selected=True)).to_be_visible()
        await expect(work.page.locator(".editor-instance .view-lines").first).to_contain_text("42")

        await artifact.hover()
        await artifact.get_by_role("button", name="Save Artifact").click()
        await work.confirm_path(tmp_path / "saved.json", "result.json")
        await work.wait_for(lambda: (tmp_path / "saved.json").exists())
        assert json.loads((tmp_path / "saved.json").read_text()) == {"answer": 42}


async def test_a_limit_that_was_configured_ends_a_run(
    code_server: CodeServer, browser: Browser, tmp_path: Path
) -> None:
    write(tmp_path, slow__py="import time\n\ntime.sleep(600)\n")
    async with window(browser, code_server, tmp_path) as work:
        await work.open("slow.py")
        await work.palette("Sandbox: Configure")
        await work.choose("Time Limit")
        await work.answer("1")
        await work.wait_for(lambda: (tmp_path / ".vscode" / "settings.json").exists())
        await work.palette("Run in Sandbox")
        await expect(work.status()).to_contain_text("timeout")
    assert json.loads((tmp_path / ".vscode" / "settings.json").read_text()) == {
        "tldw.sandbox.limits": {"timeoutSec": 1}
    }


async def test_cancelling_kills_the_run(code_server: CodeServer, browser: Browser, tmp_path: Path) -> None:
    write(tmp_path, slow__py='import time\n\nprint("waiting", flush=True)\ntime.sleep(600)\n')
    async with window(browser, code_server, tmp_path) as work:
        await work.open("slow.py")
        await work.palette("Run in Sandbox")
        await work.see_output("waiting")
        await work.page.get_by_role("button", name="Cancel", exact=True).click()
        await expect(work.status()).to_contain_text("killed")


async def test_a_key_in_the_settings_works_and_moves_into_the_secret_store(
    code_server: CodeServer, browser: Browser, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = start(tmp_path_factory.mktemp("server"), rate_limit="off")
    try:
        write(tmp_path, hello__py='print("from the server")\n')
        code_server.settings(command=str(TIDEBOX), serverUrl=server.url, apiKey=server.key)
        async with window(browser, code_server, tmp_path) as work:
            await work.open("hello.py")
            await work.palette("Run in Sandbox")
            await work.see_output("from the server", f"{server.url}/webui/")
            await work.page.get_by_role("button", name="Move to Secret Store").click()
            await work.wait_for(lambda: server.key not in code_server.settings_text())
            await work.palette("Sandbox: Run Again")
            await work.palette("Run in Sandbox")
            await expect(work.status()).to_contain_text("ok")
            await work.see_output("from the server")
    finally:
        code_server.settings(command=str(TIDEBOX))
        finish(server)


async def test_without_the_program_it_says_how_to_install_it(
    code_server: CodeServer, browser: Browser, tmp_path: Path
) -> None:
    write(tmp_path, hello__py='print("hello")\n')
    code_server.settings(command="/nowhere/tidebox")
    try:
        async with window(browser, code_server, tmp_path) as work:
            await work.open("hello.py")
            note = work.page.locator(".notification-toast").filter(has_text="There is no program")
            await expect(note).to_be_visible()
            await note.get_by_role("button", name="Get Started").click()
            # The page beside it is a frame of its own.
            await expect(work.page.get_by_text("One package, no daemon and no configuration.")).to_be_visible()
    finally:
        code_server.settings(command=str(TIDEBOX))
