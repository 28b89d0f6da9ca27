"""The dataplane of a real server: tokens as it grants them, and what ends with them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.api.conftest import RunningServer
from tests.api.dataplane.plane import Socket
from tests.runtimes import native_only
from tidebox.model.ids import new_id
from tidebox.model.limits import MIB


def acquire(server: RunningServer, **fields: Any) -> dict[str, Any]:
    """A session for a new thread."""
    body = fields or {"thread_id": new_id("thr"), "mode": "ensure"}
    answer = httpx2.post(f"{server.url}/v1/sandbox/sessions", json=body, headers=server.headers, timeout=30)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def error_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture(scope="module")
def session(running_server: RunningServer) -> dict[str, Any]:
    """A session that the tests share."""
    return acquire(running_server)


@pytest.fixture
def http(session: dict[str, Any]) -> Iterator[httpx2.Client]:
    """A client of its sandbox."""
    url = session["sandbox"]["http_base_url"]
    with httpx2.Client(base_url=url, headers=bearer(session["token"]), timeout=60) as client:
        yield client


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for those of sockets."""
    with tempfile.TemporaryDirectory(prefix="tb-") as path:
        yield Path(path)


def test_where_the_session_says(http: httpx2.Client, session: dict[str, Any]) -> None:
    answer = http.post("exec", json={"command": ["echo", "hello"]})
    assert (answer.status_code, answer.json()["stdout"]) == (200, "hello\n")
    url = session["sandbox"]["ws_base_url"] + "/exec/ws"
    with connect(url, additional_headers=bearer(session["token"]), open_timeout=60) as connection:
        socket = Socket(connection)
        socket.send("start", command=["echo", "hello"])
        assert socket.until("exit")[-1]["exit_code"] == 0


def test_where_negotiation_says(running_server: RunningServer) -> None:
    body = {"thread_id": new_id("thr"), "assistant_id": "asst"}
    grant = httpx2.post(
        f"{running_server.url}/sandbox/acquire", json=body, headers=running_server.headers, timeout=30
    ).json()
    answer = httpx2.post(
        f"{grant['http_url']}/exec", json={"command": "pwd"}, headers=bearer(grant["token"]), timeout=60
    )
    assert answer.json()["stdout"] == "/workspace\n"
    with connect(grant["ws_url"], open_timeout=60) as connection:
        socket = Socket(connection)
        socket.send("auth", token=grant["token"])
        assert socket.expect("auth_ok")["sandbox_id"] == grant["sandbox_id"]
        socket.send("start")
        socket.expect("ready")
        socket.send("stdin", data="tty; exit\n")
        shown = "".join(frame["data"] for frame in socket.until("exit") if frame["type"] == "stdout")
        assert "/dev/pts/" in shown


def test_only_what_was_granted(running_server: RunningServer) -> None:
    body = {
        "scope": {"type": "thread", "id": new_id("thr")},
        "mode": "ensure",
        "actor": {"type": "agent", "id": "a"},
        "requested_capabilities": ["fs_read"],
    }
    found = acquire(running_server, **body)
    token, url = found["credentials"]["access_token"], found["dataplane"]["http_base_url"]
    assert httpx2.get(f"{url}/files/list", headers=bearer(token), timeout=60).status_code == 200
    for path in ("exec", "files/upload?path=x", "files/mkdir?path=x"):
        assert error_of(httpx2.post(f"{url}/{path}", headers=bearer(token), timeout=60)) == (403, "CAPABILITY_DENIED")
    with connect(
        found["dataplane"]["ws_base_url"] + "/shell/ws", additional_headers=bearer(token), open_timeout=60
    ) as connection:
        socket = Socket(connection)
        socket.send("start")
        error = socket.expect("error")["error"]
        assert (error["code"], error["message"]) == ("CAPABILITY_DENIED", "shell not granted")


def test_what_is_no_token_for_it(running_server: RunningServer, session: dict[str, Any]) -> None:
    other = acquire(running_server)
    sandbox_id, token = session["sandbox"]["id"], session["token"]
    header, claims, signature = token.removeprefix("sbx_").split(".")
    tampered = ("sbx_" if token.startswith("sbx_") else "") + f"{header}.{claims[:-2]}AA.{signature}"
    url = f"{running_server.url}/api/{sandbox_id}/exec"
    for wrong, expected in (
        ("nonsense", (401, "UNAUTHENTICATED")),
        (tampered, (401, "UNAUTHENTICATED")),
        (running_server.key, (401, "UNAUTHENTICATED")),
        (other["token"], (403, "FORBIDDEN")),
    ):
        answer = httpx2.post(url, json={"command": ["true"]}, headers=bearer(wrong), timeout=60)
        assert error_of(answer) == expected, wrong
        with pytest.raises(InvalidStatus) as refused:
            connect(f"{running_server.ws_url}/{sandbox_id}", additional_headers=bearer(wrong), open_timeout=60)
        assert refused.value.response.status_code == expected[0]
    answer = httpx2.post(url, json={"command": ["true"]}, headers=running_server.headers, timeout=60)
    assert error_of(answer) == (401, "UNAUTHENTICATED")


def test_release_ends_what_runs(running_server: RunningServer) -> None:
    found = acquire(running_server)
    url = f"{running_server.url}/v1/sandbox/sessions/{found['session_id']}"
    with connect(
        found["sandbox"]["ws_base_url"] + "/exec/ws", additional_headers=bearer(found["token"]), open_timeout=60
    ) as connection:
        socket = Socket(connection)
        socket.send("start", command=["sleep", "60"])
        socket.expect("ready")
        assert httpx2.delete(url, headers=running_server.headers, timeout=60).status_code == 204
        assert socket.expect("error")["error"]["code"] == "BACKEND_UNAVAILABLE"
        with pytest.raises(ConnectionClosed):
            socket.receive()
    answer = httpx2.post(
        found["sandbox"]["http_base_url"] + "/exec",
        json={"command": ["true"]},
        headers=bearer(found["token"]),
        timeout=60,
    )
    assert error_of(answer) == (401, "UNAUTHENTICATED")


def test_revocation_reaches_open_sockets(running_server: RunningServer) -> None:
    found = acquire(running_server)
    url = f"{running_server.url}/v1/sandbox/sessions/{found['session_id']}/revoke"
    with connect(
        found["sandbox"]["ws_base_url"] + "/exec/ws", additional_headers=bearer(found["token"]), open_timeout=60
    ) as connection:
        socket = Socket(connection)
        socket.send("start", command=["cat"], stdin=True)
        socket.expect("ready")
        assert httpx2.post(url, headers=running_server.headers, timeout=60).status_code == 204
        socket.send("stdin", data="still there?")
        assert socket.expect("error")["error"]["code"] == "UNAUTHENTICATED"


def test_a_server_that_stops_leaves_no_program(start_server: Callable[..., RunningServer], short_path: Path) -> None:
    server = start_server(data_dir=short_path, rate_limit="off")
    found = acquire(server)
    with connect(
        found["sandbox"]["ws_base_url"] + "/shell/ws", additional_headers=bearer(found["token"]), open_timeout=60
    ) as connection:
        socket = Socket(connection)
        socket.send("start", on_disconnect="detach")
        socket.expect("ready")
        with connect(
            found["sandbox"]["ws_base_url"] + "/exec/ws", additional_headers=bearer(found["token"]), open_timeout=60
        ) as another:
            other = Socket(another)
            other.send("start", command=["sleep", "60"])
            other.expect("ready")
            started = time.monotonic()
            assert server.stop() == 0, server.log
            assert time.monotonic() - started < 15
    assert "unexpected_failure" not in server.log
    assert "never retrieved" not in server.log


def test_a_large_file_costs_no_memory(running_server: RunningServer, http: httpx2.Client) -> None:
    size = 200
    piece = os.urandom(MIB - 4)

    def pieces() -> Iterator[bytes]:
        for number in range(size):
            yield number.to_bytes(4, "big") + piece

    sent = hashlib.sha256()
    for each in pieces():
        sent.update(each)
    before = resident(running_server.pid)
    answer = http.post("files/upload", params={"path": "large"}, content=pieces())
    assert answer.json() == {"path": "/workspace/large", "size": size * MIB}, answer.text
    received = hashlib.sha256()
    with http.stream("GET", "files/download", params={"path": "large"}) as download:
        for chunk in download.iter_raw():
            received.update(chunk)
    assert received.hexdigest() == sent.hexdigest()
    assert resident(running_server.pid) - before < 48 * MIB
    assert http.post("files/remove", json={"path": "large"}).status_code == 200


def resident(pid: int) -> int:
    """The most memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


def test_a_suspended_sandbox_is_resumed_by_its_use(
    start_server: Callable[..., RunningServer], short_path: Path
) -> None:
    times = {"idle_timeout_sec": "1", "reaper_interval_sec": "0.2", "reaper_grace_sec": "30"}
    server = start_server(data_dir=short_path, rate_limit="off", **times)
    found = acquire(server)
    url = f"{server.url}/v1/sandbox/sessions/{found['session_id']}"
    deadline = time.monotonic() + 30
    while httpx2.get(url, headers=server.headers, timeout=60).json()["binding"]["state"] not in ("idle", "suspended"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    answer = httpx2.post(
        found["sandbox"]["http_base_url"] + "/exec",
        json={"command": ["echo", "up"]},
        headers=bearer(found["token"]),
        timeout=60,
    )
    assert answer.json()["stdout"] == "up\n"


def test_the_audit_log_says_who_ran_something_and_not_what(running_server: RunningServer, http: httpx2.Client) -> None:
    answer = http.post("exec", json={"command": ["echo", "not-for-the-log"], "env": {"SECRET": "not-for-the-log"}})
    request_id = answer.headers["x-request-id"]
    deadline = time.monotonic() + 30
    text = ""
    while request_id not in text:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        text = "".join(path.read_text() for path in (running_server.data_dir / "audit").iterdir())
        # The last line may not be written to its end yet.
        text = text[: text.rfind("\n") + 1]
    # Only there: a path that somebody asked for may have other line ends in it.
    events = [json.loads(line) for line in text.split("\n")[:-1]]
    ran = [event for event in events if event["event"] == "sandbox.exec" and event["request_id"] == request_id]
    assert ran
    assert ran[-1]["user_id"] == "local"
    assert ran[-1]["outcome"] == "done"
    assert "not-for-the-log" not in json.dumps(events)
    assert "not-for-the-log" not in running_server.log


@native_only("containers are kept ready only where that is asked for")
def test_sandboxes_are_counted(start_server: Callable[..., RunningServer], short_path: Path) -> None:
    server = start_server(data_dir=short_path, rate_limit="off", pool_sandboxes="1")

    def gauge(name: str) -> float:
        lines = httpx2.get(f"{server.url}/metrics", headers=server.headers, timeout=60).text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " ")), 0.0)

    def becomes(name: str, value: float) -> None:
        deadline = time.monotonic() + 30
        while gauge(name) != value:
            assert time.monotonic() < deadline, (name, gauge(name))
            time.sleep(0.05)

    becomes("sandbox_stock_ready", 1)
    found = acquire(server)
    assert gauge('sandbox_live_sandboxes{state="active"}') == 1
    assert gauge("sandbox_bindings") == 1
    assert gauge("sandbox_grants_total") == 1
    url = f"{server.url}/v1/sandbox/sessions/{found['session_id']}"
    assert httpx2.post(f"{url}/refresh", headers=server.headers, timeout=60).status_code == 200
    assert gauge("sandbox_grants_total") == 2
    socket_url = found["sandbox"]["ws_base_url"] + "/files/watch"
    with connect(socket_url, additional_headers=bearer(found["token"]), open_timeout=60) as connection:
        Socket(connection).expect("ready")
        assert gauge('sandbox_ws_connections{component="dataplane"}') == 1
    becomes('sandbox_ws_connections{component="dataplane"}', 0)
    assert httpx2.delete(url, headers=server.headers, timeout=60).status_code == 204
    assert gauge("sandbox_bindings") == 0
    becomes("sandbox_stock_ready", 1)
