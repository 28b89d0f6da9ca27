"""What a server writes about itself, and what it never writes."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
import structlog
import websockets.exceptions
from websockets.sync.client import connect

from tests.api.conftest import NO_CELLS, RunningServer
from tests.cli.command import TIDEBOX
from tidebox import logs

SECRETS = {
    "code": "hunter2-in-code",
    "env": "hunter2-in-env",
    "stdin": "hunter2-in-stdin",
    "output": "hunter2-in-output",
    "query": "hunter2-in-query",
    "key": "hunter2-as-key",
    "token": "hunter2-as-token",
    "frame": "hunter2-in-frame",
}


def test_no_secret_is_ever_written(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(log_level="debug", auth_jwt_secret="hunter2-is-the-secret-of-the-tokens")
    order = {
        "v": 1,
        "type": "execute",
        "id": "e1",
        "ts": "2026-01-01T00:00:00.000Z",
        "language": "python",
        "code": f"import os; print('{SECRETS['code']}', os.environ['SECRET'], 'hunter2-' 'in-output'); 1 / 0",
        "env": {"SECRET": SECRETS["env"]},
        "stdin": SECRETS["stdin"],
        "limits": {"timeout_ms": 10_000, "memory_mb": 128},
    }
    with connect(
        f"{server.ws_url}?token={SECRETS['query']}", additional_headers=server.headers, open_timeout=60
    ) as socket:
        for frame in (
            order,
            {**order, "id": "e2", "limits": {"timeout_ms": SECRETS["frame"]}},
            {**order, "id": "e3", "language": SECRETS["frame"]},
            {**order, "id": "e4", "env": {SECRETS["env"] + "=\0": SECRETS["env"]}},
            SECRETS["frame"],
        ):
            socket.send(json.dumps(frame))
        socket.send("{" + SECRETS["frame"])
        socket.send(SECRETS["frame"].encode() + b"\xff")
        while json.loads(socket.recv(timeout=30))["type"] != "result":
            pass
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        client.get(f"/healthz?token={SECRETS['query']}")
        client.get(f"/nowhere?token={SECRETS['query']}", headers={"X-API-KEY": SECRETS["key"]})
        client.get("/nowhere", headers={"Authorization": f"Bearer {SECRETS['token']}"})
        client.get("/nowhere", headers={"Authorization": f"Bearer eyJhbGciOiJIUzI1NiJ9.{SECRETS['token']}.x"})
        client.get("/nowhere", headers={"Cookie": SECRETS["token"], **server.headers})
        client.post("/nowhere", content=SECRETS["code"], headers=server.headers)
    with pytest.raises(websockets.exceptions.InvalidStatus):
        connect(
            f"{server.ws_url}?token={SECRETS['query']}",
            additional_headers={"X-API-KEY": SECRETS["key"]},
            open_timeout=60,
        )
    assert server.stop() == 0
    assert '"request"' in server.log
    assert '"connection"' in server.log
    written = {"log": server.log, "banner": "\n".join(server.banner)}
    for path in server.data_dir.rglob("*"):
        if path.is_file() and path.name != "api-key":
            written[str(path)] = path.read_text(errors="replace")
    assert any("audit" in name for name in written)
    for where, text in written.items():
        assert "hunter2" not in text, where
        assert server.key not in text, where


def test_log_lines_are_json_with_who_and_what(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(**NO_CELLS)
    headers = {"X-Request-ID": "trace-7", **server.headers}
    assert httpx2.get(f"{server.url}/some%0Awhere?x=1", headers=headers, timeout=60).status_code == 404
    assert httpx2.get(f"{server.url}/healthz", timeout=60).status_code == 200
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log_lines]
    (line,) = [line for line in lines if line["event"] == "request"]
    assert line["path"] == "/some%0Awhere"
    assert (line["method"], line["status"], line["user"]) == ("GET", 404, "local")
    assert (line["request_id"], line["address"], line["level"]) == ("trace-7", "127.0.0.1", "info")
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize(("trusted", "address"), [("", "127.0.0.1"), ("127.0.0.0/8", "203.0.113.9")])
def test_only_a_trusted_proxy_says_who_the_client_is(
    trusted: str, address: str, start_server: Callable[..., RunningServer]
) -> None:
    server = start_server(trusted_proxies=trusted, **NO_CELLS)
    httpx2.get(f"{server.url}/nowhere", headers={"X-Forwarded-For": "203.0.113.9"}, timeout=60)
    assert server.stop() == 0
    (line,) = [json.loads(line) for line in server.log_lines if '"request"' in line]
    assert line["address"] == address


def test_a_terminal_gets_lines_for_people(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [TIDEBOX, "serve", "--port", "0", "--data-dir", str(tmp_path)]
    environment = {**os.environ, **{f"SANDBOX_{name.upper()}": value for name, value in NO_CELLS.items()}}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True) as process:
        os.close(theirs)
        assert process.stdout is not None
        while "isolation" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:
            pass  # how a terminal says that the other side is gone
        os.close(ours)
        assert process.wait(30) == 0
    assert b"stopping" in shown
    assert b"{" not in shown


# The rules of the log lines themselves


@pytest.fixture
def written() -> Iterator[Callable[[], list[str]]]:
    """Logs into memory; the lines so far."""
    file = io.StringIO()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    logs.configure("debug", file)
    yield lambda: file.getvalue().splitlines()
    structlog.reset_defaults()
    logging.getLogger().handlers[:], level = before
    logging.getLogger().setLevel(level)


def test_an_exception_is_named_and_not_quoted(written: Callable[[], list[str]]) -> None:
    try:
        int("hunter2")
    except ValueError as error:
        structlog.get_logger().error("failed", exc_info=error)
        logging.getLogger("some.library").exception("failed too")
    first, second = map(json.loads, written())
    assert first["exception"] == second["exception"] == "builtins.ValueError"
    assert "test_an_exception_is_named_and_not_quoted" in first["trace"][-1]
    assert "hunter2" not in "".join(written())


def test_frames_of_the_transport_are_never_written(written: Callable[[], list[str]]) -> None:
    logging.getLogger("uvicorn.error").debug("> TEXT 'hunter2'")
    logging.getLogger("uvicorn.error").info('"WebSocket /ws?token=hunter2" [accepted]')
    assert written() == []


def test_a_reader_who_left_fails_nothing() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    logs.configure("info", Closed())
    try:
        structlog.get_logger().info("nobody reads this")
        logging.getLogger("some.library").warning("nor this")
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()
