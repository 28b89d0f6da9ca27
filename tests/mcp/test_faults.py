"""What goes wrong around the protocol: nothing hangs, and nothing is left."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.api.conftest import RunningServer
from tests.boxes import descendants
from tests.cli.command import TIDEBOX, error_line, tidebox
from tests.mcp.clients import ERAS, RawPeer, eventually, fields, on_stdio, private_directories
from tests.mcp.test_protocol import nothing_runs
from tests.mcp.test_users import HEADERS, INITIALIZE

SLEEP = {"code": "print('began', flush=True)\nimport time; time.sleep(100)", "timeout_sec": 120}


@contextmanager
def embedding() -> Iterator[RawPeer]:
    """``tidebox mcp`` with a server of its own, which has greeted; nothing of it may be left."""
    before = private_directories()
    peer = RawPeer()
    try:
        peer.greet()
        below = descendants(peer.process.pid)
        yield peer
    finally:
        below = [*below, *descendants(peer.process.pid)]
        if peer.process.poll() is None and not peer.stdin.closed:
            assert peer.leave() == 0
        peer.process.wait(30)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
    eventually(lambda: not any(_is_of(directory, peer.process.pid) for directory in private_directories() - before))


def _is_of(directory: Path, pid: int) -> bool:
    """Whether a private directory is that of a process; others start and end theirs at the same time."""
    try:
        return (directory / "server.lock").read_text().strip() in ("", str(pid))
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def shared() -> Iterator[RawPeer]:
    """One for all tests that leave it as it was."""
    with embedding() as peer:
        yield peer


@pytest.fixture
def embedded() -> Iterator[RawPeer]:
    """One that a test may end."""
    with embedding() as peer:
        yield peer


def begin(peer: RawPeer) -> None:
    """Call a program that does not end, and wait until it runs."""
    peer.call("run_code", SLEEP, id=1, meta={"progressToken": "p"})
    assert "began" in peer.receive()["params"]["message"]


def test_garbage_is_answered_and_does_no_harm(shared: RawPeer) -> None:
    shared.write(b"garbage\n\n{}\n[]\n\xff\xfe\x00\n" + b'{"jsonrpc": "2.0", "id": {}, "method": 1}\n')
    shared.write(b"[" * 100_000 + b"\n" + b"x" * (17 * 1024 * 1024) + b"\n")
    for _ in range(7):
        assert shared.receive()["error"]["code"] == -32700
    shared.call("run_code", {"code": "print('still here')"}, id=5)
    assert shared.receive()["result"]["structuredContent"]["stdout"] == "still here\n"


def test_100_megabytes_of_output_are_cut_to_their_end(shared: RawPeer) -> None:
    code = "import sys\nfor _ in range(1600): sys.stdout.write('x' * 65535 + chr(10))\nprint('end')"
    shared.call("run_code", {"code": code, "timeout_sec": 60}, id=1, meta={"progressToken": 1})
    notes = 0
    while "id" not in (message := shared.receive()):
        notes += 1
        assert len(json.dumps(message)) < 64 * 1024
    found = message["result"]["structuredContent"]
    assert (found["exit_code"], found["truncated"]) == (0, True)
    assert len(json.dumps(message)) <= 1024 * 1024
    assert f"tidebox://runs/{found['run_id']}/log" in found["rest"]
    assert notes < 200
    # What the program itself sends to a file is not lost; the end of that is one more call away.
    shared.call("environment_acquire", {"thread_id": "big"}, id=2)
    session = shared.receive()["result"]["structuredContent"]["session_id"]
    line = "head -c 100000000 /dev/zero | tr '\\0' x; echo; echo end"
    shared.call("environment_exec", {"session_id": session, "command": line}, id=3)
    found = shared.receive()["result"]["structuredContent"]
    assert found["truncated"]
    assert found["stdout"].endswith("x\nend\n")


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 1e308, -1.0, 0.0])
def test_a_limit_that_is_none_is_refused(shared: RawPeer, seconds: float) -> None:
    shared.call("environment_acquire", {"thread_id": "limits"}, id=1)
    session = shared.receive()["result"]["structuredContent"]["session_id"]
    for name, needed in (
        ("run_code", {"code": "1"}),
        ("sandbox_run", {"command": ["true"], "base_image": "host"}),
        ("environment_exec", {"session_id": session, "command": "true"}),
    ):
        shared.call(name, {**needed, "timeout_sec": seconds}, id=2)
        result = shared.receive()["result"]
        assert result["isError"]
        assert result["structuredContent"]["error"]["code"] == "invalid_request"
        assert "timeout" in result["structuredContent"]["error"]["message"]


def test_a_list_of_files_is_bounded(shared: RawPeer) -> None:
    shared.call("environment_acquire", {"thread_id": "names"}, id=1)
    session = shared.receive()["result"]["structuredContent"]["session_id"]
    line = "python3 -c \"for n in range(1000): open(f'{n:04}' + chr(1) * 240, 'w')\""
    shared.call("environment_exec", {"session_id": session, "command": line}, id=2)
    assert shared.receive()["result"]["structuredContent"]["exit_code"] == 0
    shared.call("environment_list_files", {"session_id": session}, id=3)
    message = shared.receive()
    found = message["result"]["structuredContent"]
    assert len(json.dumps(message)) <= 1024 * 1024
    assert 100 < len(found["entries"]) < 1000
    assert found["truncated"]
    assert found["rest"].startswith("1000 entries in all")


def test_50_calls_at_once_are_all_answered(shared: RawPeer) -> None:
    for number in range(50):
        shared.call("run_code", {"code": f"print({number})"}, id=100 + number)
    answers = [shared.receive() for _ in range(50)]
    said = {answer["id"]: answer["result"]["structuredContent"]["stdout"] for answer in answers}
    assert said == {100 + number: f"{number}\n" for number in range(50)}


def test_a_cancelled_call_is_killed(shared: RawPeer) -> None:
    shared.call("run_code", {"code": "while True: pass", "timeout_sec": 100}, id=1)
    eventually(lambda: _busy_ticks(shared.process.pid) > _BUSY_TICKS)
    shared.send("notifications/cancelled", {"requestId": 1, "reason": "enough"})
    eventually(lambda: _busy_ticks(shared.process.pid) < _IDLE_TICKS)
    shared.call("run_code", {"code": "print(2)"}, id=2)
    while (message := shared.receive()).get("id") != 2:
        pass
    assert message["result"]["structuredContent"]["stdout"] == "2\n"


# Of a program that does nothing but count there are at least so many in a second, also on a machine that is busy; of
# boxes that wait there are hardly any.
_BUSY_TICKS, _IDLE_TICKS = 20, 5


def _busy_ticks(pid: int) -> float:
    """How much processor time the processes below have used in a second, in ticks."""
    before = {below: _ticks(below) for below in descendants(pid)}
    time.sleep(0.5)
    return 2 * sum(max(0, _ticks(below) - used) for below, used in before.items())


def _ticks(pid: int) -> int:
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(found[11]) + int(found[12])


@pytest.mark.parametrize("how", ["input ends", "SIGTERM", "killed"])
def test_its_end_in_mid_run_leaves_nothing(embedded: RawPeer, how: str) -> None:
    begin(embedded)
    if how == "input ends":
        # As when the client is killed.
        assert embedded.leave() == 0
        return
    number = {"SIGTERM": signal.SIGTERM, "killed": signal.SIGKILL}[how]
    embedded.process.send_signal(number)
    assert embedded.process.wait(30) == (-signal.SIGKILL if how == "killed" else 0)
    embedded.stdin.close()
    embedded.stdout.close()
    assert embedded.process.stderr is not None
    embedded.process.stderr.close()


def test_a_client_that_does_not_read_holds_up_nothing_else(embedded: RawPeer) -> None:
    for number in range(8):
        embedded.call("run_code", {"code": "print('x' * 300_000)"}, id=number + 1)
    embedded.process.send_signal(signal.SIGTERM)
    assert embedded.process.wait(30) == 0
    embedded.stdin.close()
    embedded.stdout.close()
    assert embedded.process.stderr is not None
    embedded.process.stderr.close()


def test_a_killed_client_of_a_bridge_leaves_no_run(mcp_server: RunningServer) -> None:
    """The client is a process with ``tidebox mcp`` as its child, which is what every client is."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)\n"
        "for line in sys.stdin: child.stdin.write(line.encode()); child.stdin.flush()\n"
        "time.sleep(100)\n"
    )
    command = [TIDEBOX, "mcp", "--server", mcp_server.url]
    client = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TIDEBOX_API_KEY": mcp_server.key},
    )
    assert client.stdin is not None
    assert client.stdout is not None
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    call = {"name": "run_code", "arguments": SLEEP, "_meta": {"progressToken": 1}}
    request = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    for message in (INITIALIZE, initialized, request):
        client.stdin.write(json.dumps(message).encode() + b"\n")
    client.stdin.flush()
    assert "serverInfo" in json.loads(client.stdout.readline())["result"]
    assert "began" in client.stdout.readline().decode()
    below = descendants(client.pid)
    client.kill()
    client.wait()
    client.stdin.close()
    client.stdout.close()
    asyncio.run(nothing_runs(mcp_server))
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))


@pytest.mark.parametrize("era", ERAS)
def test_a_client_over_http_that_is_gone_leaves_no_run(era: str, mcp_server: RunningServer) -> None:
    params: dict[str, Any] = {"name": "run_code", "arguments": SLEEP, "_meta": {"progressToken": 1}}
    headers = HEADERS | mcp_server.headers
    if era == "legacy":
        opened = httpx2.post(f"{mcp_server.url}/mcp", json=INITIALIZE, headers=headers, verify=False, timeout=60)
        headers |= {"Mcp-Session-Id": opened.headers["mcp-session-id"], "Mcp-Protocol-Version": "2025-06-18"}
    else:
        headers |= {"Mcp-Protocol-Version": era, "Mcp-Method": "tools/call", "Mcp-Name": "run_code"}
        params["_meta"] |= {
            "io.modelcontextprotocol/protocolVersion": era,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}).encode()
    with socket.create_connection(mcp_server.address) as sock:
        head = [f"POST /mcp HTTP/1.1\r\nHost: {mcp_server.url.removeprefix('http://')}\r\nContent-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        sock.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        said = b""
        while b"began" not in said:
            piece = sock.recv(65536)
            assert piece, said
            said += piece
    asyncio.run(nothing_runs(mcp_server))


async def test_a_server_that_is_killed_is_told_of_and_one_that_is_back_is_used(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    server = start_server(data_dir=tmp_path / "one", drain_grace_sec="0")
    async with on_stdio("legacy", server) as client:
        began = asyncio.Event()

        async def note(progress: float, total: float | None, message: str | None) -> None:
            began.set()

        calling = asyncio.create_task(client.call_tool("run_code", SLEEP, progress_callback=note))
        # Not before: a run that the server never knew of is asked for again, and runs to its end.
        await asyncio.wait_for(began.wait(), 60)
        server.stop(signal.SIGKILL)
        back = start_server("--port", server.url.rpartition(":")[2], data_dir=tmp_path / "one", drain_grace_sec="0")
        assert back.url == server.url
        found = (await asyncio.wait_for(calling, 60)).structured_content
        assert found is not None
        assert "try again" in found["reason"].lower()
        assert fields(await client.call_tool("run_code", {"code": "print(1)"}))["stdout"] == "1\n"


def test_a_server_that_is_not_there_is_said_in_a_line() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert f"no connection to {url}" in error_line(tidebox("mcp", "--server", url))
    assert "not the address of a server" in error_line(tidebox("mcp", env={"TIDEBOX_URL": "nonsense"}))


def test_a_wrong_key_is_said_in_a_line(mcp_server: RunningServer) -> None:
    done = tidebox("mcp", "--server", mcp_server.url, env={"TIDEBOX_API_KEY": "wrong"})
    assert "wrong" in error_line(done)
