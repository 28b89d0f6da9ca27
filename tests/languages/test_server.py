"""Languages on a server: every surface knows the same ones."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.api.conftest import RunningServer, finish, start
from tests.api.fathom.client import connected
from tests.cli.command import error_line, tidebox
from tests.languages.programs import PROGRAMS
from tests.runtimes import native_only
from tidebox.errors import PolicyUnsupported, UnknownLanguage
from tidebox.mcp import arguments
from tidebox.mcp.run_tools import run_code
from tidebox.model.run import Phase
from tidebox.runtime.images import IMAGES, ImageStore
from tidebox.sdk import AsyncInterpreter

pytestmark = native_only("containers have the languages of their images")

OWN = """
[languages.named]
file = "main.named"
run = ["echo", "{file}"]

[languages.awk]
aliases = ["mawk"]
file = "main.awk"
run = ["awk", "-f", "{file}"]
suffixes = [".awk"]
"""
AWK = 'BEGIN { print "hello from awk" }'
BROKEN = PROGRAMS["c"].broken
TOOLS = {"ruby": "ruby", "cpp": "g++"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose operator has added a language, and chosen the machine's own compiler for another."""
    directory = tmp_path_factory.mktemp("languages-server")
    (directory / "own.toml").write_text(OWN)
    running = start(
        directory / "data",
        rate_limit="off",
        languages=str(directory / "own.toml"),
        language_images="c=host",
        pool_node="0",
    )
    yield running
    finish(running)


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[AsyncInterpreter]:
    async with AsyncInterpreter(server.url, api_key=server.key) as client:
        yield client


async def test_a_run_of_a_language(client: AsyncInterpreter) -> None:
    done = await client.run(["a.c", "x"], language="c", files={"a.c": PROGRAMS["c"].greeting.encode()})
    assert (done.run.exit_code, done.run.reason_code) == (3, "exit_code_nonzero")
    assert done.stdout == b"hello x\n"


async def test_a_run_that_cannot_be_compiled_says_so(client: AsyncInterpreter) -> None:
    done = await client.run(["a.c"], language="c", files={"a.c": BROKEN.encode()})
    assert (done.run.phase, done.run.reason_code, done.run.exit_code) == (Phase.FAILED, "compile_failed", 1)
    assert done.run.message == "the program could not be compiled: a.c:2"
    assert b"missing" in done.stderr


async def test_a_run_in_a_session_is_compiled_too(client: AsyncInterpreter) -> None:
    session = await client.create_session()
    await client.upload_files(session.id, {"src/a.c": PROGRAMS["c"].writing.encode()})
    run = await client.start_run(["src/a.c"], session_id=session.id, language="c", artifacts=["**"])
    assert (await client.wait_run(run.id)).phase is Phase.COMPLETED
    assert {item.path for item in (await client.list_artifacts(run.id)).items} >= {"out.txt"}


async def test_a_language_needs_the_newer_version(server: RunningServer) -> None:
    body = {"spec_version": "1.0", "base_image": "host", "language": "c", "command": ["a.c"]}
    async with httpx.AsyncClient(base_url=server.url, headers=server.headers) as http:
        answer = await http.post("/api/v1/sandbox/runs", json=body)
    assert (answer.status_code, answer.json()["error"]["details"]["since"]) == (400, "1.1")


@pytest.mark.parametrize("language", ["cobol", "go", "PYTHON2", "../c"])
async def test_a_language_that_is_not_offered(client: AsyncInterpreter, language: str) -> None:
    with pytest.raises(UnknownLanguage):
        await client.start_run(["a"], language=language)


async def test_fathom_has_those_that_were_chosen(server: RunningServer) -> None:
    async with connected(server) as fathom:
        assert (await fathom.run(AWK, "awk")).stdout == "hello from awk\n"
        done = await fathom.run(PROGRAMS["c"].greeting, "c", stdin="one\n")
        assert (done.stdout, done.sequence[-2:]) == ("hello\nONE\n", ["failed", "result"])
        broken = await fathom.run(BROKEN, "c")
        assert (broken.stdout, broken.sequence[-2:]) == ("", ["failed", "result"])
        assert "missing" in broken.stderr
        for unknown in ("go", "mawk", "C"):
            assert (await fathom.run("", unknown)).sequence == ["LANGUAGE_NOT_SUPPORTED"]


async def test_run_code_has_them(client: AsyncInterpreter) -> None:
    async def run(**given: Any) -> dict[str, Any]:
        answer = await run_code(client, arguments.RunCode(**given), None)
        structured: dict[str, Any] | None = answer.structured_content
        assert structured is not None
        return structured

    assert (await run(code=AWK, language="mawk"))["stdout"] == "hello from awk\n"
    # Some tools go by the name of the file.
    assert (await run(code="", language="Named"))["stdout"] == "/workspace/main.named\n"
    assert (await run(code=PROGRAMS["c"].greeting, language="C"))["exit_code"] == 3
    broken = await run(code=BROKEN, language="c")
    assert broken["reason"].startswith("the program could not be compiled; see stderr")
    assert broken["artifacts"] == []
    with pytest.raises(UnknownLanguage):
        await run(code="", language="cobol")
    assert (await run(code=PROGRAMS["bash"].writing, language="bash"))["artifacts"][0]["path"] == "out.txt"


async def test_discovery_tells_which_there_are(client: AsyncInterpreter) -> None:
    found = await client.runtimes()
    assert set(found.languages) >= {"awk", "bash", "c", "python", "shell"}
    assert "go" not in found.languages
    native = next(item for item in found.runtimes if item.name == "native")
    by_name = {item.name: item for item in native.languages}
    assert (by_name["c"].compiled, by_name["c"].start, by_name["c"].image) == (True, "cold", "host")
    assert (by_name["python"].start, by_name["javascript"].start) == ("forked", "parked")
    # They are found out in boxes, and the first to ask sees what is known by then.
    versions: dict[str, str | None] = {}
    while not (versions.get("c") and versions.get("python") and versions.get("bash")):
        versions = {item.name: item.version for item in (await client.runtimes()).runtimes[0].languages}
    assert (versions["python"] or "").startswith("3.")
    assert versions["shell"] is None


async def test_an_image_that_is_made_meanwhile_is_there_at_once(tmp_path: Path) -> None:
    running = start(tmp_path, rate_limit="off", pool_node="0")
    try:
        async with AsyncInterpreter(running.url, api_key=running.key) as client, connected(running) as fathom:
            assert "c" not in (await client.runtimes()).languages
            assert (await fathom.run("", "c")).sequence == ["LANGUAGE_NOT_SUPPORTED"]
            store = ImageStore(tmp_path / IMAGES)
            host = store.resolve("host")
            store.tag("tidebox/c", host, host, host.packages, ())
            found = await client.runtimes()
            assert "c" in found.languages
            native = next(item for item in found.runtimes if item.name == "native")
            assert {item.name: item.image for item in native.languages}["c"] == "tidebox/c"
            assert (await fathom.run(PROGRAMS["c"].greeting, "c", stdin="")).stdout == "hello\n"
            done = await client.run(["a.c"], language="c", files={"a.c": PROGRAMS["c"].greeting.encode()})
            assert done.run.exit_code == 3
            store.remove("tidebox/c")
            assert "c" not in (await client.runtimes()).languages
            assert (await fathom.run("", "c")).sequence == ["LANGUAGE_NOT_SUPPORTED"]
            # A record that cannot be read is one language less, and nothing else.
            names = tmp_path / IMAGES / "names"
            names.mkdir(exist_ok=True)
            (names / "tidebox%2Fc.json").write_text("{")
            assert "c" not in (await client.runtimes()).languages
            assert (await fathom.run("", "c")).sequence == ["LANGUAGE_NOT_SUPPORTED"]
    finally:
        finish(running)


async def test_an_image_may_be_chosen_by_any_name_of_a_language(tmp_path: Path) -> None:
    running = start(tmp_path, rate_limit="off", language_images="RB=host,c++=host", pool_node="0")
    try:
        async with AsyncInterpreter(running.url, api_key=running.key) as client:
            native = next(item for item in (await client.runtimes()).runtimes if item.name == "native")
            chosen = {item.name for item in native.languages}
            assert {"ruby", "cpp"} & chosen == {name for name, tool in TOOLS.items() if shutil.which(tool)}
    finally:
        finish(running)


def test_the_command_line_leaves_compiling_to_the_server(server: RunningServer, tmp_path: Path) -> None:
    program = tmp_path / "greet.c"
    program.write_text(PROGRAMS["c"].greeting)
    env = {"TIDEBOX_API_KEY": server.key}
    done = tidebox("run", "--server", server.url, program, "a", "b", stdin=b"one\n", env=env)
    assert (done.returncode, done.stdout) == (3, b"hello a b\nONE\n")
    broken = tidebox("run", "--server", server.url, "--language", "c", "-c", BROKEN, env=env)
    assert broken.returncode == 1
    assert b"missing" in broken.stderr


def test_the_command_line_compiles_by_itself(tmp_path: Path) -> None:
    program = tmp_path / "greet.ts"
    program.write_text(PROGRAMS["typescript"].greeting)
    done = tidebox("run", program, "a", stdin=b"one\n", env={"SANDBOX_DATA_DIR": str(tmp_path / "data")})
    assert (done.returncode, done.stdout) == (3, b"hello a\nONE\n")


def test_a_language_without_an_image_is_told_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[languages.x]\nfile = "x"\nrun = ["no-such-program", "{file}"]\n')
    env = {"SANDBOX_DATA_DIR": str(tmp_path / "data"), "SANDBOX_LANGUAGES": str(tmp_path / "own.toml")}
    done = tidebox("run", "--language", "x", "-c", "1", env=env)
    assert "there is no 'no-such-program' in the image 'host'" in error_line(done)


def test_a_server_does_not_start_with_a_file_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[languages.x]\nrun = 1\n")
    env = {"SANDBOX_DATA_DIR": str(tmp_path / "data"), "SANDBOX_LANGUAGES": str(tmp_path / "own.toml")}
    done = tidebox("serve", "--port", "0", env=env)
    assert "own.toml: languages.x.run: must be a list of texts" in error_line(done)


async def test_an_operator_may_have_nothing_executed(tmp_path: Path) -> None:
    running = start(tmp_path, rate_limit="off", language_images="c=host", executable_scratch="false", pool_node="0")
    try:
        async with AsyncInterpreter(running.url, api_key=running.key) as client:
            with pytest.raises(PolicyUnsupported, match="SANDBOX_EXECUTABLE_SCRATCH"):
                await client.start_run(["a.c"], language="c", files={"a.c": b"int main() {}"})
    finally:
        finish(running)
