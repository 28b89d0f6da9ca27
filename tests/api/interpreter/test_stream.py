"""The log stream, as the document has it, over real sockets."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
import websockets.exceptions
from websockets.sync.client import connect

from tests.api.conftest import NO_CELLS, RunningServer
from tests.api.interpreter.service import JWT_SECRET, PREFIX, token
from tests.api.interpreter.streams import EVENTS, Frame, Stream, Streams, check, is_event, output, saying
from tidebox.api.signed_urls import UrlSigner

StartServer = Callable[..., RunningServer]
StreamsOf = Callable[..., Streams]
LINES = "import time\nfor number in range(5): print(number); time.sleep(0.05)"


def refusal(url: str, **headers: str) -> tuple[int, Frame]:
    """What an upgrade is refused with."""
    with (
        pytest.raises(websockets.exceptions.InvalidStatus) as caught,
        connect(url, additional_headers=headers, open_timeout=60),
    ):
        pass
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"]


def stream_url(server: RunningServer, run_id: str, query: str = "") -> str:
    return server.url.replace("http", "ws", 1) + f"{PREFIX}/runs/{run_id}/stream{query}"


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(name)}"}


# Frames


def test_a_stream_from_its_first_frame_to_its_end(streams: Streams) -> None:
    code = "import sys; print('hello'); print('wrong', file=sys.stderr); sys.exit(3)"
    run = streams.python(code)
    frames = streams.frames(run["run_id"])
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    assert [frame["data"]["phase"] for frame in frames if is_event(frame, "phase")] == ["starting", "running"]
    assert [is_event(frame, "start") for frame in frames].count(True) == 1
    assert output(frames, "stdout") == b"hello\n"
    assert output(frames, "stderr") == b"wrong\n"
    end = frames[-1]["data"]
    assert (end["phase"], end["exit_code"], end["reason_code"]) == ("failed", 3, "exit_code_nonzero")
    assert streams.shown(run["run_id"])["phase"] == "failed"


def test_output_comes_while_the_program_runs(streams: Streams) -> None:
    run = streams.python("import time; print('a', end=''); time.sleep(30)", timeout_sec=40)
    with streams.stream(run["run_id"]) as stream:
        started = time.monotonic()
        frames = stream.until("stdout")
        assert (frames[-1]["data"], frames[-1]["encoding"]) == ("a", "utf8")
        assert time.monotonic() - started < 25
        streams.cancel(run["run_id"])
        end = stream.rest()[-1]["data"]
    assert (end["phase"], end["message"]) == ("killed", "canceled_by_user")


def test_what_is_not_utf8_comes_as_base64_and_unharmed(streams: Streams) -> None:
    code = (
        "import sys, time\n"
        "sys.stdout.buffer.write(bytes(range(256)) * 1000); sys.stdout.flush(); time.sleep(0.1)\n"
        "sys.stdout.buffer.write('é€😀'.encode() * 20000); sys.stdout.flush(); time.sleep(0.1)\n"
        "sys.stdout.buffer.write(b'\\x01' * 100000)"
    )
    frames = streams.frames(streams.python(code)["run_id"])
    assert output(frames) == bytes(range(256)) * 1000 + "é€😀".encode() * 20000 + b"\x01" * 100000
    assert {frame["encoding"] for frame in frames if frame["type"] == "stdout"} == {"utf8", "base64"}


def test_a_character_written_in_two_halves_is_one(streams: Streams) -> None:
    code = "import os, time; os.write(1, b'\\xe2\\x82'); os.write(1, b'\\xac\\n'); time.sleep(0.1)"
    frames = streams.frames(streams.python(code)["run_id"])
    assert [frame["data"] for frame in frames if frame["type"] == "stdout"][-1].endswith("€\n")


def test_the_log_is_cut_at_its_cap_and_the_run_goes_on(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", max_log_bytes="1000")
    streams = streams_of(server)
    run = streams.python("print('x' * 5000); import sys; sys.exit(7)")
    frames = streams.frames(run["run_id"])
    assert output(frames) == b"x" * 1000
    assert [frame["reason"] for frame in frames if frame["type"] == "truncated"] == ["log_cap"]
    end = frames[-1]["data"]
    assert (end["phase"], end["exit_code"], end["log_bytes"], end["log_truncated"]) == ("failed", 7, 1000, True)


def test_heartbeats_are_numbered_like_everything_else(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", ws_heartbeat_sec="0.2")
    streams = streams_of(server)
    started = time.monotonic()
    run = streams.python("import time; time.sleep(1.2)")
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(streams.frames, [run["run_id"]] * 2))
    assert both[0] == both[1] == streams.frames(run["run_id"])
    beats = [frame for frame in both[0] if frame["type"] == "heartbeat"]
    assert 3 <= len(beats) <= (time.monotonic() - started) / 0.2 + 1
    assert [frame["seq"] for frame in both[0]] == list(range(1, len(both[0]) + 1))


def test_a_queued_run_is_streamed_from_the_queue_on(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", max_concurrent_runs="1")
    streams = streams_of(server)
    blocker = streams.python("import time; time.sleep(30)")
    waiting = streams.python("print('at last')")
    assert waiting["phase"] == "queued"
    with streams.stream(waiting["run_id"]) as stream:
        assert stream.next()["data"] == {"phase": "queued"}
        streams.cancel(blocker["run_id"])
        assert output(stream.rest()) == b"at last\n"


# Many, late and returning readers


def test_five_megabytes_reach_three_at_once_unharmed(streams: Streams) -> None:
    code = (
        "import hashlib, sys\n"
        "for number in range(5120): sys.stdout.write(hashlib.sha512(b'%d' % number).hexdigest() * 8)\n"
    )
    run = streams.python(code)
    with ThreadPoolExecutor() as pool:
        first, second, third = pool.map(streams.frames, [run["run_id"]] * 3)
    assert first == second == third
    written = output(first)
    assert len(written) == 5120 * 1024
    assert written == b"".join(hashlib.sha512(b"%d" % number).hexdigest().encode() * 8 for number in range(5120))
    assert not any(is_event(frame, "resume") for frame in first)
    assert streams.frames(run["run_id"]) == first


def test_a_late_reader_gets_the_same_frames(streams: Streams) -> None:
    run = streams.python(LINES)
    early = streams.frames(run["run_id"])
    assert streams.frames(run["run_id"]) == early
    assert streams.frames(run["run_id"], "?from_seq=3") == early[2:]
    assert streams.frames(run["run_id"], "?from_seq=0") == early
    assert streams.frames(run["run_id"], "?from_seq=99999") == early[-1:]
    assert streams.frames(run["run_id"], "?tail=true") == early[-1:]


def test_a_client_that_reconnects_goes_on_where_it_was(streams: Streams) -> None:
    run = streams.python(LINES)
    with streams.stream(run["run_id"]) as stream:
        first = stream.until("stdout")
    rest = streams.frames(run["run_id"], f"?from_seq={first[-1]['seq'] + 1}")
    assert [frame["seq"] for frame in first + rest] == list(range(1, len(first + rest) + 1))
    assert output(first + rest) == b"0\n1\n2\n3\n4\n"


def test_tail_gives_live_frames_only(streams: Streams) -> None:
    run = streams.python(saying("before") + "; input(); print('after')", interactive=True)
    with streams.stream(run["run_id"]) as stream, ThreadPoolExecutor() as pool:
        stream.until("stdout")
        with streams.stream(run["run_id"], "?tail=true") as tail:
            reading = pool.submit(tail.rest)
            time.sleep(0.2)
            stream.send(type="stdin", data="\n")
            frames = reading.result()
    assert output(frames) == b"after\n"
    assert is_event(frames[-1], "end")


def test_the_hint_of_the_request_is_in_the_url(streams: Streams) -> None:
    run = streams.python("print(1)", resume_from_seq=2)
    with connect(run["log_stream_url"], open_timeout=60) as socket:
        assert Stream(socket).rest()[0]["seq"] == 2


def test_a_slow_reader_loses_the_oldest_and_is_told(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", ws_buffer_frames="8")
    streams = streams_of(server)
    code = "import sys\ninput()\nfor number in range(600): sys.stdout.write(f'{number:04d}' * 4096)\n"
    run = streams.python(code, interactive=True)
    with streams.stream(run["run_id"]) as stream:
        first = stream.until("start")
        with streams.stream(run["run_id"]) as other:
            other.send(type="stdin", data="\n")
            # Reads nothing meanwhile, and the run does not wait for it.
            started = time.monotonic()
            assert streams.wait(run["run_id"])["phase"] == "completed"
            assert time.monotonic() - started < 15
        frames = first + stream.rest()
    gaps = [frame for frame in frames if is_event(frame, "resume")]
    assert gaps
    following = 1
    for frame in frames:
        if is_event(frame, "resume"):
            assert frame["data"]["requested_from_seq"] == following
            assert frame["data"]["lost_count"] == frame["data"]["delivered_from_seq"] - following > 0
            assert frame["seq"] == frame["data"]["delivered_from_seq"]
            following = frame["seq"]
        else:
            assert frame["seq"] == following
            following += 1
    dropped = streams.metric('sandbox_ws_queue_drops_total{component="ws",reason="drop_oldest"}')
    assert dropped >= sum(gap["data"]["lost_count"] for gap in gaps)
    # What was dropped on the way is still in the log.
    again = streams.frames(run["run_id"], f"?from_seq={gaps[0]['data']['requested_from_seq']}")
    assert not any(is_event(frame, "resume") for frame in again)
    assert output(streams.frames(run["run_id"])) == b"".join(b"%04d" % number * 4096 for number in range(600))


# Who may


def test_a_signed_url_needs_no_other_credential(streams: Streams) -> None:
    run = streams.python("print('signed')")
    with connect(run["log_stream_url"], open_timeout=60) as socket:
        assert output(Stream(socket).rest()) == b"signed\n"
    shown = streams.shown(run["run_id"])["log_stream_url"]
    with connect(shown, open_timeout=60) as socket:
        assert output(Stream(socket).rest()) == b"signed\n"


def test_both_forms_of_the_expiry_are_understood(streams: Streams) -> None:
    run = streams.python("print('x')")
    parts = urlsplit(run["log_stream_url"])
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    moment = datetime.datetime.fromisoformat(query["exp"])
    for form in (str(int(moment.timestamp())), moment.strftime("%Y-%m-%dT%H:%M:%S+00:00"), moment.isoformat()):
        url = parts._replace(query=urlencode({**query, "exp": form})).geturl()
        with connect(url, open_timeout=60) as socket:
            Stream(socket).rest()


def test_a_url_that_was_not_signed_so_is_refused(streams: Streams, running_server: RunningServer) -> None:
    run, other = streams.python("print('x')"), streams.python("print('y')")
    parts = urlsplit(run["log_stream_url"])
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    later = str(int(time.time()) + 3600)
    expired = UrlSigner(running_server.key, ttl=-100).url("ws://x", run["run_id"])
    for path, wrong in (
        (parts.path, {**query, "exp": later}),
        (parts.path, {**query, "token": query["token"][:-1] + "é"}),
        (parts.path, {**query, "token": ""}),
        (parts.path, {"token": query["token"]}),
        (parts.path, {**query, "exp": "tomorrow"}),
        (parts.path, {**query, "exp": "9" * 40}),
        (parts.path, {**query, "exp": "2026-01-01T00:00:00"}),
        (parts.path.replace(run["run_id"], other["run_id"]), query),
        (parts.path, {name: values[0] for name, values in parse_qs(urlsplit(expired).query).items()}),
    ):
        status, error = refusal(parts._replace(path=path, query=urlencode(wrong)).geturl())
        assert (status, error["code"]) == (401, "unauthorized")
    # With another credential it is only a URL.
    url = parts._replace(query=urlencode({**query, "token": "wrong"})).geturl()
    with connect(url, additional_headers=running_server.headers, open_timeout=60) as socket:
        Stream(socket).rest()


def test_signing_can_be_turned_off(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", ws_signed_urls="no")
    streams = streams_of(server)
    run = streams.python("print('x')")
    assert "token" not in run["log_stream_url"]
    assert refusal(run["log_stream_url"])[0] == 401
    forged = UrlSigner(server.key, ttl=60).url(server.url, run["run_id"])
    assert refusal(forged)[0] == 401
    with connect(run["log_stream_url"], additional_headers=server.headers, open_timeout=60) as socket:
        Stream(socket).rest()


def test_only_who_may_see_a_run_may_read_its_log(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", auth_jwt_secret=JWT_SECRET)
    ada = streams_of(server, "ada")
    run = ada.python("print('hers')")
    assert output(ada.frames(run["run_id"])) == b"hers\n"
    assert output(streams_of(server, "root", "sandbox_admin").frames(run["run_id"])) == b"hers\n"
    url = stream_url(server, run["run_id"])
    assert refusal(url)[0] == 401
    assert refusal(url, **{"X-API-KEY": "wrong"})[0] == 401
    status, error = refusal(url, **bearer("bob"))
    assert (status, error["code"]) == (404, "not_found")
    assert refusal(stream_url(server, "run-nothing"), **bearer("ada"))[0] == 404


def test_the_streams_of_one_user_are_counted(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", auth_jwt_secret=JWT_SECRET, ws_max_streams_per_user="2")
    ada, bob = streams_of(server, "ada"), streams_of(server, "bob")
    run, bobs = (each.python("import time; time.sleep(30)") for each in (ada, bob))
    url = stream_url(server, run["run_id"])
    with ada.stream(run["run_id"]) as first, ada.stream(run["run_id"]) as second:
        first.next(), second.next()
        status, error = refusal(url, **bearer("ada"))
        assert (status, error["code"], error["details"]["quota"]) == (429, "quota_exceeded", "streams")
        with bob.stream(bobs["run_id"]) as other:
            other.next()
    deadline = time.monotonic() + 30
    while True:
        try:
            with ada.stream(run["run_id"]) as again:
                again.next()
            break
        except websockets.exceptions.InvalidStatus:
            assert time.monotonic() < deadline
    for each, started in ((ada, run), (bob, bobs)):
        each.cancel(started["run_id"])


# Bad input


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?from_seq=-1", "from_seq"),
        ("?from_seq=x", "from_seq"),
        ("?from_seq=", "from_seq"),
        ("?from_seq=1e3", "from_seq"),
        ("?from_seq=99999999999999999999", "from_seq"),
        ("?tail=maybe", "tail"),
        ("?tail=true&from_seq=1", "tail"),
        ("?from_seq=1&from_seq=2", None),
        ("?" + "&".join(f"x{number}=1" for number in range(100)), None),
        ("?x=%ff", None),
    ],
)
def test_a_query_that_makes_no_sense(streams: Streams, query: str, field: str | None) -> None:
    run = streams.python("print('x')")
    status, error = refusal(stream_url(streams.server, run["run_id"], query), **streams.credential)
    assert (status, error["code"]) == (400, "invalid_request")
    assert error["details"].get("field") == field


def test_the_path_without_a_websocket(streams: Streams, running_server: RunningServer) -> None:
    run = streams.python("print('x')")
    answer = streams.http.get(f"/runs/{run['run_id']}/stream")
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
    assert httpx2.get(f"{running_server.url}{PREFIX}/runs/{run['run_id']}/stream", timeout=60).status_code == 401


@pytest.mark.parametrize(
    "message",
    [
        '{"type":"stdin","data":"\\ud800"}',
        '{"type":"stdin","data":"?","encoding":"base64"}',
        "",
        "null",
        "[]",
        "{}",
        '{"type":"execute"}',
        '{"type":"stdin"}',
        '{"type":"stdin","data":1}',
        b"\x00",
        "[" * 10_000,
    ],
)
def test_nonsense_is_answered_and_the_stream_goes_on(streams: Streams, message: str | bytes) -> None:
    run = streams.python("import time; time.sleep(0.5); print('there')", interactive=True)
    with streams.stream(run["run_id"]) as stream:
        stream.socket.send(message)
        frames = stream.rest()
    errors = [frame for frame in frames if is_event(frame, "error")]
    assert [error["data"]["code"] for error in errors] == ["invalid_request"]
    assert output(frames) == b"there\n"


def test_clients_that_vanish_leave_nothing_behind(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", **{**NO_CELLS, "pool_python": "1"})
    streams = streams_of(server)
    run = streams.python("import time\nfor _ in range(100): print('x' * 1000); time.sleep(0.02)")

    def vanish() -> None:
        with streams.stream(run["run_id"]) as stream:
            stream.next()
            stream.socket.socket.close()

    threads = [threading.Thread(target=vanish, daemon=True) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert streams.wait(run["run_id"])["phase"] == "completed"
    assert len(output(streams.frames(run["run_id"]))) == 100 * 1001
    deadline = time.monotonic() + 30
    while streams.metric('sandbox_ws_connections{component="ws"}'):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_frames_of_the_page_are_frames() -> None:
    page = (Path(__file__).parents[3] / "docs" / "streams.md").read_text()
    shown = [json.loads(text) for text in re.findall(r"^\| `(\{.*?\})` \|", page, re.MULTILINE)]
    for frame in shown:
        check(frame)
    assert {frame["event"] for frame in shown if frame["type"] == "event"} == EVENTS
    assert {frame["type"] for frame in shown} >= {"stdout", "heartbeat", "truncated"}
