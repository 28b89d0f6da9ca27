"""What a client can cost the server before it has shown a credential, and that others are served meanwhile."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest
from websockets.sync.client import connect

from tests.api.conftest import NO_CELLS, RunningServer, finish, start_command

MIB = 1024 * 1024
TEXT, CONT, CLOSE, PING, PONG = 1, 0, 8, 9, 10
STRANGERS_PATHS = ["/v1/exec/ws", "/v1/shell/ws", "/v1/files/watch", "/ws/sb-0123456789abcdef"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One whose memory nobody else uses."""
    made = start_command(tmp_path_factory.mktemp("strangers"), rate_limit="off", **NO_CELLS)
    yield made
    finish(made)


def answer_to(server: RunningServer, data: bytes) -> bytes:
    """Everything that is said to these bytes, until the connection is closed."""
    with socket.create_connection(server.address, timeout=20) as sock:
        sock.sendall(data)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    answer = b""
    try:
        while piece := sock.recv(65536):
            answer += piece
    except ConnectionResetError:
        pass
    return answer


def refused(answer: bytes) -> bool:
    """Whether it is one answer, 400, in the envelope."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 400 ") and json.loads(body)["error"]["code"] == "invalid_request"


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, announced: int | None = None) -> bytes:
    """A frame of a client; ``announced`` is the length that its head says."""
    length = len(payload) if announced is None else announced
    head = bytes([opcode | (0x80 if fin else 0)])
    if length < 126:
        head += bytes([0x80 | length])
    elif length < 65536:
        head += bytes([0x80 | 126]) + struct.pack("!H", length)
    else:
        head += bytes([0x80 | 127]) + struct.pack("!Q", length)
    return head + b"\0\0\0\0" + payload


@contextmanager
def upgraded(server: RunningServer, path: str, headers: dict[str, str] | None = None) -> Iterator[socket.socket]:
    """A WebSocket, its frames left to the test."""
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: x",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Extensions: permessage-deflate",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    with socket.create_connection(server.address, timeout=20) as sock:
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(1)
        assert head.startswith(b"HTTP/1.1 101 "), head
        assert b"permessage-deflate" not in head
        yield sock


def close_code(sock: socket.socket) -> int | None:
    """What a connection is closed with; what else was sent before is passed over."""
    data = read_all(sock)
    while data:
        length, size = data[1], 2
        if length == 126:
            length, size = struct.unpack("!H", data[2:4])[0], 4
        if data[0] & 0xF == CLOSE:
            code: int = struct.unpack("!H", data[size : size + 2])[0]
            return code
        data = data[size + length :]
    return None


def sent_in_vain(sock: socket.socket, data: bytes, times: int) -> bool:
    """Whether the connection ends while this is being sent to it again and again."""
    try:
        for _ in range(times):
            sock.sendall(data)
    except OSError:
        return True
    return False


def memory(server: RunningServer) -> int:
    """Of the server process, in bytes."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def health_seconds(server: RunningServer) -> float:
    """How long a stranger with an honest question waits."""
    started = time.monotonic()
    assert answer_to(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )
    return time.monotonic() - started


@contextmanager
def flooded(*floods: Callable[[], None]) -> Iterator[None]:
    """While these run, each in a thread; they end by themselves."""
    threads = [threading.Thread(target=flood, daemon=True) for flood in floods]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def assert_others_are_served(server: RunningServer, *floods: Callable[[], None]) -> None:
    """Within a second of what it takes when nothing else is asked."""
    alone = max(health_seconds(server) for _ in range(5))
    with flooded(*floods):
        until = time.monotonic() + 2.5
        worst = 0.0
        while time.monotonic() < until:
            worst = max(worst, health_seconds(server))
            time.sleep(0.02)
    assert worst < alone + 1.0


def pump(sock: socket.socket, data: bytes, seconds: float = 2.5) -> None:
    """Send this again and again, taking what is said to it, until that time is over or the connection is."""
    sock.settimeout(0.5)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            sock.sendall(data)
            sock.setblocking(False)
            while sock.recv(1 << 20):
                pass
            return
        except TimeoutError:
            continue
        except BlockingIOError:
            sock.settimeout(0.5)
        except OSError:
            return


# Trailers


def test_a_trailer_is_no_header(server: RunningServer) -> None:
    head = b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    assert refused(answer_to(server, head + f"\r\n0\r\nX-API-KEY: {server.key}\r\n\r\n".encode()))
    # Neither from somebody who has shown one: an address would be believed that a proxy never saw.
    key = f"X-API-KEY: {server.key}\r\n".encode()
    assert refused(answer_to(server, head + key + b"\r\n0\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n"))
    assert refused(answer_to(server, head + key + b"\r\n1\r\nx\r\n0\r\nX-Any: y\r\n\r\n"))
    whole = head + key + b"Connection: close\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    assert answer_to(server, whole).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "line", [b"X-%d: y\r\n" * 4000 % ((1,) * 4000), b"X: " + b"x" * 50_000], ids=["many", "endless"]
)
def test_trailers_take_no_memory(line: bytes, server: RunningServer) -> None:
    before = memory(server)
    head = b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    with socket.create_connection(server.address, timeout=20) as sock:
        sock.sendall(head)
        assert sent_in_vain(sock, line.replace(b"\r\nX: ", b""), 32 * MIB // len(line))
        assert memory(server) - before < 16 * MIB


@pytest.mark.parametrize(
    "endless",
    [b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"\r\n"],
    ids=["a chunk extension", "lines before a request"],
)
def test_what_carries_nothing_is_bounded(endless: bytes, server: RunningServer) -> None:
    with socket.create_connection(server.address, timeout=20) as sock:
        sock.sendall(endless)
        assert sent_in_vain(sock, (b"\r\n" if endless == b"\r\n" else b"xx") * 32_768, 64)


# Requests that can be read in two ways


def request(*lines: bytes, start: bytes = b"GET /healthz HTTP/1.1", body: bytes = b"") -> bytes:
    closing = [] if UPGRADE[0] in lines else [b"Connection: close"]
    return b"\r\n".join([start, *lines, *closing, b"", body])


HOST = b"Host: x"
CHUNKED = b"Transfer-Encoding: chunked"
UPGRADE = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    HOST,
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz\r\n\r\n",
        request(HOST, start=b"GET /healthz HTTP/0.9"),
        request(HOST, start=b"GET /healthz HTTP/2.0"),
        request(),
        request(HOST, b"Host: y"),
        request(HOST, HOST),
        request(b"Host: a/b"),
        request(b"Host: a@b"),
        request(HOST, b"Content-Length: 0", b"Content-Length: 0"),
        request(HOST, b"Content-Length: 0, 0"),
        request(HOST, b"Content-Length: 0", CHUNKED, body=b"0\r\n\r\n"),
        request(HOST, CHUNKED, b"Content-Length: 0", body=b"0\r\n\r\n"),
        request(HOST, CHUNKED, CHUNKED, body=b"0\r\n\r\n"),
        request(HOST, b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
        request(HOST, b"Transfer-Encoding: identity"),
        request(HOST, CHUNKED, start=b"GET /healthz HTTP/1.0", body=b"0\r\n\r\n"),
        request(HOST, b"Content-Length : 0"),
        request(HOST, b"X: a\r\n b"),
        request(HOST, b"X: a\rY: b"),
        request(HOST).replace(b"\r\n", b"\n"),
        request(HOST, start=b"GET http://y/healthz HTTP/1.1"),
        request(HOST, start=b"GET ftp://x/healthz HTTP/1.1"),
        request(HOST, start=b"OPTIONS * HTTP/1.1"),
        request(HOST, start=b"CONNECT x:80 HTTP/1.1"),
        request(HOST, start=b"GET /healthz?\xff HTTP/1.1"),
        request(HOST, start=b"GET /\x00 HTTP/1.1"),
        request(HOST, CHUNKED, body=b"1\nx\r\n0\r\n\r\n"),
        request(*UPGRADE, b"Content-Length: 5", start=b"GET /v1/exec/ws HTTP/1.1", body=b"hello"),
        request(*UPGRADE, start=b"GET /v1/exec/ws HTTP/1.0"),
    ],
)
def test_a_request_that_can_be_read_in_two_ways(sent: bytes, server: RunningServer) -> None:
    assert refused(answer_to(server, sent))


@pytest.mark.parametrize(
    "sent",
    [
        request(HOST, start=b"GET http://x/healthz HTTP/1.1"),
        request(HOST, start=b"GET HTTP://X/healthz HTTP/1.1"),
        request(start=b"GET /healthz HTTP/1.0"),
        request(b"Host: [::1]:8787"),
        request(b"Host:"),
        request(HOST, b"Transfer-Encoding: Chunked", body=b"1;ext=1\r\nx\r\n0\r\n\r\n"),
        b"\r\n" + request(HOST),
        request(HOST, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"),
    ],
)
def test_one_that_cannot_is_served(sent: bytes, server: RunningServer) -> None:
    assert answer_to(server, sent).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(*UPGRADE, b"X: " + b"x" * 9000, start=b"GET /v1/exec/ws HTTP/1.1"), b"431"),
        (request(*UPGRADE, start=b"GET /v1/exec/ws?" + b"x" * 9000 + b" HTTP/1.1"), b"414"),
    ],
)
def test_a_handshake_that_cannot_be_read_is_answered(sent: bytes, status: bytes, server: RunningServer) -> None:
    assert answer_to(server, sent).startswith(b"HTTP/1.1 " + status)


def test_a_body_that_is_not_waited_for_is_not_taken_for_a_request(server: RunningServer) -> None:
    """A client that was told no before it has sent its body may send something else in its place."""
    head = b"POST /metrics HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 50\r\n\r\n"
    answer = answer_to(server, head)
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_pipelined_requests_are_answered_in_their_order(server: RunningServer) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Request-ID: r%d\r\n\r\n"
    asked = b"".join(one % number for number in range(2000)) + request(HOST, b"X-Request-ID: r2000")
    with socket.create_connection(server.address, timeout=20) as sock:
        sending = threading.Thread(target=sock.sendall, args=(asked,))
        sending.start()
        answer = read_all(sock)
        sending.join()
    assert re.findall(rb"x-request-id: r(\d+)", answer) == [b"%d" % number for number in range(2001)]


def test_what_came_before_nonsense_is_answered(server: RunningServer) -> None:
    answer = answer_to(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1


# Floods


def test_pipelined_requests_hold_up_nobody(server: RunningServer) -> None:
    asked = b"GET / HTTP/1.1\r\nHost:x\r\n\r\n" * 10_000
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(server.address)) for _ in range(4)]
        assert_others_are_served(server, *(lambda sock=sock: pump(sock, asked) for sock in socks))


def test_small_chunks_hold_up_nobody(server: RunningServer) -> None:
    head = b"POST /sandbox/refresh HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(server.address)) for _ in range(4)]
        for sock in socks:
            sock.sendall(head)
        assert_others_are_served(server, *(lambda sock=sock: pump(sock, b"1\r\nx\r\n" * 100_000) for sock in socks))
    with socket.create_connection(server.address, timeout=20) as sock:
        sock.sendall(head)
        assert sent_in_vain(sock, b"1\r\nx\r\n" * 10_000, 200)


FLOODS = {
    "pongs": frame(PONG),
    "pings": frame(PING, b"x"),
    "empty texts": frame(TEXT),
    "empty pieces": frame(CONT, fin=False),
    "small pieces": frame(CONT, b"x", fin=False),
}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("path", [*STRANGERS_PATHS, "/ws"])
def test_frames_that_carry_nothing_end_the_connection(path: str, flood: str, server: RunningServer) -> None:
    headers = server.headers if path == "/ws" else None
    with upgraded(server, path, headers) as sock:
        if "pieces" in flood:
            sock.sendall(frame(TEXT, b"x" * 200, fin=False))
        started = time.monotonic()
        sent_in_vain(sock, FLOODS[flood] * 1000, 200)
        code = close_code(sock)
    # Not only when the time for the token is over, which is 5 s.
    assert time.monotonic() - started < 4
    # Pieces are parts of a message, and that of a stranger is too long before they are too many.
    assert code == (1009 if flood == "small pieces" and path != "/ws" else 1008)


@pytest.mark.parametrize("flood", FLOODS)
def test_frames_hold_up_nobody(flood: str, server: RunningServer) -> None:
    with ExitStack() as stack:
        socks = [stack.enter_context(upgraded(server, "/ws", server.headers)) for _ in range(3)]
        if "pieces" in flood:
            for sock in socks:
                sock.sendall(frame(TEXT, b"x" * 200, fin=False))
        data = FLOODS[flood] * 100_000
        assert_others_are_served(server, *(lambda sock=sock: pump(sock, data) for sock in socks))


def test_senseless_messages_hold_up_nobody(server: RunningServer) -> None:
    """They are answered, one by one: the client is known, and slowed down by its own answers."""
    with ExitStack() as stack:
        socks = [stack.enter_context(upgraded(server, "/ws", server.headers)) for _ in range(3)]
        data = frame(TEXT, b"x") * 100_000
        assert_others_are_served(server, *(lambda sock=sock: pump(sock, data) for sock in socks))


def test_after_the_close_nothing_is_parsed_for_long(server: RunningServer) -> None:
    """The end is waited for, but not through a flood."""
    with upgraded(server, "/v1/exec/ws") as sock:
        sock.sendall(frame(TEXT, b"{}"))
        told = b""
        while struct.pack("!H", 1008) not in told:
            told += sock.recv(65536)
        started = time.monotonic()
        assert sent_in_vain(sock, frame(TEXT, b"x" * 100) * 100, 1000)
        assert time.monotonic() - started < 5


def test_some_control_frames_are_fine(server: RunningServer) -> None:
    with connect(server.ws_url, additional_headers=server.headers, open_timeout=60) as client:
        for _ in range(100):
            assert client.ping().wait(20)


def test_a_message_in_many_pieces_is_read(server: RunningServer) -> None:
    pieces = ["x" * 200] * 2000
    with connect(server.ws_url, additional_headers=server.headers, open_timeout=60) as client:
        client.send(['{"v": 1, "type": "', *pieces, '"}'])
        assert json.loads(client.recv(20))["code"] == "INVALID_REQUEST"


def test_a_compressed_message_is_refused(server: RunningServer) -> None:
    with upgraded(server, "/ws", server.headers) as sock:
        sock.sendall(frame(TEXT | 0x40, b"\x00" * 100))
        assert close_code(sock) == 1002


@pytest.mark.parametrize("path", STRANGERS_PATHS)
def test_a_stranger_has_no_long_messages(path: str, server: RunningServer) -> None:
    before = memory(server)
    with ExitStack() as stack:
        socks = [stack.enter_context(upgraded(server, path)) for _ in range(10)]
        for sock in socks:
            sent_in_vain(sock, frame(TEXT, b"x" * 65536, announced=15 * MIB), 1)
            sent_in_vain(sock, b"x" * 65536, 15 * 15)
        assert memory(server) - before < 32 * MIB
        assert [close_code(sock) for sock in socks] == [1009] * 10


# Connections


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return bool(sock.recv(65536))
    except BlockingIOError:
        return True
    except OSError:
        return False


def idle_connections(stack: ExitStack, server: RunningServer, count: int, address: str) -> list[socket.socket]:
    """That have made a request each."""
    socks = []
    for _ in range(count):
        sock = socket.create_connection(server.address, timeout=20, source_address=(address, 0))
        socks.append(stack.enter_context(sock))
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while b'"ok"}' not in answer:
            answer += sock.recv(65536)
    return socks


def test_idle_connections_make_room(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(max_connections="40", max_connections_per_address="15", **NO_CELLS)
    with ExitStack() as stack:
        of_one = idle_connections(stack, server, 25, "127.0.0.2")
        assert [is_open(sock) for sock in of_one] == [False] * 10 + [True] * 15
        of_others = [idle_connections(stack, server, 15, f"127.0.0.{number}") for number in (3, 4)]
        every = [*of_one, *of_others[0], *of_others[1]]
        assert [is_open(sock) for sock in every] == [False] * 15 + [True] * 40
        assert health_seconds(server) < 5


def test_connections_in_use_are_not_closed_for_others(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(max_connections="8", max_connections_per_address="8", **NO_CELLS)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(upgraded(server, "/ws", server.headers))
        with socket.create_connection(server.address, timeout=20) as sock:
            answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["retryable"] is True
    while not answer_to(server, request(HOST)).startswith(b"HTTP/1.1 200 "):
        time.sleep(0.01)


def test_descriptors_are_left_for_programs(tmp_path: Path) -> None:
    server = start_command(tmp_path / "server", under=["prlimit", "--nofile=1100"])
    order = {
        "v": 1,
        "type": "execute",
        "ts": "2026-01-01T00:00:00.000Z",
        "id": "x",
        "language": "shell",
        "code": "echo ok",
        "limits": {"timeout_ms": 10_000, "memory_mb": 64},
    }
    try:
        with ExitStack() as stack:
            for number in range(1150):
                address = (f"127.0.1.{number % 5 + 1}", 0)
                stack.enter_context(socket.create_connection(server.address, timeout=5, source_address=address))
            assert len(os.listdir(f"/proc/{server.pid}/fd")) < 1000
            with connect(server.ws_url, additional_headers=server.headers, open_timeout=10) as client:
                client.send(json.dumps(order))
                while (message := json.loads(client.recv(20)))["type"] != "result":
                    assert message["type"] != "error", message["message"]
        assert message["exit_code"] == 0
    finally:
        finish(server)


def test_garbage_does_not_fill_the_log(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(**NO_CELLS)
    for _ in range(50):
        assert refused(answer_to(server, b"\x16\x03\x01\x02\x00\x01\x00\x01"))
    with upgraded(server, "/ws", server.headers) as sock:
        sock.sendall(frame(TEXT, b"\xff"))
        assert close_code(sock) == 1007
    for _ in range(20):
        assert answer_to(server, request(*UPGRADE, start=b"GET /ws HTTP/1.1")).startswith(b"HTTP/1.1 401 ")
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log_lines]
    garbage = [line for line in lines if line.get("reason") == "this is not valid HTTP"]
    assert len(garbage) <= 4
    assert (
        len([line for line in garbage if "suppressed" not in line]) + sum(line.get("suppressed", 0) for line in garbage)
        == 50
    )
    assert not [line for line in lines if line["level"] == "error"]
    assert "Invalid" not in server.log


def test_an_http_client_is_served_as_before(server: RunningServer) -> None:
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        for size in (0, 1, 2048, 2049, 300_000, MIB - 1000):
            assert client.post("/nowhere", content=b"x" * size).status_code == 404
            pieces = (b"x" * min(1000, size) for _ in range(size // 1000 + 1))
            assert client.post("/nowhere", content=pieces).status_code == 404
