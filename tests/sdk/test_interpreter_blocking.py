"""The interpreter service for threads: the same by calls that wait."""

from __future__ import annotations

import inspect
import io
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer
from tidebox.errors import NotFound
from tidebox.model.run import Phase
from tidebox.sdk import (
    Access,
    Admin,
    AsyncAccess,
    AsyncAdmin,
    AsyncClient,
    AsyncFiles,
    AsyncInterpreter,
    AsyncProcess,
    AsyncRunLog,
    AsyncSandbox,
    AsyncWatch,
    Client,
    ClientClosed,
    Files,
    Interpreter,
    LogChunk,
    Process,
    ProgramStart,
    RunEnd,
    RunLog,
    Sandbox,
    Watch,
)


@pytest.fixture
def client(running_server: RunningServer) -> Iterator[Interpreter]:
    before = set(threading.enumerate())
    with Interpreter(running_server.url, api_key=running_server.key) as client:
        yield client
    assert not set(threading.enumerate()) - before


SHELLS: list[tuple[type, type]] = [
    (Access, AsyncAccess),
    (Client, AsyncClient),
    (Admin, AsyncAdmin),
    (Files, AsyncFiles),
    (Interpreter, AsyncInterpreter),
    (Process, AsyncProcess),
    (RunLog, AsyncRunLog),
    (Sandbox, AsyncSandbox),
    (Watch, AsyncWatch),
]


@pytest.mark.parametrize(("shell", "inner"), SHELLS)
def test_both_have_the_same_methods(shell: type, inner: type) -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(made).parameters) for name, made in found if not name.startswith("_")}

    waiting, working = methods(shell), methods(inner)
    assert waiting.keys() == working.keys()
    for name, names in working.items():
        assert [each for each in waiting[name] if each != "timeout" or each in names] == names
        assert inspect.getdoc(getattr(shell, name))


def test_a_run_with_its_log_and_artifacts(client: Interpreter, tmp_path: Path) -> None:
    session = client.create_session()
    assert client.upload_files(session.id, {"main.py": b"print(open('in').read())", "in": b"tide"}).file_count == 2
    result = client.run(["python3", "main.py"], session_id=session.id, artifacts=["in"])
    assert (result.ok, result.text) == (True, "tide\n")
    assert client.download_artifact(result.run.id, "in") == b"tide"
    assert client.download_artifact(result.run.id, "in", tmp_path / "in") == 4
    assert client.download_file(session.id, "in") == b"tide"
    target = io.BytesIO()
    assert client.download_file(session.id, "in", target) == 4
    assert client.read_log(result.run.id) == b"tide\n"
    assert client.admin.get_run(result.run.id).user_id == "local"
    client.delete_session(session.id)
    with pytest.raises(NotFound):
        client.get_session(session.id)


def test_a_log_that_is_read_with_a_limit_of_time(client: Interpreter) -> None:
    run = client.start_run(["sh", "-c", "read line; echo got $line"], interactive=True)
    with client.stream_log(run.id) as log:
        while not isinstance(log.read(30), ProgramStart):
            pass
        with pytest.raises(TimeoutError):
            log.read(0.2)
        with pytest.raises(TimeoutError):
            client.wait_run(run.id, 0.2)
        log.write("it\n")
        log.end_input()
        found = list(log)
    assert b"".join(entry.data for entry in found if isinstance(entry, LogChunk)) == b"got it\n"
    assert isinstance(log.end, RunEnd)
    assert log.end is found[-1]
    assert client.wait_run(run.id, 30).phase is Phase.COMPLETED


def test_wrong_arguments_are_told_as_everywhere(client: Interpreter) -> None:
    with pytest.raises(TypeError, match="run_id"):
        client.get_run()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tmeout"):
        client.run(["true"], tmeout=3)  # type: ignore[call-arg]


def test_many_threads(client: Interpreter) -> None:
    def square(number: int) -> str:
        return client.run(["python3", "-c", f"print({number} ** 2)"]).text

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(square, range(16))) == [f"{number**2}\n" for number in range(16)]


def test_after_the_end(running_server: RunningServer) -> None:
    with Interpreter(running_server.url, api_key=running_server.key) as client:
        run = client.start_run(["sleep", "600"], timeout=600)
        log = client.stream_log(run.id)
    client.close()
    for call in (client.runtimes, log.read, client.admin.metrics):
        with pytest.raises(ClientClosed):
            call()
    log.close()
    with Interpreter(running_server.url, api_key=running_server.key) as client:
        client.cancel_run(run.id)
        assert client.wait_run(run.id, 60).phase is Phase.KILLED


def test_an_interrupt_ends_the_run(client: Interpreter, running_server: RunningServer) -> None:
    script = (
        "import sys; from tidebox.sdk import Interpreter\n"
        "with Interpreter(sys.argv[1], api_key=sys.argv[2]) as client:\n"
        "    print('asking', flush=True)\n"
        "    client.run(['sleep', '600'], timeout=600, labels={'test': 'interrupted'})"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script, running_server.url, running_server.key],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "asking\n"
        run_id = ""
        while not run_id:
            running = client.list_runs(phase=Phase.RUNNING, limit=1000).items
            run_id = next((run.id for run in running if run.labels == {"test": "interrupted"}), "")
        caller.send_signal(signal.SIGINT)
        assert caller.wait(30) == -signal.SIGINT
    assert client.wait_run(run_id, 60).phase is Phase.KILLED
