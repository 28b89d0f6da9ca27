"""What becomes of running programs, clients and the process when a server is told to stop."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.api.conftest import NO_CELLS, RunningServer
from tests.boxes import descendants, parent_of
from tests.contract.test_native_faults import alive, wait_until

SERVICE_RESTART = 1012
FEW_CELLS = {"pool_blank": "0", "pool_python": "1", "pool_node": "0"}


def open_socket(server: RunningServer) -> ClientConnection:
    return connect(server.ws_url, additional_headers=server.headers, open_timeout=60)


def execute(socket: ClientConnection, id: str, code: str) -> None:
    """Send an order, and wait until its program has said ``ready``."""
    frame = {
        "v": 1,
        "type": "execute",
        "id": id,
        "ts": "2026-01-01T00:00:00.000Z",
        "language": "python",
        "code": code,
        "limits": {"timeout_ms": 60_000, "memory_mb": 128},
    }
    socket.send(json.dumps(frame))


def frames(socket: ClientConnection) -> Iterator[dict[str, Any]]:
    """What the server sends until it closes the connection."""
    try:
        while True:
            yield json.loads(socket.recv(timeout=30))
    except ConnectionClosed:
        return


def until_output(socket: ClientConnection) -> None:
    for frame in frames(socket):
        if frame["type"] == "stdout":
            return
    pytest.fail("the connection was closed")


def wait_for_log(server: RunningServer, event: str) -> None:
    deadline = time.monotonic() + 20
    while not any(json.loads(line).get("event") == event for line in list(server.log_lines)):
        assert time.monotonic() < deadline, server.log
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once(number: signal.Signals, start_server: Callable[..., RunningServer]) -> None:
    server = start_server(**NO_CELLS)
    started = time.monotonic()
    assert server.stop(number) == 0
    assert time.monotonic() - started < 30


def test_idle_clients_are_told(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(**NO_CELLS)
    with open_socket(server) as socket:
        server.process.send_signal(signal.SIGTERM)
        assert list(frames(socket)) == []
        assert socket.close_code == SERVICE_RESTART
    assert server.wait() == 0


# Ends when it is sent a signal, by who finds it by its name.
WAITING = """
import ctypes, os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
PR_SET_NAME = 15
ctypes.CDLL(None).prctl(PR_SET_NAME, b"waiting", 0, 0, 0)
os.write(1, b"ready\\n")
signal.sigwait([signal.SIGUSR1])
print("done")
"""


def test_what_runs_may_finish_and_nothing_new_begins(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(**FEW_CELLS)
    with open_socket(server) as socket, httpx2.Client(base_url=server.url, timeout=60) as client:
        assert client.get("/healthz").status_code == 200
        execute(socket, "first", WAITING)
        until_output(socket)
        server.process.send_signal(signal.SIGTERM)
        wait_for_log(server, "stopping")
        answer = client.get("/healthz")
        assert (answer.status_code, answer.json()) == (503, {"status": "draining"})
        with pytest.raises(ConnectionRefusedError):
            open_socket(server)
        execute(socket, "second", "print('never')")
        left = [json.loads(socket.recv(timeout=30))]
        (program,) = (pid for pid in descendants(server.pid) if Path(f"/proc/{pid}/comm").read_text() == "waiting\n")
        os.kill(program, signal.SIGUSR1)
        left += frames(socket)
    refused = [frame for frame in left if frame["id"] == "second"]
    assert [(frame["type"], frame["code"], frame["retryable"]) for frame in refused] == [
        ("error", "SANDBOX_OVERLOADED", True)
    ]
    first = [frame for frame in left if frame["id"] == "first"]
    *output, status, result = first
    assert (status["status"], result["exit_code"]) == ("completed", 0)
    assert "".join(frame["data"] for frame in output) == "done\n"
    assert server.wait() == 0


def test_what_does_not_finish_in_time_is_ended(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(drain_grace_sec="0.2", **FEW_CELLS)
    with open_socket(server) as socket:
        execute(socket, "endless", "import os\nos.write(1, b'ready\\n')\nwhile True: pass")
        until_output(socket)
        server.process.send_signal(signal.SIGTERM)
        (last,) = frames(socket)
    assert (last["type"], last["retryable"]) == ("error", True)
    assert server.wait() == 0


def test_a_second_signal_does_not_wait(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(drain_grace_sec="600", **FEW_CELLS)
    with open_socket(server) as socket:
        execute(
            socket,
            "endless",
            "import os, signal\nsignal.signal(15, signal.SIG_IGN)\nos.write(1, b'ready\\n')\nwhile True: pass",
        )
        until_output(socket)
        server.process.send_signal(signal.SIGTERM)
        wait_for_log(server, "stopping")
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 30


def test_a_start_that_hangs_does_not_keep_the_server(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(drain_grace_sec="0.2", **NO_CELLS)
    (spawner,) = (pid for pid in descendants(server.pid) if parent_of(pid) == server.pid)
    below = [spawner, *descendants(spawner)]
    with open_socket(server) as socket:
        os.kill(spawner, signal.SIGSTOP)
        execute(socket, "stuck", "print('never')")
        assert json.loads(socket.recv(timeout=30))["type"] == "ack"
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        last = list(frames(socket))[-1]
    assert (last["type"], last["retryable"]) == ("error", True)
    assert server.wait() == 0
    assert time.monotonic() - started < 15
    wait_until(lambda: not alive(below), "something outlived the server")
