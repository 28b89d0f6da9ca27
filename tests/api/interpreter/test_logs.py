"""The log of a run over plain HTTP: text and JSON lines, ranges, following."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx2 as httpx
import pytest

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import JWT_SECRET, error_of
from tests.api.interpreter.streams import Frame, Streams, check, is_event, output, saying

StartServer = Callable[..., RunningServer]
StreamsOf = Callable[..., Streams]
LINES = {"Accept": "application/x-ndjson"}
BOTH = (
    "import os, time\n"
    "for number in range(3):\n"
    "    os.write(1, b'out %d\\n' % number); time.sleep(0.05); os.write(2, b'err %d\\n' % number); time.sleep(0.05)"
)
WHOLE = b"".join(b"out %d\nerr %d\n" % (number, number) for number in range(3))


def get(streams: Streams, run_id: str, query: str = "", **headers: str) -> httpx.Response:
    return streams.http.get(
        f"/runs/{run_id}/logs{query}", headers={name.replace("_", "-"): v for name, v in headers.items()}
    )


def frames_of(answer: httpx.Response) -> list[Frame]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    frames = [json.loads(line) for line in answer.text.splitlines()]
    for frame in frames:
        check(frame)
    return frames


@pytest.fixture(scope="module")
def run_id(running_server: RunningServer) -> str:
    streams = Streams.of(running_server)
    run_id: str = streams.python(BOTH)["run_id"]
    streams.wait(run_id)
    streams.http.close()
    return run_id


def test_text_is_what_was_written(streams: Streams, run_id: str) -> None:
    answer = get(streams, run_id)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["accept-ranges"] == "bytes"
    assert (answer.content, answer.headers["content-length"]) == (WHOLE, str(len(WHOLE)))
    assert get(streams, run_id, "?stream=stdout").text == "out 0\nout 1\nout 2\n"
    assert get(streams, run_id, "?stream=stderr").text == "err 0\nerr 1\nerr 2\n"


@pytest.mark.parametrize(
    ("accept", "query", "kind"),
    [
        ("*/*", "", "text/plain"),
        ("text/plain", "", "text/plain"),
        ("application/json", "", "application/x-ndjson"),
        ("application/jsonl, text/plain", "", "application/x-ndjson"),
        ("text/plain;q=1, application/x-ndjson", "", "text/plain"),
        ("image/png", "", "text/plain"),
        ("text/plain", "?format=jsonl", "application/x-ndjson"),
        ("application/x-ndjson", "?format=text", "text/plain"),
    ],
)
def test_the_form_is_asked_for(streams: Streams, run_id: str, accept: str, query: str, kind: str) -> None:
    assert get(streams, run_id, query, Accept=accept).headers["content-type"].partition(";")[0] == kind


def test_lines_are_the_frames_of_the_stream(streams: Streams, run_id: str) -> None:
    frames = frames_of(get(streams, run_id, **LINES))
    assert frames == streams.frames(run_id)
    assert frames_of(get(streams, run_id, "?from_seq=4", **LINES)) == frames[3:]
    only = frames_of(get(streams, run_id, "?stream=stderr", **LINES))
    assert output(only) == b"err 0\nerr 1\nerr 2\n"
    assert is_event(only[-1], "end")


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_one_range_of_bytes(streams: Streams, run_id: str, form: str) -> None:
    query = f"?format={form}"
    whole = get(streams, run_id, query).content
    size = len(whole)
    for asked, start, end in (
        ("bytes=0-3", 0, 4),
        ("bytes=3-", 3, size),
        ("bytes=-5", size - 5, size),
        ("bytes=7-7", 7, 8),
        (f"bytes=0-{size + 100}", 0, size),
        (f"bytes=-{size + 100}", 0, size),
    ):
        answer = get(streams, run_id, query, Range=asked)
        assert answer.status_code == 206
        assert answer.content == whole[start:end]
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
        assert answer.headers["content-length"] == str(end - start)
    assert get(streams, run_id, query, Range="lines=1-2").status_code == 200


@pytest.mark.parametrize("form", ["text", "jsonl"])
@pytest.mark.parametrize("asked", ["bytes=0-1,3-4", "bytes=", "bytes=x", "bytes=5-2", "bytes=99999999-", "bytes=-0"])
def test_ranges_that_cannot_be(streams: Streams, run_id: str, form: str, asked: str) -> None:
    answer = get(streams, run_id, f"?format={form}", Range=asked)
    error = error_of(answer, 416, "invalid_request")
    assert answer.headers["content-range"] == f"bytes */{error['details']['size']}"


def test_the_log_so_far_of_a_run_that_goes_on(streams: Streams) -> None:
    run = streams.python(saying("so far") + "; import time; time.sleep(30)")
    with streams.stream(run["run_id"]) as stream:
        stream.until("stdout")
        assert get(streams, run["run_id"]).text == "so far\n"
        frames = frames_of(get(streams, run["run_id"], **LINES))
        assert not any(is_event(frame, "end") for frame in frames)
        streams.cancel(run["run_id"])
        stream.rest()
    assert is_event(frames_of(get(streams, run["run_id"], **LINES))[-1], "end")


def test_following_goes_on_until_the_end(streams: Streams) -> None:
    run = streams.python("import time\nfor number in range(4): print(number, flush=True); time.sleep(0.2)")
    with streams.http.stream("GET", f"/runs/{run['run_id']}/logs?follow=true") as answer:
        arrivals = [(time.monotonic(), piece) for piece in answer.iter_bytes()]
    assert b"".join(piece for _, piece in arrivals) == b"0\n1\n2\n3\n"
    assert arrivals[-1][0] - arrivals[0][0] > 0.3
    followed = frames_of(get(streams, run["run_id"], "?follow=true", **LINES))
    assert followed == streams.frames(run["run_id"])


def test_a_long_log_is_complete(streams: Streams) -> None:
    run = streams.python("import sys\nfor number in range(3000): sys.stdout.write(f'{number:04d}' * 256)")
    streams.wait(run["run_id"])
    expected = b"".join(b"%04d" % number * 256 for number in range(3000))
    assert get(streams, run["run_id"]).content == expected
    assert output(frames_of(get(streams, run["run_id"], **LINES))) == expected
    part = get(streams, run["run_id"], Range="bytes=1000000-2000000")
    assert part.content == expected[1000000:2000001]


def test_a_run_that_wrote_nothing(streams: Streams) -> None:
    run = streams.python("pass")
    streams.wait(run["run_id"])
    answer = get(streams, run["run_id"])
    assert (answer.status_code, answer.content) == (200, b"")
    error_of(get(streams, run["run_id"], Range="bytes=0-"), 416, "invalid_request")


@pytest.mark.parametrize("query", ["?stream=stdin", "?format=xml", "?from_seq=-1", "?follow=maybe"])
def test_queries_that_make_no_sense(streams: Streams, run_id: str, query: str) -> None:
    error_of(get(streams, run_id, query), 400, "invalid_request")


def test_a_log_that_is_followed_has_no_ranges(streams: Streams, run_id: str) -> None:
    answer = get(streams, run_id, "?follow=true", Range="bytes=0-1")
    assert (answer.status_code, answer.content) == (200, get(streams, run_id).content)


def test_one_user_follows_only_so_many(start_server: StartServer, streams_of: StreamsOf) -> None:
    streams = streams_of(start_server(rate_limit="off", ws_max_streams_per_user="2"))
    run_id = streams.python(saying("up") + "; import time; time.sleep(60)")["run_id"]
    path = f"/runs/{run_id}/logs?follow=true"
    with streams.http.stream("GET", path) as first, streams.stream(run_id) as second:
        # Kept: an iterator that is gone closes its connection.
        text = first.iter_text()
        assert next(text) == "up\n"
        assert second.next()["seq"] == 1
        error = error_of(streams.http.get(path), 429, "quota_exceeded")
        assert error["details"]["quota"] == "streams"
        assert get(streams, run_id).text == "up\n"
    streams.cancel(run_id)
    # A client that left gives back its place in the quota as soon as the server sees it.
    deadline = time.monotonic() + 20
    while get(streams, run_id, "?follow=true").status_code != 200:
        assert time.monotonic() < deadline


def test_text_from_a_frame_on(streams: Streams, run_id: str) -> None:
    frames = [frame for frame in streams.frames(run_id) if frame["type"] in ("stdout", "stderr")]
    later = output(frames[1:])
    query = f"?from_seq={frames[1]['seq']}"
    assert get(streams, run_id, query).content == later != output(frames)
    assert get(streams, run_id, f"{query}&follow=true").content == later
    assert get(streams, run_id, query, Range="bytes=1-").content == later[1:]


def test_only_who_may_see_a_run_may_read_its_log(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", auth_jwt_secret=JWT_SECRET)
    ada, bob, root = (streams_of(server, *who) for who in (("ada",), ("bob",), ("root", "sandbox_admin")))
    run_id = ada.python("print('hers')")["run_id"]
    ada.wait(run_id)
    assert get(ada, run_id).text == get(root, run_id).text == "hers\n"
    error_of(get(bob, run_id), 404, "not_found")
    error_of(get(ada, "run-nothing"), 404, "not_found")
    error_of(httpx.get(f"{server.url}/api/v1/sandbox/runs/{run_id}/logs", timeout=60), 401, "unauthorized")
