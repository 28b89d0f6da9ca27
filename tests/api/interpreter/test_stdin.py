"""The input of interactive runs: what reaches the program, and every rule that closes it."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import error_of
from tests.api.interpreter.streams import Frame, Stream, Streams, is_event, output

StartServer = Callable[..., RunningServer]
StreamsOf = Callable[..., Streams]
ECHO = "import sys\nfor line in sys.stdin: sys.stdout.write('got ' + line)\nprint('eof')"
COUNT = "import sys; print(len(sys.stdin.buffer.read()))"


def closings(frames: list[Frame]) -> list[str]:
    """Why input was closed."""
    return [frame["data"]["reason"] for frame in frames if is_event(frame, "stdin_closed")]


def errors(frames: list[Frame]) -> list[str]:
    return [frame["data"]["code"] for frame in frames if is_event(frame, "error")]


def test_input_reaches_the_program_as_it_runs(streams: Streams) -> None:
    run = streams.python(ECHO, interactive=True)
    with streams.stream(run["run_id"]) as stream:
        stream.send(type="stdin", data="one\n")
        frames = stream.until("stdout")
        assert output(frames) == b"got one\n"
        stream.send(type="stdin", encoding="base64", data=base64.b64encode("zwö\n".encode()).decode())
        stream.send(type="stdin_close")
        frames += stream.rest()
    assert output(frames) == "got one\ngot zwö\neof\n".encode()
    assert frames[-1]["data"]["exit_code"] == 0
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    assert not closings(frames)


def test_whether_a_run_takes_input_is_told(streams: Streams) -> None:
    run = streams.python(ECHO, interactive=True)["run_id"]
    assert streams.shown(run)["takes_input"] is True
    with streams.stream(run) as stream:
        stream.send(type="stdin", data="one\n")
        stream.until("stdout")
        assert streams.shown(run)["takes_input"] is True
        stream.send(type="stdin_close")
        stream.rest()
    assert "takes_input" not in streams.shown(run)
    with_none = streams.python("import time; time.sleep(30)")["run_id"]
    assert "takes_input" not in streams.shown(with_none)
    streams.cancel(with_none)


def test_bytes_arrive_unharmed(streams: Streams) -> None:
    data = bytes(range(256)) * 200
    run = streams.python("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())", interactive=True)
    with streams.stream(run["run_id"]) as stream:
        for start in range(0, len(data), 30_000):
            piece = base64.b64encode(data[start : start + 30_000]).decode()
            stream.send(type="stdin", encoding="base64", data=piece)
        stream.send(type="stdin_close")
        assert output(stream.rest()) == data


def test_input_may_come_before_the_program_runs(start_server: StartServer, streams_of: StreamsOf) -> None:
    streams = streams_of(start_server(rate_limit="off", max_concurrent_runs="1"))
    blocker = streams.python("import time; time.sleep(30)")
    run = streams.python(ECHO, interactive=True)
    with streams.stream(run["run_id"]) as stream:
        stream.send(type="stdin", data="early\n")
        stream.send(type="stdin_close")
        streams.cancel(blocker["run_id"])
        assert output(stream.rest()) == b"got early\neof\n"


@pytest.mark.parametrize(
    ("rule", "limit", "pieces"),
    [
        ("stdin_max_bytes", 10, ["12345", "123456"]),
        ("stdin_max_frame_bytes", 10, ["12345", "12345678901"]),
        # More than ever fits: how soon the second comes does not matter.
        ("stdin_bps", 10, ["12345", "12345678901"]),
    ],
)
def test_breaking_a_rule_closes_the_input(streams: Streams, rule: str, limit: int, pieces: list[str]) -> None:
    run = streams.python(COUNT, interactive=True, **{rule: limit})
    with streams.stream(run["run_id"]) as stream:
        for piece in pieces:
            stream.send(type="stdin", data=piece)
        frames = stream.rest()
    assert closings(frames) == [rule]
    assert [frame["reason"] for frame in frames if frame["type"] == "truncated"] == [rule]
    assert errors(frames) == ["conflict"]
    # What kept to the rule is there, and the program sees the end of its input.
    assert output(frames) == b"5\n"
    # Everybody sees that it was closed; only the one who did it is told off.
    assert [frame for frame in frames if not is_event(frame, "error")] == streams.frames(run["run_id"])


def test_a_pause_that_is_too_long_closes_the_input(streams: Streams) -> None:
    run = streams.python(COUNT, interactive=True, stdin_idle_timeout_sec=1)
    with streams.stream(run["run_id"]) as stream:
        started = time.monotonic()
        stream.send(type="stdin", data="abc")
        frames = stream.rest()
    assert time.monotonic() - started > 0.8
    assert closings(frames) == ["stdin_idle_timeout_sec"]
    assert output(frames) == b"3\n"


def test_input_that_keeps_coming_is_not_idle(streams: Streams) -> None:
    run = streams.python(COUNT, interactive=True, stdin_idle_timeout_sec=2)
    with streams.stream(run["run_id"]) as stream:
        for _ in range(8):
            stream.send(type="stdin", data="x")
            time.sleep(0.3)
        stream.send(type="stdin_close")
        frames = stream.rest()
    assert not closings(frames)
    assert output(frames) == b"8\n"


def test_the_server_narrows_what_a_run_asks_for(start_server: StartServer, streams_of: StreamsOf) -> None:
    streams = streams_of(start_server(rate_limit="off", interactive_max_bytes="4", interactive_max_frame_bytes="3"))
    for piece, asked, rule in (
        ("12345", {}, "stdin_max_frame_bytes"),
        ("1234", {"stdin_max_frame_bytes": 100}, "stdin_max_frame_bytes"),
        ("123", {"stdin_max_bytes": 100}, "stdin_max_bytes"),
        ("12", {"stdin_max_bytes": 1}, "stdin_max_bytes"),
    ):
        run = streams.python(COUNT, interactive=True, **asked)
        with streams.stream(run["run_id"]) as stream:
            stream.send(type="stdin", data=piece)
            stream.send(type="stdin", data=piece)
            assert closings(stream.rest()) == [rule]


def test_nothing_is_taken_after_the_input_was_closed(streams: Streams) -> None:
    run = streams.python("import sys, time; sys.stdin.read(); time.sleep(0.5)", interactive=True)
    with streams.stream(run["run_id"]) as stream:
        stream.send(type="stdin_close")
        stream.send(type="stdin", data="late")
        frames = stream.rest()
    assert errors(frames) == ["conflict"]


def test_a_run_that_is_not_interactive_takes_no_input(streams: Streams) -> None:
    run = streams.python("import sys, time; print(repr(sys.stdin.read())); time.sleep(0.5)")
    with streams.stream(run["run_id"]) as stream:
        stream.send(type="stdin", data="anybody there?")
        stream.send(type="stdin_close")
        frames = stream.rest()
    assert errors(frames) == ["conflict", "conflict"]
    assert output(frames) == b"''\n"


@pytest.mark.parametrize("field", [{}, {"stdin_max_bytes": 5}])
def test_only_spec_1_1_has_interactive_runs(streams: Streams, field: dict[str, Any]) -> None:
    answer = streams.submit(["cat"], spec_version="1.0", interactive=True, **field)
    error_of(answer, 400, "invalid_request")


def test_several_may_send_to_one_program(streams: Streams) -> None:
    code = "import sys; print(len(sys.stdin.read(1000)), end='', flush=True); sys.stdin.read()"
    run = streams.python(code, interactive=True)
    with streams.stream(run["run_id"]) as first, streams.stream(run["run_id"]) as second:
        for each in (first, second) * 5:
            each.send(type="stdin", data="x" * 100)
        assert output(first.until("stdout")) == b"1000"
        second.send(type="stdin_close")
        assert output(second.rest()) == b"1000"


def flood_with(stream: Stream) -> None:
    for _ in range(15):
        stream.send(type="stdin", data="x" * 50_000)


def test_a_program_that_does_not_read_holds_up_its_own_senders_only(streams: Streams) -> None:
    run = streams.python("import time; time.sleep(20)", interactive=True)
    quick = streams.python(ECHO, interactive=True)
    with streams.stream(run["run_id"]) as stream, ThreadPoolExecutor() as pool:
        flood = pool.submit(flood_with, stream)
        with streams.stream(quick["run_id"]) as other:
            other.send(type="stdin", data="hello\n")
            assert output(other.until("stdout")) == b"got hello\n"
            other.send(type="stdin_close")
            other.rest()
        streams.cancel(run["run_id"])
        flood.result()
        assert stream.rest()[-1]["data"]["phase"] == "killed"
