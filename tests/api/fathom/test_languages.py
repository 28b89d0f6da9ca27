"""What each language does, through a warm cell of its own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.api import conftest
from tests.api.conftest import RunningServer, finish, start
from tests.api.fathom.client import Client, connected
from tests.api.fathom.conftest import assert_idle, levels
from tests.runtimes import RUNTIME, native_only
from tidebox.sdk import Client as BlockingClient

# There is no image for Elixir unless somebody names one.
LANGUAGES = ["python", "javascript", "shell", *(["elixir"] if RUNTIME == "native" else [])]

HELLO = {
    "python": "print('hello')",
    "javascript": "console.log('hello')",
    "shell": "echo hello",
    "elixir": 'IO.puts("hello")',
}
FAILING = {
    "python": "import sys; print('why', file=sys.stderr); sys.exit(7)",
    "javascript": "console.error('why'); process.exit(7)",
    "shell": "echo why >&2; exit 7",
    "elixir": 'IO.puts(:stderr, "why"); System.halt(7)',
}
ECHO = {
    "python": "import os, sys; print(os.environ['NAME'] + sys.stdin.read(), end='')",
    "javascript": "process.stdout.write(process.env.NAME + require('fs').readFileSync(0, 'utf8'))",
    "shell": 'printf \'%s%s\\n\' "$NAME" "$(cat)"',
    "elixir": 'IO.write(System.get_env("NAME") <> IO.read(:stdio, :eof))',
}
BROKEN = {"python": "print(", "javascript": "let = ;", "shell": "if then", "elixir": "defmodule do"}
ENDLESS = {
    "python": "import os; os.write(1, b'up')\nwhile True: pass",
    "javascript": "console.log('up'); setTimeout(() => { for (;;); }, 1)",
    "shell": "echo up; while :; do :; done",
    "elixir": 'IO.puts("up"); Process.sleep(:infinity)',
}
HUNGRY = {
    "python": "b = []\nwhile True: b.append(bytearray(1 << 20))",
    "javascript": "const b = []; for (;;) b.push(Buffer.alloc(1 << 20, 1))",
    "shell": "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done",
    "elixir": "Stream.iterate([1], &[:binary.copy(<<1>>, 1_048_576) | &1]) |> Enum.each(fn _ -> :ok end)",
}


@pytest.fixture(scope="module")
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a parked cell for every language."""
    server = start(tmp_path_factory.mktemp("server"), rate_limit="off")
    # Elixir is kept from its first program on.
    with BlockingClient(server.url, api_key=server.key) as client:
        assert client.run(HELLO[LANGUAGES[-1]], LANGUAGES[-1]).ok
    if RUNTIME == "native":
        _wait_until_filled(server)
    yield server
    assert_idle(server)
    finish(server)


@pytest.fixture
async def client(warm_server: RunningServer) -> AsyncIterator[Client]:
    async with connected(warm_server) as client:
        yield client


def _wait_until_filled(server: RunningServer) -> None:
    deadline = time.monotonic() + 30
    previous = -1.0
    while previous != (now := levels(server)["sandbox_boxes"]) or now < 8:
        assert time.monotonic() < deadline
        previous = now
        time.sleep(0.2)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_program_prints(client: Client, language: str) -> None:
    done = await client.run(HELLO[language], language)
    assert done.sequence == ["ack", "running", "stdout", "completed", "result"]
    assert (done.stdout, done.stderr, done.exit_code) == ("hello\n", "", 0)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_exit_code_and_stderr_are_reported(client: Client, language: str) -> None:
    done = await client.run(FAILING[language], language)
    assert done.sequence == ["ack", "running", "stderr", "failed", "result"]
    assert (done.stdout, done.stderr, done.exit_code) == ("", "why\n", 7)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_program_reads_input_and_environment(client: Client, language: str) -> None:
    # A line with its end: Elixir's own I/O server forgets one without if the end of the input comes a moment later.
    done = await client.run(ECHO[language], language, env={"NAME": "Jürgen "}, stdin="日本\n")
    assert (done.stdout, done.stderr) == ("Jürgen 日本\n", "")


@pytest.mark.parametrize("language", LANGUAGES)
async def test_code_with_a_syntax_error_fails(client: Client, language: str) -> None:
    done = await client.run(BROKEN[language], language)
    assert done.sequence == ["ack", "running", "stderr", "failed", "result"]
    assert "main." in done.stderr


@pytest.mark.parametrize("language", LANGUAGES)
async def test_empty_code_completes(client: Client, language: str) -> None:
    done = await client.run("", language)
    assert done.sequence == ["ack", "running", "completed", "result"]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_program_ends_at_its_timeout(client: Client, language: str) -> None:
    done = await client.run(ENDLESS[language], language, timeout_ms=2000)
    assert done.sequence == ["ack", "running", "stdout", "timeout", "result"]
    assert done.exit_code is None


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_program_over_its_memory_limit_is_killed(client: Client, language: str) -> None:
    done = await client.run(HUNGRY[language], language, memory_mb=128, max_output_bytes=1 << 20)
    assert done.sequence == ["ack", "running", "oom", "result"]
    assert done.exit_code is None


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_program_is_cancelled(client: Client, language: str) -> None:
    id = await client.start(ENDLESS[language], language)
    await client.next_of("stdout")
    await client.cancel(id)
    done = await client.finish(id)
    assert done.sequence == ["ack", "running", "stdout", "cancelled", "result"]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_program_over_its_output_limit_ends(client: Client, language: str) -> None:
    flood = {
        "python": "while True: print('x' * 999)",
        "javascript": "for (;;) require('fs').writeSync(1, 'x'.repeat(999))",
        "shell": "yes",
        "elixir": 'Stream.repeatedly(fn -> IO.write(String.duplicate("x", 999)) end) |> Stream.run()',
    }
    done = await client.run(flood[language], language, max_output_bytes=100_000)
    assert done.sequence == ["ack", "running", "stdout", "OUTPUT_LIMIT", "failed", "result"]
    assert len(done.stdout) == 100_000


async def test_all_languages_at_once_on_one_connection(client: Client) -> None:
    ids = [await client.start(HELLO[language], language) for language in LANGUAGES * 3]
    for done in await client.finish_all(ids):
        assert done.stdout == "hello\n"


@native_only("the interpreters of containers are those of their images")
async def test_a_language_that_this_machine_does_not_have(
    start_server: Callable[..., RunningServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(conftest._CLEAN, "PATH", str(tmp_path))
    server = start_server(rate_limit="off")
    async with connected(server) as client:
        done = await client.run(HELLO["javascript"], "javascript")
        assert done.sequence == ["LANGUAGE_NOT_SUPPORTED"]
        assert done.error["message"].endswith("available: python, shell, bash")
        assert (await client.run(HELLO["python"])).stdout == "hello\n"
