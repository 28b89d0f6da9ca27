"""What every request to a server meets before a surface sees it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import jwt
import pytest
import websockets.exceptions
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect

from tests.api.conftest import NO_CELLS, RunningServer

SECRET = "a secret of at least thirty-two bytes"


@pytest.fixture
def client(running_server: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=running_server.url, headers=running_server.headers, timeout=60) as client:
        yield client


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert error["request_id"] == answer.headers["x-request-id"]
    return error


def upgrade(server: RunningServer, path: str = "/ws", **headers: str) -> websockets.Response | None:
    """Try to upgrade; what it was refused with, or None."""
    try:
        with connect(server.url.replace("http", "ws") + path, additional_headers=headers, open_timeout=60):
            return None
    except websockets.exceptions.InvalidStatus as error:
        return error.response


def raw(server: RunningServer, data: bytes) -> tuple[int, dict[str, Any], bytes]:
    """Send bytes as they are; status, error and everything else of the answer."""
    with socket.create_connection(server.address, timeout=20) as sock:
        sock.sendall(data)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"], head


# Health and request ids


def test_a_ready_server_says_so_to_everybody(running_server: RunningServer) -> None:
    answer = httpx2.get(f"{running_server.url}/healthz", timeout=60)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert httpx2.head(f"{running_server.url}/healthz", timeout=60).status_code == 200


def test_a_request_id_is_made_or_taken_over(client: httpx2.Client) -> None:
    assert client.get("/healthz").headers["x-request-id"].startswith("req-")
    answer = client.get("/healthz", headers={"X-Request-ID": "trace_1.a:b-C"})
    assert answer.headers["x-request-id"] == "trace_1.a:b-C"


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "é", "<script>", 'a"b'])
def test_a_strange_request_id_is_replaced(given: str, client: httpx2.Client) -> None:
    answer = client.get("/healthz", headers={b"X-Request-ID": given.encode("latin-1")})
    assert answer.headers["x-request-id"].startswith("req-")


# Credentials


@pytest.mark.parametrize(
    "path", ["/metrics", "/ws", "/openapi.json", "/nowhere", "/", "//healthz", "/healthz/", "/HEALTHZ"]
)
@pytest.mark.parametrize("credential", [{}, {"X-API-KEY": "wrong"}, {"Authorization": "Bearer wrong"}])
def test_nothing_answers_without_a_credential(
    path: str, credential: dict[str, str], running_server: RunningServer
) -> None:
    answer = httpx2.get(running_server.url + path, headers=credential, timeout=60)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert error_of(answer)["code"] == "unauthorized"


@pytest.mark.parametrize("header", ["X-API-KEY: {}", "Authorization: Bearer {}", "authorization: bearer {}"])
def test_the_key_opens_everything(header: str, running_server: RunningServer) -> None:
    name, _, value = header.format(running_server.key).partition(": ")
    assert httpx2.get(f"{running_server.url}/metrics", headers={name: value}, timeout=60).status_code == 200
    assert upgrade(running_server, **{name: value}) is None


@pytest.mark.parametrize("credential", [{}, {"X-API-KEY": "wrong"}, {"Authorization": "Bearer wrong"}])
def test_a_socket_is_refused_before_the_upgrade(credential: dict[str, str], running_server: RunningServer) -> None:
    refusal = upgrade(running_server, **credential)
    assert refusal is not None
    assert refusal.status_code == 401
    assert refusal.body is not None
    assert json.loads(refusal.body)["error"]["code"] == "unauthorized"


def test_tokens_are_accepted_where_a_secret_is_set(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(auth_jwt_secret=SECRET, api_key="tb_fixed", **NO_CELLS)
    assert not (server.data_dir / "api-key").exists()
    good = jwt.encode({"sub": "ada", "exp": time.time() + 60}, SECRET, algorithm="HS256")
    bad = jwt.encode({"sub": "ada", "exp": time.time() - 60}, SECRET, algorithm="HS256")
    for token, status in ((good, 200), (bad, 401), ("tb_fixed", 200), ("tb_wrong", 401)):
        answer = httpx2.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {token}"}, timeout=60)
        assert answer.status_code == status
    assert httpx2.get(f"{server.url}/metrics", headers={"X-API-KEY": good}, timeout=60).status_code == 401


# One envelope


def test_a_path_that_is_not_there(client: httpx2.Client) -> None:
    answer = client.get("/nowhere")
    assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_a_method_that_is_not_allowed(path: str, client: httpx2.Client) -> None:
    answer = client.post(path)
    assert (answer.status_code, error_of(answer)["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"


def test_a_socket_asked_for_without_an_upgrade(client: httpx2.Client) -> None:
    answer = client.get("/ws")
    assert (answer.status_code, error_of(answer)["code"]) == (426, "upgrade_required")


@pytest.mark.parametrize("path", ["/nowhere", "/healthz", "/metrics"])
def test_an_upgrade_where_there_is_no_socket(path: str, running_server: RunningServer) -> None:
    refusal = upgrade(running_server, path, **running_server.headers)
    assert refusal is not None
    assert (refusal.status_code, json.loads(refusal.body or b"")["error"]["code"]) == (404, "not_found")


def test_problem_details_on_request(client: httpx2.Client) -> None:
    answer = client.get("/nowhere", headers={"Accept": "application/problem+json"})
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["status"], answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
def test_what_is_no_http(request_: bytes, running_server: RunningServer) -> None:
    status, error, _ = raw(running_server, request_)
    assert (status, error["code"]) == (400, "invalid_request")


VALID = (
    b"POST /nowhere?x=1 HTTP/1.1\r\nHost: x\r\nX-API-KEY: KEY\r\nOrigin: http://x\r\nUpgrade: websocket\r\n"
    b'Connection: Upgrade\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n\r\n5\r\n{"a":\r\n0\r\n\r\n'
)


@given(st.lists(st.tuples(st.integers(0, len(VALID)), st.integers(0, 8), st.binary(max_size=8)), max_size=4))
@settings(max_examples=200)
def test_any_damage_is_answered_or_refused(running_server: RunningServer, edits: list[tuple[int, int, bytes]]) -> None:
    damaged = VALID
    for position, removed, inserted in edits:
        damaged = damaged[:position] + inserted + damaged[position + removed :]
    with socket.create_connection(running_server.address, timeout=20) as sock:
        sock.sendall(damaged.replace(b"KEY", running_server.key.encode()))
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while piece := sock.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
    assert not answer or answer.startswith(b"HTTP/1.1 4"), answer
    assert "unexpected_failure" not in running_server.log


def test_a_wrong_handshake(running_server: RunningServer) -> None:
    lines = [
        "GET /ws HTTP/1.1",
        "Host: x",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"X-API-KEY: {running_server.key}",
    ]
    status, error, _ = raw(running_server, "\r\n".join([*lines, "", ""]).encode())
    assert (status, error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "head",
    [
        b"X-Long: " + b"x" * 40_000,
        b"X-Long: " + b"x" * 2_000_000,
        b"\r\n".join(b"X-%d: y" % number for number in range(200)),
        b"X-Api-Key: " + b"x" * 40_000,
    ],
)
def test_a_head_that_is_too_long(head: bytes, running_server: RunningServer) -> None:
    try:
        status, error, _ = raw(running_server, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
    except OSError:
        return  # refused while it was still being sent
    assert (status, error["code"]) == (431, "request_header_fields_too_large")


def test_a_head_that_never_ends(running_server: RunningServer) -> None:
    with socket.create_connection(running_server.address, timeout=20) as sock:
        try:
            for _ in range(10_000):
                sock.sendall(b"GET /" + b"x" * 1000)
            pytest.fail("10 MB of request line were taken")
        except OSError:
            pass


def test_a_head_of_a_sane_length_is_read(client: httpx2.Client) -> None:
    assert client.get("/healthz", headers={"X-Long": "x" * 20_000}).status_code == 200


def test_a_body_that_is_too_long(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(max_body_bytes="2000", **NO_CELLS)
    url, headers = f"{server.url}/nowhere", server.headers
    assert httpx2.post(url, headers=headers, content=b"x" * 2000, timeout=60).status_code == 404
    answer = httpx2.post(url, headers=headers, content=b"x" * 2001, timeout=60)
    assert (answer.status_code, error_of(answer)["code"]) == (413, "payload_too_large")
    # No more than announced is needed to be refused.
    head = f"POST /nowhere HTTP/1.1\r\nHost: x\r\nX-API-KEY: {server.key}\r\nContent-Length: 99999999\r\n\r\n"
    status, error, answered = raw(server, head.encode())
    assert (status, error["details"]) == (413, {"limit": 2000})
    assert b"connection: close" in answered.lower()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/exec", ("FORBIDDEN", "PAYLOAD_TOO_LARGE")),
        ("/v1/sandbox/sessions", ("FORBIDDEN", "PAYLOAD_TOO_LARGE")),
        ("/sandbox/acquire", ("FORBIDDEN", "PAYLOAD_TOO_LARGE")),
        ("/api/v1/sandbox/runs", ("forbidden", "payload_too_large")),
    ],
)
def test_refusals_are_in_the_words_of_the_surface(
    path: str, words: tuple[str, str], running_server: RunningServer
) -> None:
    """Also those that no surface ever sees."""
    stranger = httpx2.post(running_server.url + path, headers={"Origin": "https://evil.example"}, json={}, timeout=60)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"
    status, error, _ = raw(running_server, head.encode())
    assert (stranger.status_code, status) == (403, 413)
    assert (error_of(stranger)["code"], error["code"]) == words


# Origins


def test_programs_and_own_pages_are_let_in(client: httpx2.Client, running_server: RunningServer) -> None:
    assert client.get("/metrics", headers={"Origin": running_server.url}).status_code == 200
    assert upgrade(running_server, Origin=running_server.url, **running_server.headers) is None


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "", "http://127.0.0.1", "http://127.0.0.1:1", "file://"]
)
def test_pages_of_strangers_are_not(origin: str, client: httpx2.Client, running_server: RunningServer) -> None:
    answer = client.get("/metrics", headers={"Origin": origin})
    assert (answer.status_code, error_of(answer)["code"]) == (403, "forbidden")
    assert "access-control-allow-origin" not in answer.headers
    refusal = upgrade(running_server, Origin=origin, **running_server.headers)
    assert refusal is not None
    assert refusal.status_code == 403


def test_a_stranger_learns_nothing_of_a_credential(running_server: RunningServer) -> None:
    for key in ("wrong", running_server.key):
        headers = {"Origin": "https://evil.example", "X-API-KEY": key}
        assert httpx2.get(f"{running_server.url}/metrics", headers=headers, timeout=60).status_code == 403


def test_pages_that_are_allowed(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(
        allowed_origins="https://a.example, https://b.example:8443", public_url="https://boxes.example/x", **NO_CELLS
    )
    for origin in ("https://a.example", "https://a.example:443", "https://b.example:8443"):
        answer = httpx2.get(f"{server.url}/metrics", headers={"Origin": origin, **server.headers}, timeout=60)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
        assert upgrade(server, Origin=origin, **server.headers) is None
        refused = httpx2.get(f"{server.url}/metrics", headers={"Origin": origin}, timeout=60)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, origin)
    preflight = httpx2.options(
        f"{server.url}/metrics",
        headers={"Origin": "https://a.example", "Access-Control-Request-Method": "GET"},
        timeout=60,
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://a.example"
    for name in ("x-api-key", "prefer", "range", "x-tidebox-source"):
        assert name in preflight.headers["access-control-allow-headers"]
    assert (
        httpx2.get(
            f"{server.url}/metrics", headers={"Origin": "https://boxes.example", **server.headers}, timeout=60
        ).status_code
        == 200
    )
    for origin in ("http://a.example", "https://b.example", "https://a.example.evil.example"):
        answer = httpx2.get(f"{server.url}/metrics", headers={"Origin": origin, **server.headers}, timeout=60)
        assert answer.status_code == 403


# Rates


def bearer(user: str) -> dict[str, str]:
    token = jwt.encode({"sub": user, "exp": time.time() + 60}, SECRET, algorithm="HS256")
    return {"Authorization": f"Bearer {token}"}


def test_one_user_cannot_ask_too_much(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="5/hour", auth_jwt_secret=SECRET, **NO_CELLS)
    ada = bearer("ada")
    with httpx2.Client(base_url=server.url, headers=ada, timeout=60) as client:
        assert [client.get("/nowhere").status_code for _ in range(6)] == [404] * 5 + [429]
        answer = client.get("/metrics")
        error = error_of(answer)
        assert (answer.status_code, error["code"], error["retryable"]) == (429, "rate_limited", True)
        assert 0 < int(answer.headers["retry-after"]) <= 7200
        assert client.get("/healthz").status_code == 200
    refusal = upgrade(server, **ada)
    assert refusal is not None
    assert refusal.status_code == 429
    # Others are not held up, and the holder of the key is not counted at all.
    with httpx2.Client(base_url=server.url, headers=bearer("bob"), timeout=60) as client:
        assert [client.get("/metrics").status_code for _ in range(6)] == [200] * 5 + [429]
    for headers in (server.headers, {"Authorization": f"Bearer {server.key}"}):
        with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
            assert [client.get("/metrics").status_code for _ in range(6)] == [200] * 6


# Metrics


def read_metrics(client: httpx2.Client) -> dict[str, float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = [line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_metrics_show_what_there_is(client: httpx2.Client, running_server: RunningServer) -> None:
    with connect(running_server.ws_url, additional_headers=running_server.headers, open_timeout=60) as socket:
        socket.ping().wait()
        levels = read_metrics(client)
    assert levels['sandbox_ws_connections{component="fathom"}'] >= 1
    assert levels["sandbox_spawner_up"] == 1
    assert {"sandbox_runs_active", "sandbox_queue_length", "sandbox_pool_cells", "sandbox_boxes"} <= levels.keys()


def test_metrics_count_what_happened(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(max_concurrent_runs="1", queue_max_length="1", queue_ttl_sec="0.6", **NO_CELLS)
    order = {"v": 1, "type": "execute", "ts": "2026-01-01T00:00:00.000Z", "language": "shell"}
    with connect(server.ws_url, additional_headers=server.headers, open_timeout=60) as socket:
        for id in ("runs", "waits", "refused"):
            limits = {"timeout_ms": 1000, "memory_mb": 64}
            socket.send(json.dumps({**order, "id": id, "code": "sleep 60", "limits": limits}))
        while json.loads(socket.recv(timeout=30))["type"] != "result":
            pass
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        ended = 'sandbox_ws_disconnects_total{component="fathom"}'
        while ended not in (counts := read_metrics(client)):
            time.sleep(0.01)
    assert counts['sandbox_runs_started_total{runtime="native"}'] == 2
    timed_out = '{outcome="timed_out",reason="execution_timeout",runtime="native"}'
    assert counts[f"sandbox_runs_completed_total{timed_out}"] == 1
    assert counts[f"sandbox_run_duration_seconds_count{timed_out}"] == 1
    assert counts[f"sandbox_run_duration_seconds_sum{timed_out}"] >= 1
    assert counts['sandbox_runs_refused_total{reason="queue_full"}'] == 1
    assert counts['sandbox_queue_full_total{component="orchestrator",reason="queue_full",runtime="native"}'] == 1
    expired = 'sandbox_queue_ttl_expired_total{component="orchestrator",reason="queue_ttl_expired",runtime="native"}'
    assert counts[expired] == 1
    assert counts['sandbox_queue_wait_seconds_count{runtime="native"}'] == 1
    assert counts['sandbox_ws_connections_opened_total{component="fathom"}'] == 1
    assert counts['sandbox_http_requests_total{component="fathom",status="101"}'] == 1
