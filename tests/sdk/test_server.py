"""Both clients with a real server and real boxes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.conftest import RunningServer
from tests.sdk.clients import AnyClient
from tests.sdk.conftest import MakeClient
from tidebox.errors import InvalidRequest, Overloaded, Unauthorized, UnknownLanguage
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome
from tidebox.sdk import AsyncClient, Client, ConnectionLost, Status


@pytest.fixture
def client(make_client: MakeClient, running_server: RunningServer) -> AnyClient:
    return make_client(running_server.url, api_key=running_server.key)


def test_a_program_prints(client: AnyClient) -> None:
    result = client.run("print('hello')")
    assert (result.ok, result.stdout, result.stderr, result.exit_code) == (True, "hello\n", "", 0)
    assert (result.status, result.outcome) == (Status.COMPLETED, Outcome.EXITED)
    assert result.usage.wall_seconds < 30


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import os; print(input(), os.environ['WHO'])"),
        ("javascript", "console.log(require('fs').readFileSync(0, 'utf8').trim(), process.env.WHO)"),
        ("shell", 'read line; echo "$line $WHO"'),
        ("elixir", 'IO.puts(String.trim(IO.read(:line)) <> " " <> System.get_env("WHO"))'),
    ],
)
def test_input_and_environment_in_every_language(client: AnyClient, language: str, code: str) -> None:
    result = client.run(code, language, stdin="tide\n", env={"WHO": "crab"})
    assert (result.stdout, result.stderr, result.exit_code) == ("tide crab\n", "", 0)


def test_a_program_that_fails(client: AnyClient) -> None:
    result = client.run("import sys; print('wrong', file=sys.stderr); sys.exit(3)")
    assert (result.ok, result.status, result.outcome) == (False, Status.FAILED, Outcome.EXITED)
    assert (result.exit_code, result.stderr) == (3, "wrong\n")


def test_a_program_that_is_killed(client: AnyClient) -> None:
    result = client.run("import os; os.kill(os.getpid(), 9)")
    assert (result.outcome, result.exit_code) == (Outcome.SIGNALED, None)


def test_limits(client: AnyClient) -> None:
    assert client.run("while True: pass", timeout=0.3).outcome is Outcome.TIMEOUT
    assert client.run("x = bytearray(b'x') * (1 << 30)", memory=64 * MIB).outcome is Outcome.OOM
    greedy = client.run("while True: print('tide')", output=1000)
    assert (greedy.outcome, greedy.truncated, len(greedy.stdout)) == (Outcome.OUTPUT_LIMIT, True, 1000)


def test_output_comes_as_it_is_written(client: AnyClient) -> None:
    program = "import time\nprint('first', end='')\ntime.sleep(20)"
    with client.start(program, timeout=30) as execution:
        stream, text = next(iter(execution))
        assert (stream, text) == ("stdout", "first")
        assert execution.status is Status.RUNNING
        execution.cancel()
        result = execution.result()
        assert (result.outcome, result.stdout) == (Outcome.CANCELLED, "first")


def test_many_at_once_on_one_connection(client: AnyClient) -> None:
    with ThreadPoolExecutor(12) as threads:
        results = threads.map(lambda number: client.run(f"print({number} ** 2)").stdout, range(24))
        assert list(results) == [f"{number**2}\n" for number in range(24)]


def test_ping_tells_the_load(client: AnyClient) -> None:
    with client.start("import time; print('up'); time.sleep(20)") as execution:
        next(iter(execution))
        load = client.ping().load
        assert load is not None
        assert load.active_executions >= 1


def test_what_the_server_refuses(client: AnyClient) -> None:
    with pytest.raises(UnknownLanguage, match="rust") as caught:
        client.run("fn main() {}", language="rust")
    assert caught.value.details["code"] == "LANGUAGE_NOT_SUPPORTED"
    with pytest.raises(InvalidRequest, match="env"):
        client.run("x", env={"A=B": "c"})
    assert client.run("print(1)").ok


def test_text_that_is_long_and_far_from_ascii(client: AnyClient) -> None:
    result = client.run("print('潮汐🌊é' * 100_000, end='')", output=8 * MIB)
    assert result.stdout == "潮汐🌊é" * 100_000


def test_a_wrong_key(make_client: MakeClient, running_server: RunningServer) -> None:
    for key in ("wrong", ""):
        with pytest.raises(Unauthorized):
            make_client(running_server.url, api_key=key).connect()


def test_the_key_is_found(
    make_client: MakeClient, running_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_DATA_DIR", str(running_server.data_dir))
    monkeypatch.delenv("SANDBOX_API_KEY", raising=False)
    assert make_client(running_server.url, api_key=None).run("print(1)").ok


def test_a_full_server_says_so(make_client: MakeClient, start_server: Callable[..., RunningServer]) -> None:
    server = start_server(max_concurrent_runs="1", queue_max_length="0")
    client = make_client(server.url, api_key=server.key)
    with client.start("import time; print('up'); time.sleep(20)") as execution:
        next(iter(execution))
        with pytest.raises(Overloaded) as caught:
            client.run("print(1)")
        assert caught.value.retryable


def test_a_server_that_is_killed_and_comes_back(
    make_client: MakeClient, start_server: Callable[..., RunningServer]
) -> None:
    server = start_server()
    client = make_client(server.url, api_key=server.key, connect_timeout=30)
    execution = client.start("import time; print('up'); time.sleep(20)")
    next(iter(execution))
    server.stop(signal.SIGKILL)
    with pytest.raises(ConnectionLost):
        execution.result()
    start_server("--port", str(server.address[1]), data_dir=server.data_dir)
    assert client.run("print('back')").stdout == "back\n"


def test_an_interrupt_ends_the_program_too(running_server: RunningServer) -> None:
    script = (
        "import sys; from tidebox.sdk import Client\n"
        "with Client(sys.argv[1], api_key=sys.argv[2]) as client:\n"
        "    with client.start('import time; print(1); time.sleep(60)', timeout=90) as execution:\n"
        "        for _, text in execution: print(text, end='', flush=True)"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script, running_server.url, running_server.key],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "1\n"
        caller.send_signal(signal.SIGINT)
        assert caller.wait(20) == -signal.SIGINT
    assert_idle(running_server)


async def test_cancelling_the_call_ends_the_program(running_server: RunningServer) -> None:
    async with AsyncClient(running_server.url, api_key=running_server.key) as client:
        call = asyncio.create_task(client.run("while True: pass", timeout=60))
        while (load := (await client.ping()).load) is None or not load.active_executions:
            pass
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert_idle(running_server)


def assert_idle(server: RunningServer) -> None:
    """Soon nothing runs on the server."""
    with Client(server.url, api_key=server.key) as client:
        deadline = time.monotonic() + 30
        while (load := client.ping().load) is None or load.active_executions:
            assert time.monotonic() < deadline
            time.sleep(0.01)
