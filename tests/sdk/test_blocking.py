"""Sandboxes for threads: the same by calls that wait."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.api.conftest import NO_CELLS, RunningServer, finish, start
from tests.sdk.sandboxes import calls
from tidebox.errors import InvalidRequest, NotFound
from tidebox.model.ids import new_id
from tidebox.sdk import Access, Change, Chunk, ClientClosed, Sandbox, SandboxRecreated


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    server = start(tmp_path_factory.mktemp("blocking"), rate_limit="off", token_ttl_sec="2", **NO_CELLS)
    yield server
    finish(server)


@pytest.fixture
def thread() -> str:
    return new_id("thr")


@pytest.fixture
def access(server: RunningServer) -> Iterator[Access]:
    before = set(threading.enumerate())
    with Access(server.url, api_key=server.key) as access:
        yield access
    assert not set(threading.enumerate()) - before


@pytest.fixture
def sandbox(access: Access, thread: str) -> Iterator[Sandbox]:
    with access.ensure(thread) as sandbox:
        yield sandbox


def test_programs(sandbox: Sandbox) -> None:
    assert sandbox.exec("echo $WHO", env={"WHO": "tide"}).text == "tide\n"
    with sandbox.start(["cat"], stdin=True, detach=True) as process:
        process.write("there")
        assert process.read(30) == Chunk("stdout", b"there")
        with pytest.raises(TimeoutError):
            process.read(0.05)
        with pytest.raises(TimeoutError):
            process.wait(0.05)
        assert process.pid > 1
    assert process.id is not None
    with sandbox.attach(process.id, process.offset) as process:
        process.write(" and back")
        process.end_input()
        assert b"".join(chunk.data for chunk in process) == b" and back"
        assert process.wait().ok


def test_a_shell(sandbox: Sandbox) -> None:
    with sandbox.shell(terminal=(20, 70)) as shell:
        shell.resize(30, 90)
        shell.write("stty size\n")
        seen = b""
        while b"30 90" not in seen:
            chunk = shell.read(30)
            assert chunk is not None
            seen += chunk.data
        shell.signal("KILL")
        assert shell.wait(30).signal == "KILL"


def test_files(sandbox: Sandbox) -> None:
    files = sandbox.files
    with files.watch(recursive=True) as watch:
        files.mkdir("made/here")
        assert watch.read(30) == Change("created", "/workspace/made", is_directory=True)
    assert files.upload("made/file", io.BytesIO(b"\x00\xff")) == 2
    assert files.download("made/file") == b"\x00\xff"
    target = io.BytesIO()
    assert files.download("made/file", target) == 2
    files.move("made/file", "file")
    assert files.stat("file").size == 2
    files.remove("made", recursive=True)
    assert [entry.name for entry in files.list()] == ["file"]
    with pytest.raises(NotFound):
        files.stat("made")


def test_many_threads_ask_at_once(access: Access, server: RunningServer, thread: str) -> None:
    def ask(number: int) -> str:
        with access.ensure(thread, keep=True) as sandbox:
            return sandbox.exec(f"echo {number}").text

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(16))) == [f"{number}\n" for number in range(16)]
    with access.get(thread) as sandbox:
        sandbox.release()


def test_tokens_are_refreshed_while_nobody_calls(sandbox: Sandbox, server: RunningServer, thread: str) -> None:
    waited = threading.Event()
    for _ in range(600):
        if calls(server, thread).count("refreshed") >= 2:
            break
        waited.wait(0.05)
    assert sandbox.exec("true").ok
    assert calls(server, thread).count("negotiated") == 1


def test_a_sandbox_that_is_lost(sandbox: Sandbox, server: RunningServer) -> None:
    body = {"sandbox_id": sandbox.id}
    assert httpx2.post(f"{server.url}/sandbox/release", json=body, headers=server.headers, timeout=60).is_success
    with pytest.raises(SandboxRecreated):
        sandbox.exec("true")
    assert sandbox.recreated
    assert sandbox.exec("true").ok


def test_a_configuration_becomes_a_sandbox(server: RunningServer, thread: str) -> None:
    body = {"thread_id": thread, "mode": "ensure"}
    answer = httpx2.post(f"{server.url}/v1/sandbox/sessions", json=body, headers=server.headers, timeout=60).json()
    before = set(threading.enumerate())
    with Sandbox.connect({"configurable": {"sandbox": answer}}) as sandbox:
        assert (sandbox.id, sandbox.session_id) == (answer["sandbox"]["id"], answer["session_id"])
        assert sandbox.exec("echo connected").text == "connected\n"
    sandbox.close()
    with pytest.raises(ClientClosed):
        sandbox.exec("true")
    with pytest.raises(InvalidRequest):
        Sandbox.connect({"configurable": {}})
    assert not set(threading.enumerate()) - before


def test_after_the_end(server: RunningServer, thread: str) -> None:
    with Access(server.url, api_key=server.key) as access:
        sandbox = access.acquire(thread)
        process = sandbox.start("sleep 600")
    access.close()
    for call in (lambda: sandbox.exec("true"), process.read, lambda: access.acquire(thread)):
        with pytest.raises(ClientClosed):
            call()
    process.close()
    sandbox.close()


def test_an_interrupt_ends_the_program(server: RunningServer, sandbox: Sandbox, thread: str) -> None:
    script = (
        "import sys; from tidebox.sdk import Access\n"
        "with Access(sys.argv[1], api_key=sys.argv[2]) as access, access.get(sys.argv[3]) as sandbox:\n"
        "    print('asking', flush=True)\n"
        "    sandbox.exec('echo $$ > pid; exec sleep 600')"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script, server.url, server.key, thread],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "asking\n"
        assert sandbox.exec("while [ ! -s pid ]; do sleep 0.05; done", timeout=30).ok
        caller.send_signal(signal.SIGINT)
        assert caller.wait(30) == -signal.SIGINT
    assert sandbox.exec("while kill -0 $(cat pid); do sleep 0.05; done", timeout=30).ok
