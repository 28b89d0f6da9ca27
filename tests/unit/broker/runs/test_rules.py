"""The broker's pure rules: phases, reasons, admission, quotas, idempotency keys, the cutting of output."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox import errors
from tidebox.broker.runs.admission_control import AdmissionDecision, Capacity, Demand, admit
from tidebox.broker.runs.log_hub import LogChannel
from tidebox.broker.runs.log_writer import PIECE_BYTES, LogWriter, complete_length
from tidebox.broker.runs.quotas import Quotas, day_of
from tidebox.broker.runs.run_plan import RunPlan, decode_plan, encode_plan
from tidebox.broker.runs.stdin import StdinRules
from tidebox.errors import IdempotencyConflict, InvalidRequest, Overloaded, QuotaExceeded, TideboxError
from tidebox.model.box import BoxSpec
from tidebox.model.events import OutputEvent, StreamName
from tidebox.model.idempotency import Answered, Claim, fingerprint, settle
from tidebox.model.launch import plan_code
from tidebox.model.log import Truncated
from tidebox.model.result import Outcome, Usage
from tidebox.model.run import (
    TRANSITIONS,
    UNFINISHED,
    Conclusion,
    Phase,
    Reason,
    Transition,
    conclusion_of,
    conclusion_of_failure,
    sources,
)
from tidebox.store.base import Holdings


def test_every_run_can_end_and_an_ended_one_stays_so() -> None:
    terminal = set(Phase) - UNFINISHED
    assert terminal == {Phase.COMPLETED, Phase.FAILED, Phase.TIMED_OUT, Phase.KILLED}
    assert all(TRANSITIONS[phase] & terminal for phase in UNFINISHED)
    assert sources(Phase.COMPLETED) == {Phase.RUNNING}
    assert all(phase in TRANSITIONS[source] for phase in Phase for source in sources(phase))


def test_a_step_to_the_end_says_how_it_ended_and_no_other_does() -> None:
    killed = Conclusion(phase=Phase.KILLED, reason=Reason.CANCELED_BY_USER)
    for to, conclusion in ((Phase.FAILED, None), (Phase.FAILED, killed), (Phase.RUNNING, killed)):
        with pytest.raises(ValueError, match="cannot pass"):
            Transition(to=to, at=0.0, conclusion=conclusion)


USAGE = Usage(wall_seconds=1.0)


@pytest.mark.parametrize(
    ("outcome", "exit_code", "phase", "reason"),
    [
        (Outcome.EXITED, 0, "completed", "exit_code_0"),
        (Outcome.EXITED, 3, "failed", "exit_code_nonzero"),
        (Outcome.SIGNALED, None, "failed", "killed_by_signal"),
        (Outcome.TIMEOUT, None, "timed_out", "execution_timeout"),
        (Outcome.OOM, None, "failed", "oom_killed"),
        (Outcome.OUTPUT_LIMIT, None, "failed", "log_cap_exceeded"),
        (Outcome.CANCELLED, None, "killed", "canceled_by_user"),
    ],
)
def test_the_exit_of_a_program_is_that_of_its_run(
    outcome: Outcome, exit_code: int | None, phase: str, reason: str
) -> None:
    conclusion = conclusion_of(outcome, exit_code, None, USAGE)
    assert (conclusion.phase.value, conclusion.reason.value) == (phase, reason)
    assert conclusion.message == ("canceled_by_user" if outcome is Outcome.CANCELLED else None)


def test_every_outcome_has_a_conclusion() -> None:
    for outcome in Outcome:
        assert conclusion_of(outcome, 1, 9, USAGE).phase.terminal


@pytest.mark.parametrize(
    ("error", "phase", "reason"),
    [
        (errors.QueueExpired("m"), "failed", "queue_ttl_expired"),
        (errors.ShuttingDown("m"), "killed", "server_shutdown"),
        (errors.UnknownImage("m"), "failed", "image_pull_failed"),
        (errors.InvalidImage("m"), "failed", "image_pull_failed"),
        (errors.GuaranteeMissing("m"), "failed", "policy_denied"),
        (errors.LimitOutOfRange("m"), "failed", "policy_denied"),
        (errors.RuntimeUnavailable("m"), "failed", "runtime_unavailable"),
        (errors.StartupTimeout("m"), "timed_out", "startup_timeout"),
        (errors.ProvisionFailed("m"), "failed", "provision_failed"),
        (errors.ExecFailed("m"), "failed", "exec_failed"),
        (errors.BoxGone("m"), "failed", "runtime_error"),
        (errors.InternalError("m"), "failed", "runtime_error"),
    ],
)
def test_the_failure_is_the_reason_of_the_run(error: TideboxError, phase: str, reason: str) -> None:
    conclusion = conclusion_of_failure(error)
    assert (conclusion.phase.value, conclusion.reason.value, conclusion.message) == (phase, reason, "m")


def test_the_error_tree_is_drawn_whole() -> None:
    drawn = {word for line in (errors.__doc__ or "").splitlines() for word in line.replace("│", " ").split()}
    classes = {name for name, found in vars(errors).items() if isinstance(found, type)}
    assert {name for name in classes if issubclass(getattr(errors, name), TideboxError)} <= drawn


CAPACITY = Capacity(max_concurrent=2, queue_max=2, queue_ttl=9.0, max_concurrent_per_user=1, queue_max_per_user=1)


def test_admission_starts_queues_or_refuses() -> None:
    assert admit(CAPACITY, Demand(1, 0, 0, 0)) is AdmissionDecision.START
    # Those in the queue wait for something else than this free slot.
    assert admit(CAPACITY, Demand(1, 2, 0, 0)) is AdmissionDecision.START
    assert admit(CAPACITY, Demand(1, 0, 1, 0)) is AdmissionDecision.QUEUE
    assert admit(CAPACITY, Demand(2, 1, 0, 0)) is AdmissionDecision.QUEUE
    for demand, scope in ((Demand(2, 2, 0, 0), "server"), (Demand(2, 1, 1, 1), "user")):
        with pytest.raises(Overloaded) as raised:
            admit(CAPACITY, demand)
        assert raised.value.details["scope"] == scope


def test_quotas_refuse_one_too_many() -> None:
    quotas = Quotas(unfinished_runs=2, runs_per_session=3, cpu_seconds_per_day=10.0)
    quotas.check(Holdings(1, 2, 9.9))
    Quotas().check(Holdings(10**6, 10**6, 10**6))
    for name, holdings in {
        "unfinished_runs": Holdings(2, 0, 0),
        "runs_per_session": Holdings(0, 3, 0),
        "cpu_seconds_per_day": Holdings(0, 0, 10.0),
    }.items():
        with pytest.raises(QuotaExceeded) as raised:
            quotas.check(holdings)
        assert raised.value.details["quota"] == name
    assert quotas.limited
    assert not Quotas().limited
    assert day_of(86400 * 3 + 7.5) == 86400 * 3


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(json_values)
def test_a_fingerprint_does_not_depend_on_the_order_of_fields(body: Any) -> None:
    assert fingerprint(body) == fingerprint(reordered(body))


def test_a_fingerprint_tells_bodies_apart() -> None:
    bodies: list[Any] = [{}, {"a": 1}, {"a": 2}, {"a": "1"}, {"a": None}, {"a": [1]}, {"a": True}, {"b": 1}, [], ""]
    assert len({fingerprint(body) for body in bodies}) == len(bodies)
    assert fingerprint({"a": 1.0}) == fingerprint({"a": 1})
    assert fingerprint({"a": "\ud800"}) != fingerprint({"a": "\ud801"})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("body", [float("nan"), [float("inf")], nested(100_000)])
def test_a_body_that_is_no_json_has_no_fingerprint(body: Any) -> None:
    with pytest.raises(InvalidRequest):
        fingerprint(body)


@pytest.mark.parametrize("key", ["", "x" * 129, "a\nb", "\0"])
def test_an_idempotency_key_is_short_and_printable(key: str) -> None:
    with pytest.raises(InvalidRequest):
        Claim("runs", "ada", key, "f")


def test_a_claim_is_settled_by_its_fingerprint() -> None:
    prior = Answered(claim=Claim("runs", "ada", "k", "one"), object_id="run-1", response=b"", created_at=5.0)
    assert settle(Claim("runs", "ada", "k", "one"), prior) is prior
    with pytest.raises(IdempotencyConflict):
        settle(Claim("runs", "ada", "k", "two"), prior)


async def logged(chunks: list[tuple[StreamName, bytes]], cap: int) -> tuple[list[Any], LogWriter]:
    channel = LogChannel(max_bytes=10**9)
    writer = LogWriter(channel, cap)
    for stream, data in chunks:
        writer.write(stream, data)
    writer.flush()
    return [frame.entry for frame in channel.frames_from(1, 10**9)], writer


streams = st.sampled_from(["stdout", "stderr"])
pieces = st.binary(max_size=12) | st.text(max_size=6).map(str.encode)


@given(st.lists(st.tuples(streams, pieces), max_size=12), st.integers(0, 60))
async def test_a_log_is_the_beginning_of_what_was_written(chunks: list[tuple[StreamName, bytes]], cap: int) -> None:
    entries, writer = await logged(chunks, cap)
    outputs = [entry for entry in entries if isinstance(entry, OutputEvent)]
    total = sum(len(data) for _, data in chunks)
    assert all(entry.data for entry in outputs)
    assert writer.written == sum(len(entry.data) for entry in outputs) == min(total, cap)
    assert writer.truncated == (total > cap)
    assert [entry for entry in entries if isinstance(entry, Truncated)] == [Truncated("log_cap")] * (total > cap)
    for name in ("stdout", "stderr"):
        whole = b"".join(data for stream, data in chunks if stream == name)
        kept = b"".join(entry.data for entry in outputs if entry.stream == name)
        assert whole.startswith(kept)


@given(st.text(max_size=40), st.lists(st.integers(0, 160), max_size=10))
async def test_text_is_cut_between_characters_only(text: str, cuts: list[int]) -> None:
    data = text.encode()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    entries, _ = await logged([("stdout", data[low:high]) for low, high in itertools.pairwise(places)], 10**6)
    assert "".join(entry.data.decode() for entry in entries) == text


async def test_pieces_are_small_and_whole() -> None:
    text = "ab€" * PIECE_BYTES
    entries, _ = await logged([("stdout", text.encode())], 10**9)
    assert all(len(entry.data) <= PIECE_BYTES for entry in entries)
    assert "".join(entry.data.decode() for entry in entries) == text


@given(st.binary(max_size=8))
def test_at_most_three_bytes_are_held_back(data: bytes) -> None:
    assert 0 <= len(data) - complete_length(data) <= 3


def test_a_run_plan_survives_encoding() -> None:
    work = RunPlan(
        launch=plan_code("python", "print('ö')", env={"KEY": "välue"}, arguments=["a", ""]),
        spec=BoxSpec(image="python:3.11"),
        files={"/workspace/data": bytes(range(256))},
        stdin=b"\xff",
        interactive=StdinRules(bytes_per_second=5),
        startup_timeout=1.5,
        log_cap=77,
    )
    assert decode_plan(encode_plan(work)) == work


def test_work_that_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        encode_plan(RunPlan(launch=plan_code("python", "", env={"KEY": "\ud800"}), spec=BoxSpec()))
