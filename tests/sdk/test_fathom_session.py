"""What messages mean, without a connection."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.errors import (
    InternalError,
    InvalidRequest,
    LimitOutOfRange,
    NotFound,
    Overloaded,
    TideboxError,
    UnknownLanguage,
)
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome
from tidebox.protocols.fathom import Status
from tidebox.sdk.errors import ConnectionLost, ServerProtocolError, ServerRefused
from tidebox.sdk.fathom_session import FathomSession, PendingExecution, make_request


def message(kind: str, execution: str | None = None, **fields: Any) -> bytes:
    envelope = {"v": 1, "type": kind, "ts": "2026-01-01T00:00:00.000Z"}
    return json.dumps(envelope | ({} if execution is None else {"id": execution}) | fields).encode()


def begin(session: FathomSession) -> tuple[PendingExecution, str]:
    progress, frame = session.execute(make_request("print('hello')"))
    return progress, json.loads(frame)["id"]


def test_an_execute_message() -> None:
    _, frame = FathomSession().execute(
        make_request(
            "x",
            "shell",
            stdin="in",
            env={"A": "b"},
            timeout=1.5,
            memory=64 * MIB + 1,
            cpu_shares=100,
            output=7,
        )
    )
    sent = json.loads(frame)
    assert sent.pop("ts").endswith("Z")
    assert sent.pop("id").startswith("exec_")
    assert sent == {
        "v": 1,
        "type": "execute",
        "language": "shell",
        "code": "x",
        "stdin": "in",
        "env": {"A": "b"},
        "limits": {"timeout_ms": 1500, "memory_mb": 65, "cpu_shares": 100, "max_output_bytes": 7},
    }


def test_what_is_not_said_is_not_sent() -> None:
    _, frame = FathomSession().execute(make_request("x"))
    sent = json.loads(frame)
    assert set(sent) == {"v", "type", "ts", "id", "language", "code", "limits"}
    assert sent["limits"] == {"timeout_ms": 30_000, "memory_mb": 256}


def test_ids_do_not_repeat() -> None:
    session = FathomSession()
    assert len({begin(session)[1] for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"code": b"x"},
        {"code": None},
        {"code": "\ud800"},
        {"stdin": b"x"},
        {"env": {"A": 1}},
        {"env": {"A": "\udfff"}},
        {"language": 3},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"memory": "1"},
        {"memory": 1.5},
        {"output": -1},
    ],
)
def test_what_cannot_be_asked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        FathomSession().execute(make_request(**({"code": "x"} | wrong)))


def test_a_limit_is_named() -> None:
    with pytest.raises(LimitOutOfRange) as caught:
        make_request("x", timeout=-1)
    assert caught.value.details == {"field": "timeout"}


def test_from_the_request_to_the_result() -> None:
    session = FathomSession()
    progress, name = begin(session)
    for said in (
        message("ack", name),
        message("status", name, status="running"),
        message("stdout", name, data="hel"),
        message("stderr", name, data="!"),
        message("stdout", name, data=""),
        message("stdout", name, data="lo\n"),
        message("status", name, status="completed"),
    ):
        session.receive(said)
        assert not progress.known.is_over()
    usage = {"peak_memory_mb": 2, "cpu_time_ms": 120}
    session.receive(message("result", name, exit_code=0, duration_ms=1500, resource_usage=usage))
    assert progress.known.is_over()
    result = progress.known.result()
    assert (result.id, result.status, result.outcome, result.exit_code) == (name, Status.COMPLETED, Outcome.EXITED, 0)
    assert (result.stdout, result.text, result.stderr, result.ok) == ("hello\n", "hello\n", "!", True)
    assert (result.usage.wall_seconds, result.usage.cpu_seconds, result.usage.memory_peak) == (1.5, 0.12, 2 * MIB)
    assert list(progress.unread) == [("stdout", "hel"), ("stderr", "!"), ("stdout", ""), ("stdout", "lo\n")]


@pytest.mark.parametrize(
    ("status", "exit_code", "outcome"),
    [
        ("completed", 0, Outcome.EXITED),
        ("failed", 3, Outcome.EXITED),
        ("failed", None, Outcome.SIGNALED),
        ("timeout", None, Outcome.TIMEOUT),
        ("oom", None, Outcome.OOM),
        ("cancelled", None, Outcome.CANCELLED),
    ],
)
def test_every_ending(status: str, exit_code: int | None, outcome: Outcome) -> None:
    session = FathomSession()
    progress, name = begin(session)
    session.receive(message("ack", name))
    session.receive(message("status", name, status=status))
    assert progress.known.is_terminal()
    session.receive(message("result", name, exit_code=exit_code, duration_ms=1))
    result = progress.known.result()
    assert (result.outcome, result.exit_code) == (outcome, exit_code)
    assert result.ok is (status == "completed")


def test_output_over_the_limit_still_has_its_result() -> None:
    session = FathomSession()
    progress, name = begin(session)
    session.receive(message("ack", name))
    session.receive(message("stdout", name, data="xxx"))
    session.receive(message("error", name, code="OUTPUT_LIMIT", message="too much", retryable=False))
    assert not progress.known.is_over()
    session.receive(message("status", name, status="failed"))
    session.receive(message("result", name, exit_code=None, duration_ms=1))
    result = progress.known.result()
    assert (result.outcome, result.truncated, result.stdout) == (Outcome.OUTPUT_LIMIT, True, "xxx")


@pytest.mark.parametrize(
    ("code", "retryable", "kind"),
    [
        ("LANGUAGE_NOT_SUPPORTED", False, UnknownLanguage),
        ("INVALID_REQUEST", False, InvalidRequest),
        ("UNKNOWN_EXECUTION", False, NotFound),
        ("SANDBOX_OVERLOADED", True, Overloaded),
        ("INTERNAL_ERROR", True, InternalError),
        ("NETWORK_ERROR", True, InternalError),
        ("OF_A_LATER_VERSION", True, InternalError),
        ("OF_A_LATER_VERSION", False, ServerRefused),
        ("INTERNAL_ERROR", False, ServerRefused),
    ],
)
@pytest.mark.parametrize("accepted", [False, True])
def test_every_error(code: str, retryable: bool, kind: type[TideboxError], accepted: bool) -> None:
    session = FathomSession()
    progress, name = begin(session)
    if accepted:
        session.receive(message("ack", name))
    session.receive(message("error", name, code=code, message="because", retryable=retryable))
    with pytest.raises(kind, match="because") as caught:
        progress.known.result()
    assert type(caught.value) is kind
    assert caught.value.details["code"] == code
    assert caught.value.retryable is retryable


def test_a_result_needs_a_status() -> None:
    session = FathomSession()
    progress, name = begin(session)
    session.receive(message("result", name, exit_code=0, duration_ms=1))
    with pytest.raises(ServerProtocolError):
        progress.known.result()


def test_pings_are_answered_in_turn() -> None:
    session = FathomSession()
    first, frame = session.ping()
    second, _ = session.ping()
    assert json.loads(frame).keys() == {"v", "type", "ts"}
    session.receive(message("pong", load={"active_executions": 3, "queue_depth": 1}))
    assert first.answered
    assert first.load is not None
    assert (first.load.active_executions, first.load.queue_depth) == (3, 1)
    assert not second.answered
    session.receive(message("error", code="INVALID_REQUEST", message="no", retryable=False))
    assert isinstance(second.failure, InvalidRequest)


def test_a_lost_connection_fails_everything_that_waits() -> None:
    session = FathomSession()
    running, _ = begin(session)
    over, name = begin(session)
    session.receive(message("error", name, code="INTERNAL_ERROR", message="x", retryable=True))
    question, _ = session.ping()
    session.end(ConnectionLost("gone"))
    assert isinstance(running.known.failure, ConnectionLost)
    assert running.known.failure.retryable
    assert isinstance(question.failure, ConnectionLost)
    assert isinstance(over.known.failure, InternalError)
    assert running.known.failure is not question.failure


def test_a_cancel_is_only_sent_for_what_is_under_way() -> None:
    session = FathomSession()
    progress, name = begin(session)
    frame = session.cancel(progress)
    assert frame is not None
    assert json.loads(frame).items() >= {"v": 1, "type": "cancel", "id": name}.items()
    session.receive(message("status", name, status="completed"))
    session.receive(message("result", name, exit_code=0, duration_ms=1))
    assert session.cancel(progress) is None
    # The cancel crossed the result.
    session.receive(message("error", name, code="UNKNOWN_EXECUTION", message="x", retryable=False))
    assert progress.known.result().ok


def test_nothing_of_what_was_forgotten_is_kept() -> None:
    session = FathomSession()
    progress, name = begin(session)
    session.forget(progress)
    session.receive(message("stdout", name, data="x"))
    assert not progress.unread
    assert progress.known.stdout == ""


def test_messages_of_a_later_server_are_ignored() -> None:
    session = FathomSession()
    progress, name = begin(session)
    session.receive(message("weather", name, sky="blue"))
    session.receive(message("stdout", name, data="x", colour="red"))
    assert progress.known.stdout == "x"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"v":1}',
        b'{"v":2,"type":"pong"}',
        b'{"type":"pong"}',
        b'{"v":1,"type":"ack"}',
        b'{"v":1,"type":"ack","id":3}',
        b'{"v":1,"type":"status","id":"a","status":"asleep"}',
        b'{"v":1,"type":"stdout","id":"a","data":null}',
        b'{"v":1,"type":"result","id":"a","exit_code":"0","duration_ms":1}',
    ],
)
def test_what_is_not_in_the_protocol(said: bytes) -> None:
    with pytest.raises(ServerProtocolError):
        FathomSession().receive(said)


@given(st.one_of(st.binary(), st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_anything_may_come(said: bytes | str) -> None:
    try:
        FathomSession().receive(said)
    except ServerProtocolError:
        pass


pieces = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["stdout", "stderr"]), st.text()), max_size=30)


@given(pieces)
def test_every_execution_gets_its_own_output_in_order(said: list[tuple[int, str, str]]) -> None:
    session = FathomSession()
    started = [begin(session) for _ in range(4)]
    for number, stream, text in said:
        session.receive(message(stream, started[number][1], data=text))
    for number, (progress, _) in enumerate(started):
        mine = [(stream, text) for each, stream, text in said if each == number]
        assert list(progress.unread) == mine
        assert progress.known.stdout == "".join(text for stream, text in mine if stream == "stdout")
        assert progress.known.stderr == "".join(text for stream, text in mine if stream == "stderr")
