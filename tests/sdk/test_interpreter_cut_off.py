"""The client of the interpreter service, where connections are lost and servers are busy, hostile or gone."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.api.conftest import RunningServer
from tests.sdk.peer import Talk, serving
from tests.sdk.proxy import cutting
from tests.sdk.test_cut_off import answer, peer
from tidebox.errors import Conflict, InternalError, NotFound, Overloaded, PayloadTooLarge, TideboxError
from tidebox.model.run import Phase
from tidebox.sdk import (
    AsyncInterpreter,
    AsyncRunLog,
    ConnectionLost,
    LogChunk,
    LogEntry,
    LogGap,
    ProgramStart,
    RunEnd,
    ServerProtocolError,
    ServerRefused,
    ServerUnreachable,
)
from tidebox.sdk import http_client as http_module
from tidebox.sdk.interpreter import calls as calls_module
from tidebox.sdk.interpreter import run_log as log_module

PREFIX = "/api/v1/sandbox"
LINES = 200_000
PRINT_LINES = ["python3", "-c", f"for number in range({LINES}): print(f'{{number:07d}}')"]
PRINTED = b"".join(b"%07d\n" % number for number in range(LINES))


def output(found: list[LogEntry]) -> bytes:
    return b"".join(entry.data for entry in found if isinstance(entry, LogChunk))


async def entries(log: AsyncRunLog) -> list[LogEntry]:
    return [entry async for entry in log]


def once(limit: int) -> Iterator[int | None]:
    """The first connection is cut, the others are not."""
    return itertools.chain([limit], itertools.repeat(None))


# Connections that are lost


@pytest.mark.parametrize("while_it_runs", [True, False])
async def test_a_log_through_many_connections(running_server: RunningServer, while_it_runs: bool) -> None:
    chances = random.Random(7)
    async with AsyncInterpreter(running_server.url, api_key=running_server.key) as direct:
        run = await direct.start_run(PRINT_LINES)
        if not while_it_runs:
            await direct.wait_run(run.id)
        cuts = itertools.chain((chances.randrange(300, 250_000) for _ in range(12)), itertools.repeat(None))
        async with cutting(running_server, cuts) as proxy:
            async with AsyncInterpreter(proxy.url, api_key=running_server.key) as client:
                async with await client.stream_log(run.id) as log:
                    found = await entries(log)
        assert proxy.cut >= 10
        assert output(found) == PRINTED
        assert [entry.seq for entry in found] == sorted({entry.seq for entry in found})
        assert isinstance(found[-1], RunEnd)
        assert not any(isinstance(entry, LogGap) for entry in found)


async def test_a_whole_run_through_many_connections(running_server: RunningServer) -> None:
    # The answer to the first request, and then the log.
    cuts = itertools.chain([250, None, 100_000, 400_000, 700_000], itertools.repeat(None))
    async with cutting(running_server, cuts) as proxy:
        async with AsyncInterpreter(proxy.url, api_key=running_server.key, patience=60) as client:
            result = await client.run(PRINT_LINES)
    assert (result.stdout, result.lost_entries, result.ok) == (PRINTED, 0, True)
    assert proxy.cut == 4


@pytest.mark.parametrize("what", ["runs", "sessions"])
async def test_a_lost_answer_makes_nothing_twice(running_server: RunningServer, what: str) -> None:
    async with cutting(running_server, once(0)) as proxy:
        async with AsyncInterpreter(proxy.url, api_key=running_server.key) as client:
            made = (await (client.start_run(["true"]) if what == "runs" else client.create_session())).id
        keys = [_header(request, b"idempotency-key") for request in proxy.requests]
        assert (proxy.cut, len(keys), len(set(keys))) == (1, 2, 1)
    async with AsyncInterpreter(running_server.url, api_key=running_server.key) as client:
        known = await client.admin.list_idempotency_keys(limit=1000)
        assert [entry.object_id for entry in known.items if entry.key == keys[0].decode()] == [made]
        audit = await client.admin.list_audit(event=f"sandbox.{what[:-1]}.created", limit=1)
        assert made in (audit.items[0].run_id, audit.items[0].session_id)
        before = await client.admin.list_audit(event=f"sandbox.{what[:-1]}.created", limit=1, offset=1)
        assert before.items == () or before.items[0].ts < audit.items[0].ts


def _header(head: bytes, name: bytes) -> bytes:
    return next(line.partition(b": ")[2] for line in head.split(b"\r\n") if line.lower().startswith(name))


async def test_a_lost_answer_to_a_deletion(running_server: RunningServer) -> None:
    async with AsyncInterpreter(running_server.url, api_key=running_server.key) as direct:
        session = await direct.create_session()
        async with cutting(running_server, once(0)) as proxy:
            async with AsyncInterpreter(proxy.url, api_key=running_server.key) as client:
                await client.delete_session(session.id)
        assert proxy.cut == 1
        with pytest.raises(NotFound):
            await direct.delete_session(session.id)


async def test_downloads_go_on(running_server: RunningServer, tmp_path: Path) -> None:
    code = "import os\nopen('big', 'wb').write(bytes(range(256)) * 20000)"
    async with AsyncInterpreter(running_server.url, api_key=running_server.key) as direct:
        run = (await direct.run(["python3", "-c", code], artifacts=["big"])).run
    expected = bytes(range(256)) * 20000
    target = io.BytesIO()
    for to in (None, tmp_path / "big", target):
        cuts = itertools.chain([2_000_000, 1_000_000, 100, 700_000], itertools.repeat(None))
        async with cutting(running_server, cuts) as proxy:
            async with AsyncInterpreter(proxy.url, api_key=running_server.key) as client:
                if to is None:
                    assert await client.download_artifact(run.id, "big") == expected
                else:
                    assert await client.download_artifact(run.id, "big", to) == len(expected)
        assert proxy.cut == 4
    assert (tmp_path / "big").read_bytes() == target.getvalue() == expected
    assert os.listdir(tmp_path) == ["big"]


async def test_uploads_are_sent_again(running_server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"0123456789" * 100_000)
    async with AsyncInterpreter(running_server.url, api_key=running_server.key) as direct:
        session = await direct.create_session()
        async with cutting(running_server, once(0)) as proxy:
            async with AsyncInterpreter(proxy.url, api_key=running_server.key) as client:
                uploaded = await client.upload_files(session.id, {"big": tmp_path / "big", "small": io.BytesIO(b"s")})
                assert uploaded.file_count == 2
        assert proxy.cut == 1
        assert await direct.download_file(session.id, "big") == (tmp_path / "big").read_bytes()
        # One that cannot be read twice is not.
        reading, writing = os.pipe()
        os.write(writing, b"once")
        os.close(writing)
        async with cutting(running_server, once(0)) as proxy:
            async with AsyncInterpreter(proxy.url, api_key=running_server.key) as client:
                with os.fdopen(reading, "rb") as pipe, pytest.raises(ConnectionLost):
                    await client.upload_files(session.id, {"pipe": pipe})
        assert len(proxy.requests) == 1


async def test_input_that_may_be_lost_is_told_once(running_server: RunningServer) -> None:
    # Less than the first input has.
    async with cutting(running_server, once(10), of_client=True) as proxy:
        async with AsyncInterpreter(running_server.url, api_key=running_server.key) as direct:
            run = await direct.start_run(["cat"], interactive=True)
            async with AsyncInterpreter(proxy.url, api_key=running_server.key) as client:
                async with await client.stream_log(run.id) as log:
                    await log.write("first\n")
                    with pytest.raises(ConnectionLost, match="input"):
                        await entries(log)
                    await log.write("second\n")
                    await log.end_input()
                    rest = await entries(log)
        assert proxy.cut == 1
        assert output(rest) == b"second\n"


async def test_input_that_arrived_is_not_lost_with_its_connection(running_server: RunningServer) -> None:
    # Less than the program prints when it has its input.
    async with cutting(running_server, once(1500)) as proxy:
        async with AsyncInterpreter(running_server.url, api_key=running_server.key) as direct:
            run = await direct.start_run(["sh", "-c", "a=$(cat); sleep 0.5; printf %2000s; echo $a"], interactive=True)
            async with AsyncInterpreter(proxy.url, api_key=running_server.key) as client:
                async with await client.stream_log(run.id) as log:
                    await log.write("first")
                    await log.end_input()
                    found = await entries(log)
        assert proxy.cut == 1
        assert output(found).strip() == b"first"


async def test_a_reader_that_is_too_slow_misses_nothing(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="off", ws_buffer_frames="8")
    code = "input()\nimport sys\nfor number in range(600): sys.stdout.write(f'{number:04d}' * 4096)\n"
    async with AsyncInterpreter(server.url, api_key=server.key) as client:
        run = await client.start_run(["python3", "-c", code], interactive=True)
        async with await client.stream_log(run.id) as slow, await client.stream_log(run.id) as other:
            while not isinstance(await slow.read(), ProgramStart):
                pass
            await other.write("\n")
            await client.wait_run(run.id)
            found = await entries(slow)
        metrics = await client.admin.metrics()
    assert sum(series.value for series in metrics["sandbox_ws_queue_drops_total"]) > 0
    assert not any(isinstance(entry, LogGap) for entry in found)
    assert output(found) == b"".join(b"%04d" % number * 4096 for number in range(600))


async def test_a_log_goes_on_with_the_next_server(start_server: Callable[..., RunningServer]) -> None:
    server = start_server()
    async with AsyncInterpreter(server.url, api_key=server.key, patience=60) as client:
        run = await client.start_run(["sh", "-c", "echo before; sleep 600"], timeout=600)
        async with await client.stream_log(run.id) as log:
            while not isinstance(entry := await log.read(), LogChunk):
                pass
            assert entry.data == b"before\n"
            await asyncio.to_thread(server.stop, 9)
            start_server("--port", str(server.address[1]), data_dir=server.data_dir)
            rest = await entries(log)
        end = rest[-1]
        assert isinstance(end, RunEnd)
        assert (end.phase, end.reason_code, output(rest)) == (Phase.FAILED, "server_restarted", b"")
        assert (await client.get_run(run.id)).phase is Phase.FAILED


async def test_a_call_that_is_cancelled_before_it_knows_its_run(running_server: RunningServer) -> None:
    asked = asyncio.Event()

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(*running_server.address)
        to_server.write(await reader.readuntil(b"\r\n\r\n"))
        sending = asyncio.create_task(_hand_on(reader, to_server))
        first = await from_server.read(65536)
        # The run is there; the call is cancelled while its answer is on the way.
        asked.set()
        await asyncio.sleep(0.3)
        writer.write(first)
        await _hand_on(from_server, writer)
        await sending

    label = {"test": "cancelled-early"}
    proxy = await asyncio.start_server(slowly, "127.0.0.1", 0)
    async with proxy:
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with AsyncInterpreter(url, api_key=running_server.key) as client:
            call = asyncio.create_task(client.run(["sleep", "600"], timeout=600, labels=label))
            await asyncio.wait_for(asked.wait(), 60)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
    async with AsyncInterpreter(running_server.url, api_key=running_server.key) as direct:
        run = next(run for run in (await direct.list_runs(limit=1000)).items if run.labels == label)
        assert (await direct.wait_run(run.id)).phase is Phase.KILLED


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


# Servers that are busy


def run_answer(**fields: Any) -> bytes:
    return answer(json.dumps({"run_id": "run-1", "phase": "completed", **fields}).encode())


def busy(pause: str, code: str = "queue_full", status: str = "429 Too Many Requests") -> bytes:
    body = {"error": {"code": code, "message": "busy", "details": {}, "retryable": True, "request_id": "r"}}
    return answer(json.dumps(body).encode(), status, more=f"Retry-After: {pause}\r\n" if pause else "")


async def test_retry_after_is_heeded() -> None:
    async with peer() as server, AsyncInterpreter(server.url, api_key="a-key") as client:
        server.answers[f"{PREFIX}/runs"] = [busy("1"), busy("0"), run_answer()]
        started = time.monotonic()
        assert (await client.start_run(["true"])).id == "run-1"
        assert time.monotonic() - started >= 1
        keys = {_header(head.encode(), b"idempotency-key") for head in server.heads}
        assert (len(server.heads), len(keys)) == (3, 1)
        assert all("X-Tidebox-Source: SDK" in head for head in server.heads)


async def test_retry_after_as_a_date() -> None:
    moment = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2))
    async with peer() as server, AsyncInterpreter(server.url, api_key="a-key") as client:
        server.answers[f"{PREFIX}/runs/run-1"] = [busy(moment), run_answer()]
        started = time.monotonic()
        await client.get_run("run-1")
        assert 0.5 < time.monotonic() - started < 15


@pytest.mark.parametrize("pause", ["3600", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT", "", "soon", "-1", "nan"])
async def test_a_pause_that_is_too_long_or_none_is_the_callers(pause: str) -> None:
    async with peer() as server, AsyncInterpreter(server.url, api_key="a-key") as client:
        server.answers[f"{PREFIX}/runs"] = [busy(pause)]
        started = time.monotonic()
        with pytest.raises(Overloaded) as caught:
            await client.start_run(["true"])
        assert time.monotonic() - started < 10
        assert len(server.heads) == 1
        assert caught.value.retryable
        if pause == "3600":
            assert caught.value.details["retry_after"] == 3600


async def test_patience_has_an_end() -> None:
    async with peer() as server, AsyncInterpreter(server.url, api_key="a-key", patience=0.5) as client:
        with pytest.raises(ConnectionLost):
            await client.get_run("run-1")
        assert 2 <= len(server.heads) <= 5
    async with peer() as server, AsyncInterpreter(server.url, api_key="a-key", patience=0) as client:
        with pytest.raises(ConnectionLost):
            await client.get_run("run-1")
        assert len(server.heads) == 1


async def test_a_server_that_is_unwell_is_told_at_once() -> None:
    async with peer() as server, AsyncInterpreter(server.url, api_key="a-key") as client:
        server.answers[f"{PREFIX}/health"] = [answer(b'{"status": "draining"}', "503 Service Unavailable")]
        with pytest.raises(ServerUnreachable):
            await client.health()
        assert len(server.heads) == 1


async def test_a_proxy_without_its_server_is_asked_again() -> None:
    async with peer() as server, AsyncInterpreter(server.url, api_key="a-key") as client:
        server.answers[f"{PREFIX}/runs/run-1"] = [answer(b"<html>", "502 Bad Gateway"), run_answer()]
        assert (await client.get_run("run-1")).ok


# Servers that are hostile


NESTED = b'{"run_id": "run-1", "phase": "completed", "labels": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
ENVELOPE = {"code": "not_found", "message": "m", "retryable": False}


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (answer(b"<html>"), ServerProtocolError),
        (answer(b""), ServerProtocolError),
        (answer(b"[]"), ServerProtocolError),
        (answer(b'{"run_id": 1, "phase": "completed"}'), ServerProtocolError),
        (answer(b'{"run_id": "run-1", "phase": "dancing"}'), ServerProtocolError),
        (answer(b'{"run_id": "run-1", "phase": "completed", "started_at": "now"}'), ServerProtocolError),
        (answer(b'{"run_id": "\xff", "phase": "completed"}'), ServerProtocolError),
        (answer(NESTED), ServerProtocolError),
        (answer(b" " * 5_000), ServerProtocolError),
        (answer(b"", "307 Temporary Redirect", more="Location: http://elsewhere.invalid/\r\n"), ServerRefused),
        (answer(b"nonsense", "418 I'm a Teapot"), ServerRefused),
        (answer(b"x" * 2_000_000, "404 Not Found"), NotFound),
        (answer(json.dumps({"error": {**ENVELOPE, "details": {"message": 1, "self": 2, "code": []}}}).encode(),
                "404 Not Found"), NotFound),
        (answer(json.dumps({"error": {**ENVELOPE, "code": "made_up"}}).encode(), "400 Bad Request"), ServerRefused),
        (answer(json.dumps({"error": {**ENVELOPE, "retryable": True}}).encode(), "404 Not Found"), InternalError),
        (answer(json.dumps({"error": {**ENVELOPE, "details": [1]}}).encode(), "404 Not Found"), NotFound),
        (b"nonsense\r\n\r\n", ConnectionLost),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", ConnectionLost),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000, ConnectionLost),
        (b"", ConnectionLost),
    ],
)  # fmt: skip
async def test_answers_that_are_none(said: bytes, kind: type[TideboxError], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MAX_ANSWER_BYTES", 4_000)
    async with peer() as server, AsyncInterpreter(server.url, api_key="a-key", patience=0, timeout=20) as client:
        server.answers[f"{PREFIX}/runs/run-1"] = [said]
        with pytest.raises(kind) as caught:
            await client.get_run("run-1")
        assert type(caught.value) is kind


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


async def _trickle(writer: asyncio.StreamWriter, piece: bytes, pause: float) -> None:
    """Send the same for ever, while a client still takes it."""
    try:
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
    except OSError:
        pass


@pytest.fixture
async def endless() -> AsyncIterator[Callable[..., Any]]:
    """Starts servers whose answers never end; their address."""
    servers: list[asyncio.Server] = []
    tasks: set[asyncio.Task[None]] = set()

    async def start(head: bytes, piece: bytes = b"", pause: float = 0.0) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(head)
                await _trickle(writer, piece, pause)
            except asyncio.CancelledError:
                pass
            finally:
                writer.transport.abort()

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        return f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"

    yield start
    for task in tasks:
        task.cancel()
    for server in servers:
        server.close()
        await server.wait_closed()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "piece", "pause"),
    [
        (b"", b"", 0.1),  # silence
        (b"", b"x", 0.1),
        (CHUNKED, b"1\r\n \r\n", 0.1),
        (b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", 0.1),
    ],
)
async def test_an_answer_that_never_ends(endless: Callable[..., Any], head: bytes, piece: bytes, pause: float) -> None:
    url = await endless(head, piece, pause)
    async with AsyncInterpreter(url, api_key="a-key", timeout=0.5, patience=0) as client:
        started = time.monotonic()
        with pytest.raises(ConnectionLost):
            await client.get_run("run-1")
        assert time.monotonic() - started < 15


async def test_a_file_that_never_ends(endless: Callable[..., Any], tmp_path: Path) -> None:
    url = await endless(CHUNKED, b"10000\r\n" + bytes(65536) + b"\r\n")
    async with AsyncInterpreter(url, api_key="a-key", patience=0) as client:
        for to in (tmp_path / "file", io.BytesIO()):
            with pytest.raises(PayloadTooLarge):
                await client.download_artifact("run-1", "file", to, max_bytes=1_000_000)
        with pytest.raises(PayloadTooLarge):
            await client.download_artifact("run-1", "file", max_bytes=1_000_000)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        (answer(b"other", more='ETag: "2"\r\n'), Conflict),
        (answer(b"half", "206 Partial Content", more="Content-Range: bytes 0-3/8\r\n"), ServerProtocolError),
        (answer(b"half", "206 Partial Content"), ServerProtocolError),
    ],
)
async def test_a_download_that_goes_on_elsewhere(second: bytes, kind: type[TideboxError], tmp_path: Path) -> None:
    path = f"{PREFIX}/runs/run-1/artifacts/file"
    async with peer() as server, AsyncInterpreter(server.url, api_key="a-key") as client:
        server.answers[path] = [answer(b"half", length=8, more='ETag: "1"\r\n'), second]
        with pytest.raises(kind):
            await client.download_artifact("run-1", "file", tmp_path / "file")
        assert "Range: bytes=4-" in server.heads[1]
        assert 'If-Range: "1"' in server.heads[1]
    assert os.listdir(tmp_path) == []


async def test_a_download_that_cannot_go_on(tmp_path: Path) -> None:
    async with peer() as server, AsyncInterpreter(server.url, api_key="a-key") as client:
        for tag in ("", 'ETag: W/"1"\r\n'):
            server.answers[f"{PREFIX}/runs/run-1/artifacts/file"] = [answer(b"half", length=8, more=tag)]
            with pytest.raises(ConnectionLost):
                await client.download_artifact("run-1", "file", tmp_path / "file")
        assert len(server.heads) == 2


# Streams of hostile servers


def chunk(seq: int, text: str) -> dict[str, Any]:
    return {"type": "stdout", "encoding": "utf8", "data": text, "seq": seq}


def event(seq: int, name: str, **data: Any) -> dict[str, Any]:
    return {"type": "event", "event": name, "data": data, "seq": seq}


def saying(*frames: dict[str, Any] | str) -> Callable[[Talk], None]:
    """A connection on which this is said, and which then ends without a word."""

    def talk(connection: Talk) -> None:
        for frame in frames:
            connection.say_raw(frame if isinstance(frame, str) else json.dumps(frame))
        connection.hang_up()

    return talk


async def read_all(url: str, **options: Any) -> list[LogEntry]:
    async with AsyncInterpreter(url, api_key="a-key", **options) as client:
        async with await client.stream_log("run-1") as log, asyncio.timeout(60):
            return [entry async for entry in log]


END = event(9, "end", phase="completed", exit_code=0)


async def test_frames_that_come_twice_out_of_order_or_not_at_all() -> None:
    resumed = event(6, "resume", requested_from_seq=4, delivered_from_seq=6, lost_count=2)
    handlers = (
        saying(chunk(1, "a"), chunk(2, "b")),
        # Again, and then with a hole: that may be on the disk, and the next connection shows that it is.
        saying(chunk(1, "A"), chunk(2, "B"), chunk(3, "c"), chunk(5, "e")),
        saying(resumed, chunk(6, "f"), {"type": "heartbeat", "ts": "x", "seq": 7}),
        saying(chunk(6, "F"), {"type": "unheard-of", "seq": 8}, event(4, "unheard-of"), END),
    )
    with serving(*handlers) as server:
        found = await read_all(server.url)
    assert output(found) == b"abcf"
    assert [entry for entry in found if isinstance(entry, LogGap)] == [LogGap(2, 6)]
    assert isinstance(found[-1], RunEnd)


async def test_numbers_that_no_entry_has_are_no_gap() -> None:
    resumed = event(1_000_001, "resume", requested_from_seq=2, delivered_from_seq=1_000_001, lost_count=0)
    handlers = (
        saying(event(1, "phase", phase="queued")),
        saying(resumed, event(1_000_001, "phase", phase="queued"), chunk(1_000_002, "a"), END | {"seq": 1_000_003}),
    )
    with serving(*handlers) as server:
        found = await read_all(server.url)
    assert not [entry for entry in found if isinstance(entry, LogGap)]
    assert output(found) == b"a"


@pytest.mark.parametrize(
    "frame",
    [
        "nonsense",
        "[]",
        '{"type": "stdout", "seq": "1"}',
        '{"type": "stdout", "seq": 1, "data": 5}',
        '{"type": "stdout", "seq": 1, "encoding": "base64", "data": "?"}',
        '{"type": "stdout", "seq": 1, "encoding": "rot13", "data": ""}',
        '{"type": "event", "event": "phase", "seq": 1, "data": {"phase": "dancing"}}',
        '{"type": "event", "event": "end", "seq": 1, "data": []}',
        '{"type": "event", "event": "error", "seq": 1}',
    ],
)
async def test_frames_that_are_none(frame: str) -> None:
    with serving(saying(frame)) as server:
        with pytest.raises(ServerProtocolError):
            await read_all(server.url)


async def test_a_stream_that_is_always_cut_ends() -> None:
    handlers: list[Callable[[Talk], None]] = [saying() for _ in range(100)]
    with serving(*handlers) as server:
        with pytest.raises(ConnectionLost):
            await read_all(server.url, patience=1)


async def test_a_connection_that_is_lost_as_soon_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:

    async def connect_and_lose(*arguments: Any, **options: Any) -> Any:
        connection = await connect(*arguments, **options)
        connection.transport.abort()
        await connection.wait_closed()
        return connection

    monkeypatch.setattr(http_module, "Connect", connect_and_lose)
    handlers: list[Callable[[Talk], object]] = [Talk.wait_closed] * 100
    with serving(*handlers) as server:
        with pytest.raises(ConnectionLost):
            await read_all(server.url, patience=0.3)


async def test_a_stream_that_says_nothing_new_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "SILENCE_SECONDS", 0.3)

    def repeat(connection: Talk) -> None:
        while True:
            connection.say_raw(json.dumps(chunk(1, "again")))
            time.sleep(0.01)

    with serving(repeat, repeat, repeat, repeat, repeat, repeat) as server:
        async with AsyncInterpreter(server.url, api_key="a-key", patience=0.6) as client:
            async with await client.stream_log("run-1") as log, asyncio.timeout(60):
                assert isinstance(await log.read(), LogChunk)
                with pytest.raises(ConnectionLost, match="nothing new"):
                    await log.read()


async def test_a_server_that_has_nothing_to_tell_is_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "SILENCE_SECONDS", 0.2)
    silent: list[Callable[[Talk], object]] = [Talk.wait_closed] * 5
    with serving(*silent, saying(event(1, "end", phase="completed"))) as server:
        assert isinstance((await read_all(server.url, patience=0.3))[-1], RunEnd)


async def test_a_server_that_stops_is_waited_for() -> None:
    stopping = event(1, "error", code="shutting_down", message="connect again later", details={})
    end = event(3, "end", phase="completed")
    with serving(saying(chunk(1, "a"), stopping), saying(chunk(2, "b"), end)) as server:
        assert output(await read_all(server.url)) == b"ab"


async def test_what_is_refused_is_raised() -> None:
    refusal = event(0, "error", code="conflict", message="m", details={"message": "x", "reason": "closed"})
    with serving(saying(refusal, event(1, "end", phase="completed"))) as server:
        async with AsyncInterpreter(server.url, api_key="a-key") as client:
            async with await client.stream_log("run-1") as log:
                with pytest.raises(Conflict) as caught:
                    await log.read()
                assert caught.value.details["reason"] == "closed"
                assert isinstance(await log.read(), RunEnd)
