"""``tidebox.run`` and ``tidebox.Sandbox`` against a server: the same results and errors as without one."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import tidebox
from tests.api.conftest import RunningServer
from tidebox.errors import InvalidRequest, TideboxError, Unauthorized
from tidebox.model.result import Outcome
from tidebox.model.run import Phase
from tidebox.sdk import Access, AsyncInterpreter, Interpreter, ServerUnreachable

PROGRAMS: dict[str, dict[str, Any]] = {
    "text": {"code": "print(input()[::-1])", "stdin": "edit"},
    "bytes": {"code": "import os; os.write(1, bytes(range(256))); os.write(2, b'\\xff')"},
    "exit": {"code": "raise SystemExit(3)"},
    "signal": {"code": "import os; os.kill(os.getpid(), 9)"},
    "timeout": {"code": "while True: pass", "timeout": 0.3},
    "memory": {"code": "x = 'a' * 10**9", "memory": 64 * 2**20},
    "output": {"code": "print('x' * 1000)", "output": 100},
    "workspace": {"code": "open('a', 'wb').write(bytes(2 << 20))", "workspace": 2**20},
    "javascript": {"code": "console.log(6 * 7)", "language": "javascript"},
    "shell": {"code": "echo $A; cat in/a", "language": "shell", "env": {"A": "b"}, "files": {"in/a": b"c"}},
    "command": {"command": ["sh", "-c", "exit 4"]},
    "no such command": {"command": ["no-such-program", "x"]},
    "not executable": {"command": ["/etc/passwd"]},
    "artifacts": {"code": "open('a', 'w').write('b'); open('c', 'w')", "artifacts": ["*"]},
}


def summary(result: tidebox.Result) -> tuple[Any, ...]:
    # One that has printed too much may end by itself before it is killed.
    signal = None if result.outcome is Outcome.OUTPUT_LIMIT else result.signal
    return (result.outcome, result.exit_code, signal, result.stdout, result.stderr, result.artifacts)


@pytest.fixture
def named(running_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    """A server that the environment names."""
    monkeypatch.setenv("TIDEBOX_URL", running_server.url)
    monkeypatch.setenv("TIDEBOX_API_KEY", running_server.key)
    return running_server


@pytest.mark.parametrize("options", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_the_same_result(
    running_server: RunningServer, box_run: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEBOX_API_KEY", running_server.key)
    given = {"timeout": 20.0, **options}
    there = tidebox.run(server=running_server.url, **given)
    assert summary(there) == summary(box_run(**given))
    assert there.usage.wall_seconds > 0


FAILURES: dict[str, dict[str, Any]] = {
    "image": {"code": "1", "image": "no-such"},
    "language": {"code": "1", "language": "no-such"},
    "limit": {"code": "1", "memory": 1},
    "nothing": {},
    "file name": {"code": "1", "files": {"../x": b""}},
}


@pytest.mark.parametrize("options", FAILURES.values(), ids=FAILURES.keys())
def test_the_same_error(named: RunningServer, box_run: Any, options: dict[str, Any]) -> None:
    with pytest.raises(TideboxError) as here:
        box_run(**options)
    with pytest.raises(TideboxError) as there:
        tidebox.run(**options)
    assert (type(there.value), there.value.message) == (type(here.value), here.value.message)


def test_what_a_server_sets_itself(named: RunningServer) -> None:
    with pytest.raises(InvalidRequest, match="inodes"):
        tidebox.run("1", inodes=100)


async def test_for_asyncio(named: RunningServer) -> None:
    results = await asyncio.gather(*(tidebox.arun(f"print({number})") for number in range(5)))
    assert [result.text for result in results] == [f"{number}\n" for number in range(5)]


async def test_a_cancelled_call_leaves_nothing_running(named: RunningServer) -> None:
    running = asyncio.create_task(tidebox.arun("import time; time.sleep(60)", env={"MARK": "cancelled"}))
    async with AsyncInterpreter() as client:
        run = None
        while run is None or run.phase is not Phase.RUNNING:
            run = next(iter((await client.list_runs(limit=1)).items), None)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await client.wait_run(run.id)).reason_code == "canceled_by_user"


def test_it_can_be_called_from_any_thread(named: RunningServer) -> None:
    found: list[tidebox.Result] = []
    threads = [threading.Thread(target=lambda: found.append(tidebox.run("print(1)"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [result.text for result in found] == ["1\n"] * 3


def test_two_lines_for_a_sandbox(named: RunningServer) -> None:
    with tidebox.Sandbox.create() as sandbox:
        assert sandbox.exec("echo hello > a; cat a").text == "hello\n"
        there = sandbox.session_id
    deadline = time.monotonic() + 30
    with Access() as access:
        while there in [each.session_id for each in access.list().items]:
            assert time.monotonic() < deadline


def test_a_sandbox_of_a_server_that_is_not_there() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ServerUnreachable):
        tidebox.Sandbox.create(server="http://127.0.0.1:1", api_key="a-key")
    assert not set(threading.enumerate()) - before


def test_a_wrong_key(named: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEBOX_API_KEY", "wrong")
    for use in (lambda: tidebox.run("1"), tidebox.Sandbox.create):
        with pytest.raises(Unauthorized):
            use()


def test_large_files_leave_no_session(named: RunningServer) -> None:
    result = tidebox.run("import os; print(os.path.getsize('a'))", files={"a": bytes(2_000_000)})
    assert (result.outcome, result.text) == (Outcome.EXITED, "2000000\n")
    with Interpreter() as client:
        assert client.list_sessions().items == ()
