"""Programs on sockets: input, signals, flow control, and what happens when a client is gone."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import time
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.api.dataplane.plane import Plane, Socket
from tidebox.api.dataplane import connection, program_socket
from tidebox.broker.sandboxes import processes
from tidebox.broker.sandboxes.sandbox import LocalSandbox
from tidebox.model.limits import MIB
from tidebox.model.sandbox import Capability

EXEC = "/v1/exec/ws"


def output(frames: list[dict[str, Any]], stream: str = "stdout") -> bytes:
    """What a program wrote."""
    return b"".join(
        base64.b64decode(frame["data"]) if frame["encoding"] == "base64" else frame["data"].encode()
        for frame in frames
        if frame["type"] == stream
    )


def closed_with(socket: Socket) -> int:
    """The code a connection is closed with."""
    with pytest.raises(ConnectionClosed) as caught:
        socket.receive()
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code


def assert_ended(http: httpx2.Client, marker: str, seconds: float = 30.0) -> None:
    """No process of the sandbox has ``marker`` among its arguments any more."""
    deadline = time.monotonic() + seconds
    while marker in processes_of(http):
        assert time.monotonic() < deadline, f"{marker} still runs"
        time.sleep(0.05)


def processes_of(http: httpx2.Client) -> str:
    listing: str = http.post("/v1/exec", json={"command": "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"}).json()["stdout"]
    return listing


def test_frames_are_exactly_those_of_the_protocol(plane: Plane, token: str) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["sh", "-c", "echo out; sleep 0.2; echo err >&2; exit 4"])
        ready = socket.expect("ready")
        assert set(ready) == {"type", "pid"}
        assert ready["pid"] > 1
        assert socket.receive() == {"type": "stdout", "data": "out\n", "encoding": "utf8"}
        assert socket.receive() == {"type": "stderr", "data": "err\n", "encoding": "utf8"}
        ended = socket.expect("exit")
        assert set(ended) == {"type", "exit_code", "signal", "duration_ms", "resource_usage"}
        assert (ended["exit_code"], ended["signal"]) == (4, None)
        assert ended["duration_ms"] >= 200
        assert closed_with(socket) == 1000


def test_a_token_in_the_first_frame(plane: Plane, token: str, sandbox: LocalSandbox) -> None:
    with plane.socket(EXEC, None) as socket:
        socket.send("auth", token=token)
        answer = socket.expect("auth_ok")
        assert answer["sandbox_id"] == sandbox.id
        assert answer["granted_capabilities"] == ["fs_read", "fs_write", "exec", "shell"]
        assert answer["expires_at"].endswith("Z")
        socket.send("start", command=["true"])
        assert socket.until("exit")[-1]["exit_code"] == 0


def test_much_may_follow_the_token_at_once(plane: Plane, token: str) -> None:
    """What a stranger may send is little; what is sent after a good token is not that of a stranger."""
    with plane.socket(EXEC, None) as socket:
        socket.send("auth", token=token)
        socket.send("start", command=["wc", "-c"], stdin=True)
        socket.send("stdin", data="x" * 1_000_000)
        socket.send("stdin", data="x" * 1_000_000, eof=True)
        socket.expect("auth_ok")
        assert output(socket.until("exit")).strip() == b"2000000"


@pytest.mark.parametrize(
    "frame", [{"type": "auth", "token": "wrong"}, {"type": "start", "command": ["true"]}, {"type": "ping"}]
)
def test_without_a_good_token_nothing_is_done(plane: Plane, frame: dict[str, str]) -> None:
    with plane.socket(EXEC, None) as socket:
        socket.send(**frame)
        assert socket.expect("error")["error"]["code"] == "UNAUTHENTICATED"
        assert closed_with(socket) == 1008


def test_a_client_that_shows_no_token_is_not_waited_for(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "AUTH_SECONDS", 0.2)
    with plane.socket(EXEC, None) as socket:
        assert socket.expect("error")["error"]["code"] == "UNAUTHENTICATED"
        assert closed_with(socket) == 1008


def test_a_wrong_token_in_a_header_is_refused_before_the_upgrade(plane: Plane, sandbox: LocalSandbox) -> None:
    other = plane.token(plane.sandbox())
    for path, token, status, code in (
        (EXEC, "wrong", 401, "UNAUTHENTICATED"),
        (f"/ws/{sandbox.id}", other, 403, "FORBIDDEN"),
    ):
        with pytest.raises(InvalidStatus) as caught, plane.socket(path, token):
            pass
        response = caught.value.response
        assert response.status_code == status
        assert f'"{code}"'.encode() in (response.body or b"")


def test_every_start_needs_its_capability(plane: Plane, sandbox: LocalSandbox) -> None:
    with plane.socket(EXEC, plane.token(sandbox, Capability.SHELL)) as socket:
        socket.send("start", command=["true"])
        error = socket.expect("error")["error"]
        assert (error["code"], error["message"], error["retryable"]) == ("CAPABILITY_DENIED", "exec not granted", False)
        assert error["request_id"]
        assert closed_with(socket) == 1008
    with plane.socket(f"/ws/{sandbox.id}", plane.token(sandbox, Capability.EXEC)) as socket:
        socket.send("start")
        assert socket.expect("error")["error"]["message"] == "shell not granted"
        socket.send("start", command=["true"])
        assert socket.until("exit")[-1]["exit_code"] == 0


def test_an_expired_token_starts_nothing_until_a_new_one_is_shown(plane: Plane, sandbox: LocalSandbox) -> None:
    with plane.socket(EXEC, plane.token(sandbox, seconds=-1)) as socket:
        socket.send("start", command=["true"])
        assert socket.expect("error")["error"]["code"] == "UNAUTHENTICATED"
        socket.send("auth", token=plane.token(plane.sandbox()))
        assert socket.expect("error")["error"]["code"] == "UNAUTHENTICATED"
        socket.send("auth", token=plane.token(sandbox))
        socket.expect("auth_ok")
        socket.send("start", command=["true"])
        socket.until("exit")


def test_a_program_reads_its_input_and_the_end_of_it(plane: Plane, token: str) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["cat"], stdin=True)
        socket.expect("ready")
        socket.send("stdin", data="one\n")
        assert socket.expect("stdout")["data"] == "one\n"
        socket.send("stdin", data=base64.b64encode(b"\xff\xfe").decode(), encoding="base64", eof=True)
        frames = socket.until("exit")
        assert output(frames) == b"\xff\xfe"
        assert frames[0]["encoding"] == "base64"


def test_without_input_a_program_reads_its_end(plane: Plane, token: str) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["cat"])
        assert socket.until("exit")[-1]["exit_code"] == 0


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"command": [""] * 100_000}, "PAYLOAD_TOO_LARGE"),
        ({"command": ["true"], "env": {str(number): "" for number in range(100_000)}}, "PAYLOAD_TOO_LARGE"),
        ({"command": "x" * 7 * MIB}, "INVALID_REQUEST"),
        ({"command": ["true", "x" * 131_072]}, "INVALID_REQUEST"),
        ({"command": ["true", *["x" * 65_536] * 17]}, "INVALID_REQUEST"),
        ({"command": 5}, "INVALID_REQUEST"),
        ({"command": ["true"], "env": {"A": 5}}, "INVALID_REQUEST"),
    ],
    ids=["words", "variables", "long", "word", "in all", "number", "value"],
)
def test_a_start_that_is_too_much_is_refused(plane: Plane, token: str, frame: dict[str, Any], code: str) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send("start", **frame)
        assert socket.expect("error")["error"]["code"] == code
        socket.send("start", command=["true"])
        assert socket.until("exit")[-1]["exit_code"] == 0


def test_a_signal_frame_reaches_the_program(plane: Plane, token: str) -> None:
    for name, ended in (("INT", "INT"), ("SIGTERM", "TERM"), ("kill", "KILL")):
        with plane.socket(EXEC, token) as socket:
            socket.send("start", command=["sleep", "60"])
            socket.expect("ready")
            socket.send("signal", signal=name)
            assert socket.expect("exit")["signal"] == ended


def test_a_signal_is_heard_by_a_program_that_reads_no_input(plane: Plane, token: str) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["sleep", "60"], stdin=True)
        socket.expect("ready")
        for _ in range(20):
            socket.send("stdin", data="x" * 100_000)
        socket.send("ping")
        socket.expect("pong")
        socket.send("signal", signal="TERM")
        assert socket.expect("exit")["signal"] == "TERM"


def test_a_client_waits_for_a_program_that_reads_slowly(plane: Plane, token: str) -> None:
    script = "import sys, time; time.sleep(1); sys.stdout.write(str(len(sys.stdin.read())))"
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["python3", "-c", script], stdin=True)
        for _ in range(40):
            socket.send("stdin", data="x" * 500_000)
        socket.send("stdin", eof=True)
        assert output(socket.until("exit")) == b"20000000"


def test_a_program_that_never_reads_its_input_ends_the_connection(
    plane: Plane, token: str, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_socket, "STALL_SECONDS", 0.5)
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["sleep", "14142"], stdin=True)
        socket.expect("ready")
        for _ in range(12):
            socket.send("stdin", data="x" * 500_000)
        assert socket.expect("error")["error"]["code"] == "BUSY"
        assert closed_with(socket) == 1008
    assert_ended(http, "14142")


def test_no_more_are_left_running_that_were_started_at_once(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_KEPT", 2)
    token = plane.token(plane.sandbox())
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(plane.socket(EXEC, token)) for _ in range(8)]
        for client in clients:
            client.send("start", command=["sleep", "60"], on_disconnect="detach")
        answers = [client.receive() for client in clients]
        assert sorted(answer["type"] for answer in answers) == ["error"] * 6 + ["ready"] * 2
        for client, answer in zip(clients, answers, strict=True):
            if answer["type"] == "ready":
                client.send("signal", signal="KILL")
                client.until("exit")


def test_no_more_programs_are_left_running_than_may_be(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_KEPT", 2)
    sandbox = plane.sandbox()
    token = plane.token(sandbox)

    def leave_running(*command: str) -> dict[str, Any]:
        with plane.socket(EXEC, token) as socket:
            socket.send("start", command=command, on_disconnect="detach")
            return socket.receive()

    first = leave_running("sh", "-c", "until [ -e end ]; do sleep 0.02; done")
    second = leave_running("sleep", "60")
    refused = leave_running("sleep", "60")
    assert (refused["type"], refused["error"]["code"], refused["error"]["retryable"]) == ("error", "RATE_LIMITED", True)
    with plane.client(token) as http:
        http.post("/v1/exec", json={"command": ["touch", "end"]})
    deadline = time.monotonic() + 30
    while leave_running("sleep", "60")["type"] != "ready":
        assert time.monotonic() < deadline
    with plane.socket(EXEC, token) as socket:
        socket.send("start", process_id=first["process_id"])
        assert socket.expect("error")["error"]["code"] == "NOT_FOUND"
        socket.send("start", process_id=second["process_id"])
        socket.expect("ready")


def test_a_program_ends_at_its_timeout(plane: Plane, token: str) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["sleep", "60"], timeout_ms=200)
        ended = socket.until("exit")[-1]
        assert (ended["signal"], ended["timed_out"]) == ("KILL", True)


def test_a_ping_is_answered(plane: Plane, token: str) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send("ping")
        assert socket.receive() == {"type": "pong"}


def test_a_character_in_two_pieces_is_one(plane: Plane, token: str) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send(
            "start", command=["sh", "-c", r"printf 'a\303'; sleep 0.01; printf '\251b'; sleep 0.3; printf '\303'"]
        )
        frames = socket.until("exit")
        assert output(frames) == b"a\xc3\xa9b\xc3"


def test_what_is_no_frame_is_refused_and_the_connection_stays(plane: Plane, token: str) -> None:
    with plane.socket(EXEC, token) as socket:
        for text in (
            "",
            "nonsense",
            "[]",
            '{"type":"unknown"}',
            '{"type":"start"}',
            '{"type":"start","command":[]}',
            '{"type":"start","command":["true"],"tty":{"rows":0,"cols":80}}',
            '{"type":"start","command":["true"],"tty":{"rows":24,"cols":70000}}',
            '{"type":"start","command":["true"],"timeout_ms":-5}',
            '{"type":"start","command":["true"],"on_disconnect":"stay"}',
            '{"type":"signal","signal":"NONSENSE"}',
            '{"type":"stdin","data":"!","encoding":"base64"}',
            '{"type":"resize","rows":-1,"cols":2}',
            "[" * 50_000,
        ):
            socket.connection.send(text)
            code = socket.expect("error")["error"]["code"]
            assert code in ("INVALID_REQUEST", "LIMIT_OUT_OF_RANGE"), text
        socket.connection.send(b"\x00")
        assert socket.expect("error")["error"]["code"] == "INVALID_REQUEST"
        for early in ({"type": "stdin", "data": "x"}, {"type": "signal", "signal": "INT"}):
            socket.send(**early)
            assert socket.expect("error")["error"]["code"] == "CONFLICT"
        socket.send("start", command=["sleep", "1"])
        socket.expect("ready")
        for late in ({"type": "start", "command": ["true"]}, {"type": "resize", "rows": 1, "cols": 2}):
            socket.send(**late)
            assert socket.expect("error")["error"]["code"] == "CONFLICT"


def test_a_program_that_cannot_be_started_ends_the_connection(plane: Plane, token: str) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["no-such-program"])
        assert socket.expect("error")["error"]["code"] == "EXEC_FAILED"
        assert closed_with(socket) == 1000


def test_the_socket_of_a_sandbox_runs_one_program_after_another(
    plane: Plane, token: str, sandbox: LocalSandbox
) -> None:
    with plane.socket(f"/ws/{sandbox.id}", token) as socket:
        for number in range(3):
            socket.send("start", command=["echo", str(number)])
            assert output(socket.until("exit")) == f"{number}\n".encode()
        socket.send("close")
        assert closed_with(socket) == 1000


def test_much_output_arrives_whole(plane: Plane, token: str) -> None:
    size = 32 * 1024 * 1024
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=f"yes 0123456789abcde | head -c {size}")
        assert output(socket.until("exit")) == b"0123456789abcde\n" * (size // 16)


def test_a_slow_client_holds_back_its_own_program_only(plane: Plane, token: str, http: httpx2.Client) -> None:
    script = "import os\nfor n in range(1000): os.write(1, b'x' * 65536); open('/tmp/written', 'w').write(str(n))"
    with plane.socket(EXEC, token, max_queue=1) as slow:
        slow.send("start", command=["python3", "-c", script])
        slow.expect("ready")
        written, before = "", ""
        while not written or written != before:
            before = written
            time.sleep(0.5)
            written = http.post("/v1/exec", json={"command": ["cat", "/tmp/written"]}).json()["stdout"]
        assert int(written) < 900, "the program of the slow client does not wait"
        with plane.socket(EXEC, token) as other:
            other.send("start", command="yes | head -c 5000000")
            assert len(output(other.until("exit"))) == 5_000_000
        assert len(output(slow.until("exit"))) == 1000 * 65536


def test_a_client_that_is_gone_takes_its_program_along(plane: Plane, token: str, http: httpx2.Client) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["sh", "-c", "sleep 31337 & sleep 31337"])
        socket.expect("ready")
        assert "31337" in processes_of(http)
    assert_ended(http, "31337")
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["sleep", "31338"])
        socket.expect("ready")
        socket.send("close")
    assert_ended(http, "31338")


def test_a_program_that_is_left_running_is_found_again(plane: Plane, token: str, http: httpx2.Client) -> None:
    script = "echo one; read line; echo got $line; exit 7"
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["sh", "-c", script], stdin=True, on_disconnect="detach")
        ready = socket.expect("ready")
        assert ready["offset"] == 0
        frame = socket.expect("stdout")
        assert (frame["data"], frame["offset"]) == ("one\n", 4)
    with plane.socket(EXEC, token) as socket:
        socket.send("start", process_id=ready["process_id"], offset=4)
        assert socket.expect("ready") == {**ready, "offset": 4}
        socket.send("stdin", data="this\n")
        frames = socket.until("exit")
        assert output(frames) == b"got this\n"
        assert frames[-1]["exit_code"] == 7
    with plane.socket(EXEC, token) as socket:
        socket.send("start", process_id=ready["process_id"])
        frames = socket.until("exit")
        assert output(frames) == b"one\ngot this\n"
        assert frames[-1]["exit_code"] == 7


def test_what_was_written_meanwhile_is_kept_up_to_a_bound(plane: Plane, token: str, http: httpx2.Client) -> None:
    size = 8 * 1024 * 1024
    with plane.socket(EXEC, token) as socket:
        command = f"rm -f over; read go; yes 0123456 | head -c {size}; touch over"
        socket.send("start", command=command, stdin=True, on_disconnect="detach")
        ready = socket.expect("ready")
        socket.send("stdin", data="go\n")
        socket.expect("stdout")
    deadline = time.monotonic() + 30
    while http.get("/v1/files/stat", params={"path": "over"}).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with plane.socket(EXEC, token) as socket:
        socket.send("start", process_id=ready["process_id"], offset=0)
        place = socket.expect("ready")["offset"]
        assert size - 2 * processes.KEPT_BYTES < place <= size - processes.KEPT_BYTES + 65536
        frames = socket.until("exit")
        assert len(output(frames)) == size - place
        assert frames[-2]["offset"] == size


def test_a_second_client_reads_beside_the_first(plane: Plane, token: str) -> None:
    with plane.socket(EXEC, token) as first, plane.socket(EXEC, token) as second:
        first.send("start", command=["cat"], stdin=True, on_disconnect="detach")
        ready = first.expect("ready")
        first.send("stdin", data="before\n")
        first.read_until("before\n")
        second.send("start", process_id=ready["process_id"])
        second.expect("ready")
        second.read_until("before\n")
        second.send("stdin", data="from the second\n")
        first.read_until("from the second\n")
        second.read_until("from the second\n")
        first.send("stdin", data="from the first\n")
        first.read_until("from the first\n")
        second.read_until("from the first\n")
        # One that leaves takes neither the program nor the other along.
        first.send("close")
        assert closed_with(first) == 1000
        second.send("stdin", data="alone\n", eof=True)
        second.read_until("alone\n")
        assert second.expect("exit")["exit_code"] == 0


def test_several_clients_each_read_all_of_it(plane: Plane, token: str) -> None:
    size = 4 * MIB
    with plane.socket(EXEC, token) as fast, plane.socket(EXEC, token, max_queue=1) as slow:
        command = f"read go; yes 0123456789abcde | head -c {size}"
        fast.send("start", command=command, stdin=True, on_disconnect="detach")
        ready = fast.expect("ready")
        slow.send("start", process_id=ready["process_id"])
        slow.expect("ready")
        fast.send("stdin", data="go\n")
        # Neither gets ahead of the other by more than what is on its way.
        whole = b"0123456789abcde\n" * (size // 16)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            others = pool.submit(fast.until, "exit")
            assert output(slow.until("exit")) == whole
            assert output(others.result(60)) == whole


def test_the_processes_of_a_sandbox(plane: Plane, sandbox: LocalSandbox, token: str) -> None:
    listed = plane.processes.of_sandbox
    before = set(listed(sandbox.id))
    with plane.socket(EXEC, token) as bound, plane.socket(EXEC, token) as detached:
        bound.send("start", command=["cat"], stdin=True)
        detached.send("start", command=["cat"], stdin=True, on_disconnect="detach")
        pids = [socket.expect("ready")["pid"] for socket in (bound, detached)]
        assert {process.pid for process in listed(sandbox.id) if process not in before} == set(pids)
        assert listed("sb-another") == []
        for socket in (bound, detached):
            socket.send("stdin", eof=True)
            socket.until("exit")
    # Only the end of one that may outlive its readers can be asked for later.
    assert [process.pid for process in listed(sandbox.id) if process not in before] == [pids[1]]


def test_who_may_attach(plane: Plane, token: str, sandbox: LocalSandbox) -> None:
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["sleep", "2"], on_disconnect="detach")
        process_id = socket.expect("ready")["process_id"]
    other = plane.token(plane.sandbox())
    for wrong, code in ((other, "NOT_FOUND"), (plane.token(sandbox, Capability.SHELL), "CAPABILITY_DENIED")):
        with plane.socket(EXEC, wrong) as socket:
            socket.send("start", process_id=process_id)
            assert socket.expect("error")["error"]["code"] == code
    with plane.socket(EXEC, token) as socket:
        socket.send("start", process_id=process_id, offset=10**9)
        assert socket.expect("error")["error"]["code"] == "INVALID_REQUEST"
        socket.send("start", process_id="proc-unknown")
        assert socket.expect("error")["error"]["code"] == "NOT_FOUND"


def test_two_clients_share_one_sandbox(plane: Plane, token: str, sandbox: LocalSandbox) -> None:
    with plane.socket(EXEC, token) as one, plane.socket(f"/ws/{sandbox.id}", plane.token(sandbox)) as two:
        one.send("start", command="mkfifo /tmp/pipe; echo made; cat /tmp/pipe")
        one.expect("ready")
        assert one.expect("stdout")["data"] == "made\n"
        two.send("start", command="echo through the pipe > /tmp/pipe")
        assert two.until("exit")[-1]["exit_code"] == 0
        assert output(one.until("exit")) == b"through the pipe\n"


def test_when_the_sandbox_ends_its_clients_are_told(plane: Plane) -> None:
    sandbox = plane.sandbox()
    token = plane.token(sandbox)
    with plane.socket(EXEC, token) as socket:
        socket.send("start", command=["sleep", "60"])
        socket.expect("ready")
        plane.runner.submit(sandbox.box.close()).result(10)
        error = socket.expect("error")["error"]
        assert (error["code"], error["retryable"]) == ("BACKEND_UNAVAILABLE", True)
        assert closed_with(socket) == 1000
    with plane.client(token) as client:
        answer = client.post("/v1/exec", json={"command": ["true"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "BACKEND_UNAVAILABLE")


def test_a_revoked_token_is_of_no_use_on_an_open_socket(
    plane: Plane, sandbox: LocalSandbox, http: httpx2.Client
) -> None:
    revoked = False
    token = plane.token(sandbox)
    plane.gate.accesses[token] = replace(plane.gate.accesses[token], still_good=lambda: not revoked)
    with plane.socket(EXEC, token) as typing, plane.socket(EXEC, token) as reading, plane.socket(EXEC, token) as idle:
        typing.send("start", command=["sh", "-c", "read line; sleep 16180"], stdin=True)
        reading.send("start", command=["sh", "-c", "sleep 0.5; echo secret; sleep 16180"])
        for socket in (typing, reading):
            socket.expect("ready")
        revoked = True
        typing.send("stdin", data="x")
        idle.send("start", command=["true"])
        for socket in (typing, reading, idle):
            assert socket.expect("error")["error"]["code"] == "UNAUTHENTICATED"
            assert closed_with(socket) == 1008
    assert_ended(http, "16180")
