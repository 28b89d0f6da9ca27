"""What every store keeps: one suite over all of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidebox.errors import Forbidden, IdempotencyConflict, InvalidRequest, NotFound, QuotaExceeded
from tidebox.model.artifact import Artifact
from tidebox.model.idempotency import Claim
from tidebox.model.ids import new_id
from tidebox.model.node import NOBODY
from tidebox.model.principal import Caller, Principal
from tidebox.model.result import Usage
from tidebox.model.run import (
    TRANSITIONS,
    Conclusion,
    Phase,
    Reason,
    Run,
    RunFacts,
    Transition,
    ended,
)
from tidebox.model.run_query import RunQuery
from tidebox.model.run_series import Course
from tidebox.model.run_totals import Totals
from tidebox.model.sandbox import Binding, SandboxState, Scope, ScopeType
from tidebox.model.session import Session, SessionState
from tidebox.model.timestamps import iso_time
from tidebox.store.base import BindingCreation, Creation, Holdings, SessionCreation, SessionQuery, Store


def make_run(id: str = "run-1", user: str = "ada", created_at: float = 100.0, **facts: Any) -> Run:
    given = {"runtime": "native", "base_image": "host", "spec_version": "1.0", "policy_hash": "f00d"} | facts
    caller = Caller(Principal(user, frozenset({"r"}), "agent"), "192.0.2.1", "req-1", "test")
    return Run(id=id, caller=caller, facts=RunFacts(**given), created_at=created_at)


def make_session(id: str = "s-1", user: str = "ada", created_at: float = 1.0, **given: Any) -> Session:
    terms = {"runtime": "native", "base_image": "host", "spec_version": "1.0", "policy": {}, "policy_hash": "f00d"}
    caller = Caller(Principal(user), "192.0.2.1", "req-1", "test")
    return Session(id=id, caller=caller, created_at=created_at, **({"expires_at": 1000.0} | terms | given))


def make_artifact(path: str = "out.txt", size: int = 10, run_id: str = "run-1", **given: Any) -> Artifact:
    rest: dict[str, Any] = {"content_type": "text/plain", "created_at": 300.0, "expires_at": 400.0} | given
    return Artifact(run_id=run_id, path=path, size=size, **rest)


def make_claim(key: str = "k", body: str = "body", user: str = "ada", endpoint: str = "runs") -> Claim:
    return Claim(endpoint, user, key, body)


def step(to: Phase, at: float = 200.0) -> Transition:
    conclusion = Conclusion(phase=to, reason=Reason.EXIT_ZERO) if to.terminal else None
    return Transition(to=to, at=at, conclusion=conclusion)


async def bring_to(store: Store, run: Run, phase: Phase) -> None:
    """Create a run and lead it to a phase on a legal way."""
    await store.create_run(Creation(run=run, work=b"program"))
    if phase is Phase.QUEUED:
        return
    way = [Phase.STARTING] if phase is Phase.STARTING else [Phase.STARTING, Phase.RUNNING, phase]
    for target in dict.fromkeys(way):
        assert await store.advance_run(run, step(target)) is not None


async def test_a_run_is_found_as_it_was_created(store: Store) -> None:
    await store.create_session(SessionCreation(session=make_session()))
    run = make_run(labels={"team": "röd"}, limits={"cpu": 0.5}, session_id="s-1", image_digest="sha256:1")
    assert await store.create_run(Creation(run=run, work=b"program")) is None
    assert await store.run(run.id) == run
    assert await store.run("run-other") is None


async def test_a_run_is_created_in_the_phase_it_is_in(store: Store) -> None:
    run = replace(make_run(), phase=Phase.STARTING, started_at=100.0)
    await store.create_run(Creation(run=run, work=b"program"))
    assert await store.run(run.id) == run


async def test_the_end_of_a_run_is_kept_whole(store: Store) -> None:
    run = make_run()
    await bring_to(store, run, Phase.RUNNING)
    usage = Usage(wall_seconds=1.5, cpu_seconds=0.25, memory_peak=1 << 40, pids_peak=3, oom_kills=1)
    conclusion = Conclusion(
        phase=Phase.FAILED, reason=Reason.OOM_KILLED, message="ö", exit_code=None, signal=9, usage=usage
    )
    over = await store.advance_run(run, ended(conclusion, 300.5, log_bytes=77, log_truncated=True))
    assert over is not None
    assert await store.run(run.id) == over
    assert (over.phase, over.reason, over.message, over.signal) == (Phase.FAILED, Reason.OOM_KILLED, "ö", 9)
    assert (over.started_at, over.finished_at, over.usage) == (200.0, 300.5, usage)
    assert (over.log_bytes, over.log_truncated) == (77, True)


@pytest.mark.parametrize("before", list(Phase))
@pytest.mark.parametrize("after", list(Phase))
async def test_phases_follow_the_table(store: Store, before: Phase, after: Phase) -> None:
    run = make_run()
    await bring_to(store, run, before)
    found = await store.run(run.id)
    following = await store.advance_run(run, step(after))
    if after in TRANSITIONS[before]:
        assert following is not None
        assert following.phase is after
        assert await store.run(run.id) == following
    else:
        assert following is None
        assert await store.run(run.id) == found


async def test_a_run_that_is_not_there_takes_no_step(store: Store) -> None:
    assert await store.advance_run(make_run("run-none"), step(Phase.STARTING)) is None


async def test_of_many_who_end_a_run_one_does(store: Store) -> None:
    run = make_run()
    await bring_to(store, run, Phase.RUNNING)
    phases = [Phase.COMPLETED, Phase.FAILED, Phase.KILLED, Phase.TIMED_OUT] * 5
    ends = await asyncio.gather(*(store.advance_run(run, step(phase)) for phase in phases))
    [winner] = [end for end in ends if end is not None]
    assert await store.run(run.id) == winner


async def test_the_program_is_kept_only_while_it_may_have_to_be_started_again(store: Store) -> None:
    for id, phase in (("run-q", Phase.QUEUED), ("run-s", Phase.STARTING), ("run-r", Phase.RUNNING)):
        await bring_to(store, make_run(id), phase)
    await bring_to(store, make_run("run-x"), Phase.COMPLETED)
    found = {run.id: work for run, work in await store.recover_runs(NOBODY)}
    assert found == {"run-q": b"program", "run-s": b"program", "run-r": None}


async def test_unfinished_runs_come_oldest_first(store: Store) -> None:
    for number in (3, 1, 2):
        await store.create_run(Creation(run=make_run(f"run-{number}", created_at=number), work=b""))
    assert [run.id for run, _ in await store.recover_runs(NOBODY)] == ["run-1", "run-2", "run-3"]


async def test_a_run_that_goes_back_to_the_queue_has_not_started(store: Store) -> None:
    await bring_to(store, make_run(), Phase.STARTING)
    requeued = await store.advance_run(make_run("run-1"), step(Phase.QUEUED))
    assert requeued is not None
    assert (requeued.phase, requeued.started_at) == (Phase.QUEUED, None)
    assert [(run.id, work) for run, work in await store.recover_runs(NOBODY)] == [("run-1", b"program")]


async def test_a_repeated_request_gets_the_first_answer(store: Store) -> None:
    first = Creation(run=make_run("run-1"), work=b"", claim=make_claim(), response=b'{"a":1}')
    assert await store.create_run(first) is None
    second = replace(first, run=make_run("run-2", created_at=101.0), response=b"other")
    prior = await store.create_run(second)
    assert prior is not None
    assert (prior.object_id, prior.response, prior.created_at) == ("run-1", b'{"a":1}', 100.0)
    assert await store.run("run-2") is None
    assert await store.answered(make_claim(), 0.0) == prior
    assert await store.answered(make_claim("other"), 0.0) is None


async def test_a_key_with_another_body_is_a_conflict(store: Store) -> None:
    await store.create_run(Creation(run=make_run("run-1"), work=b"", claim=make_claim(body="one")))
    other = make_claim(body="two")
    with pytest.raises(IdempotencyConflict) as raised:
        await store.create_run(Creation(run=make_run("run-2"), work=b"", claim=other))
    assert (raised.value.details["prior_id"], raised.value.details["key"]) == ("run-1", "k")
    with pytest.raises(IdempotencyConflict):
        await store.answered(other, 0.0)
    assert await store.run("run-2") is None


async def test_a_key_belongs_to_one_user_and_endpoint(store: Store) -> None:
    claims = [make_claim(), make_claim(user="bob"), make_claim(endpoint="sessions", body="x")]
    for number, claim in enumerate(claims):
        assert await store.create_run(Creation(run=make_run(f"run-{number}"), work=b"", claim=claim)) is None
    assert len(await store.list_answered()) == 3
    assert [found.claim for found in await store.list_answered(user="bob")] == [claims[1]]
    assert [found.claim for found in await store.list_answered(endpoint="sessions")] == [claims[2]]


async def test_an_old_key_is_as_if_never_used(store: Store) -> None:
    await store.create_run(Creation(run=make_run("run-1"), work=b"", claim=make_claim(body="one")))
    later = make_run("run-2", created_at=800.0)
    claim = make_claim(body="two")
    assert await store.answered(claim, 100.0) is None
    assert await store.create_run(Creation(run=later, work=b"", claim=claim, valid_after=100.0)) is None
    [answered] = await store.list_answered()
    assert (answered.object_id, answered.claim) == ("run-2", claim)


async def test_concurrent_identical_requests_make_one_run(store: Store) -> None:
    creations = [Creation(run=make_run(f"run-{n}"), work=b"", claim=make_claim()) for n in range(100)]
    answers = await asyncio.gather(*map(store.create_run, creations))
    assert answers.count(None) == 1
    assert len({answer.object_id for answer in answers if answer is not None}) == 1
    assert (await store.list_runs(RunQuery())).total == 1


async def test_a_quota_is_checked_with_what_the_user_has(store: Store) -> None:
    usage = Usage(wall_seconds=1, cpu_seconds=2.5)
    await store.create_session(SessionCreation(session=make_session()))
    for number, (user, phase, at) in enumerate(
        [
            ("ada", Phase.QUEUED, 0),
            ("ada", Phase.RUNNING, 0),
            ("ada", Phase.COMPLETED, 50),
            ("ada", Phase.COMPLETED, 500),
            ("bob", Phase.COMPLETED, 500),
        ]
    ):
        run = make_run(f"run-{number}", user, session_id="s-1" if number < 2 else None)
        await bring_to(store, run, phase if phase is Phase.QUEUED else Phase.RUNNING)
        if phase is Phase.COMPLETED:
            conclusion = Conclusion(phase=phase, reason=Reason.EXIT_ZERO, usage=usage)
            await store.advance_run(run, ended(conclusion, at))
    seen: list[Holdings] = []
    creation = Creation(run=make_run("run-new", session_id="s-1"), work=b"", check=seen.append, used_since=100.0)
    await store.create_run(creation)
    assert seen == [Holdings(unfinished=2, in_session=2, cpu_seconds=2.5)]


async def test_a_refused_quota_leaves_nothing(store: Store) -> None:
    def refuse(holdings: Holdings) -> None:
        raise QuotaExceeded("too much")

    with pytest.raises(QuotaExceeded):
        await store.create_run(Creation(run=make_run(), work=b"", claim=make_claim(), check=refuse))
    assert await store.run("run-1") is None
    assert await store.answered(make_claim(), 0.0) is None


async def test_a_repeated_request_is_answered_whatever_the_quota(store: Store) -> None:
    def refuse(holdings: Holdings) -> None:
        raise QuotaExceeded("too much")

    await store.create_run(Creation(run=make_run(), work=b"", claim=make_claim()))
    prior = await store.create_run(Creation(run=make_run("run-2"), work=b"", claim=make_claim(), check=refuse))
    assert prior is not None
    assert prior.object_id == "run-1"


async def test_concurrent_requests_do_not_exceed_a_quota(store: Store) -> None:
    def at_most_three(holdings: Holdings) -> None:
        if holdings.unfinished >= 3:
            raise QuotaExceeded("too much")

    creations = [Creation(run=make_run(f"run-{n}"), work=b"", check=at_most_three) for n in range(12)]
    answers = await asyncio.gather(*map(store.create_run, creations), return_exceptions=True)
    assert answers.count(None) == 3
    assert (await store.list_runs(RunQuery())).total == 3


async def listed(store: Store, **query: Any) -> list[str]:
    page = await store.list_runs(RunQuery(**query))
    assert page.total == len(page.runs)
    return [run.id for run in page.runs]


async def test_runs_are_listed_by_what_is_asked(store: Store) -> None:
    await store.create_session(SessionCreation(session=make_session()))
    await bring_to(store, make_run("run-1", "ada", 1.5, base_image="python:3.11", session_id="s-1"), Phase.QUEUED)
    await bring_to(store, make_run("run-2", "bob", 2.0, image_digest="sha256:2"), Phase.RUNNING)
    await bring_to(store, make_run("run-3", "ada", 3.0, runtime="docker"), Phase.RUNNING)
    canceled = Conclusion(phase=Phase.KILLED, reason=Reason.CANCELED_BY_USER, message="canceled_by_user")
    await store.advance_run(make_run("run-3"), ended(canceled, 400.0))
    assert await listed(store) == ["run-3", "run-2", "run-1"]
    assert await listed(store, descending=False) == ["run-1", "run-2", "run-3"]
    assert await listed(store, user="ada") == ["run-3", "run-1"]
    assert await listed(store, phase=Phase.RUNNING) == ["run-2"]
    assert await listed(store, runtime="docker") == ["run-3"]
    assert await listed(store, base_image="python:3.11") == ["run-1"]
    assert await listed(store, image_digest="sha256:2") == ["run-2"]
    assert await listed(store, session_id="s-1") == ["run-1"]
    assert await listed(store, text="PYTHON") == ["run-1"]
    assert await listed(store, text="canceled") == ["run-3"]
    assert await listed(store, text="%") == []
    assert await listed(store, started_from=200.0, started_to=200.0) == ["run-3", "run-2"]
    assert await listed(store, started_from=200.1) == []
    assert await listed(store, finished_from=400.0) == ["run-3"]
    assert await listed(store, finished_to=399.0) == []


async def test_runs_are_found_by_a_label(store: Store) -> None:
    odd = 'a "name" = ö'
    for number, labels in enumerate([{"team": "sea"}, {"team": "seaside"}, {odd: odd}, {}, {"team": "\0"}]):
        await store.create_run(Creation(run=make_run(f"run-{number}", labels=labels), work=b""))
    assert await listed(store, label=("team", "sea")) == ["run-0"]
    assert await listed(store, label=("team", "sea"), user="ada", phase=Phase.QUEUED) == ["run-0"]
    assert await listed(store, label=("team", "sea"), user="bob") == []
    assert await listed(store, label=(odd, odd)) == ["run-2"]
    # What a record says beside its labels is none.
    assert await listed(store, label=("runtime", "native")) == []
    assert await listed(store, label=("", "")) == []


async def test_the_course_of_runs_is_told(store: Store) -> None:
    await bring_to(store, make_run("run-0", "ada", 100.0), Phase.RUNNING)
    usage = Usage(wall_seconds=1.0, cpu_seconds=0.5)
    killed = Conclusion(phase=Phase.FAILED, reason=Reason.OOM_KILLED, usage=usage)
    await store.advance_run(make_run("run-0"), ended(killed, 300.0))
    await store.create_run(Creation(run=make_run("run-1", "bob", 250.0), work=b""))
    over = Course(
        user="ada",
        phase=Phase.FAILED,
        reason="oom_killed",
        created_at=100.0,
        started_at=200.0,
        finished_at=300.0,
        cpu_seconds=0.5,
    )
    waiting = replace(over, user="bob", phase=Phase.QUEUED, reason=None, created_at=250.0, cpu_seconds=0.0)
    waiting = replace(waiting, started_at=None, finished_at=None)
    assert await store.courses(0.0, 1000.0, 10) == [waiting, over]
    assert await store.courses(0.0, 1000.0, 1) == [waiting]
    assert await store.courses(300.0, 1000.0, 10) == [waiting, over]
    assert await store.courses(300.1, 1000.0, 10) == [waiting]
    assert await store.courses(0.0, 200.0, 10) == [over]


async def test_bounds_include_the_times_that_clients_are_shown(store: Store) -> None:
    began, over = 1_700_000_000.1236789, 1_700_000_001.9999996
    await bring_to(store, make_run(), Phase.QUEUED)
    await store.advance_run(make_run(), step(Phase.STARTING, began))
    await store.advance_run(make_run(), step(Phase.RUNNING, began))
    done = Conclusion(phase=Phase.COMPLETED, reason=Reason.EXIT_ZERO, exit_code=0)
    await store.advance_run(make_run(), ended(done, over))
    shown_began, shown_over = (datetime.fromisoformat(iso_time(moment)).timestamp() for moment in (began, over))
    assert await listed(store, started_from=shown_began, started_to=shown_began) == ["run-1"]
    assert await listed(store, finished_from=shown_over, finished_to=shown_over) == ["run-1"]
    assert await listed(store, started_to=shown_began - 0.001) == []
    assert await listed(store, finished_to=shown_over - 0.001) == []


async def test_long_texts_are_kept_whole_and_searched_by_their_beginning(store: Store) -> None:
    # Of what does not compress: databases index the compressed.
    noise = "".join(random.Random(1).choices("åäö𝄞abcdef0123456789", k=20_000))
    await bring_to(store, make_run(base_image="image" + noise[:200]), Phase.RUNNING)
    failed = Conclusion(phase=Phase.FAILED, reason=Reason.RUNTIME_ERROR, message="Broken: " + noise)
    over = await store.advance_run(make_run("run-1"), ended(failed, 300.0))
    assert over is not None
    assert over.message == "Broken: " + noise
    assert await store.run("run-1") == over
    assert await listed(store, text="broken: ") == ["run-1"]
    assert await listed(store, text="IMAGE") == ["run-1"]
    assert await listed(store, text=noise[10_000:10_100]) == []


async def test_old_records_of_killed_programs_have_an_exit_code(store: Store) -> None:
    """Whether or not the code was kept with the signal."""
    await bring_to(store, make_run(), Phase.RUNNING)
    killed = Conclusion(phase=Phase.FAILED, reason=Reason.SIGNALED, exit_code=None, signal=9)
    await store.advance_run(make_run(), ended(killed, 300.0))
    run = await store.run("run-1")
    assert run is not None
    assert (run.exit_status, run.signal) == (137, 9)


@pytest.mark.parametrize("descending", [True, False])
async def test_what_has_no_time_to_sort_by_comes_last(store: Store, descending: bool) -> None:
    for number in range(4):
        await bring_to(store, make_run(f"run-{number}"), Phase.QUEUED)
    for number, at in ((1, 10.0), (3, 20.0)):
        await store.advance_run(make_run(f"run-{number}"), step(Phase.STARTING, at))
    ids = await listed(store, sort="started_at", descending=descending)
    expected = ["run-1", "run-3", "run-0", "run-2"]
    assert ids == (["run-3", "run-1", "run-2", "run-0"] if descending else expected)


async def test_pages_cover_every_run_once(store: Store) -> None:
    for number in range(7):
        await store.create_run(Creation(run=make_run(f"run-{number}", created_at=number // 3), work=b""))
    pages = [await store.list_runs(RunQuery(limit=3, offset=offset)) for offset in (0, 3, 6, 9)]
    assert [len(page.runs) for page in pages] == [3, 3, 1, 0]
    assert {page.total for page in pages} == {7}
    assert len({run.id for page in pages for run in page.runs}) == 7


async def test_answered_claims_are_listed_newest_first_in_pages(store: Store) -> None:
    for number in range(5):
        run = make_run(f"run-{number}", created_at=number)
        await store.create_run(Creation(run=run, work=b"", claim=make_claim(f"k{number}")))
    assert [found.claim.key for found in await store.list_answered(limit=2)] == ["k4", "k3"]
    assert [found.claim.key for found in await store.list_answered(limit=2, offset=3)] == ["k1", "k0"]


async def test_what_is_old_is_forgotten(store: Store) -> None:
    await store.create_run(Creation(run=make_run("run-old", created_at=1.0), work=b"", claim=make_claim("old")))
    await store.create_run(Creation(run=make_run("run-new", created_at=99.0), work=b"", claim=make_claim("new")))
    for id, at in (("run-a", 10.0), ("run-b", 90.0)):
        await bring_to(store, make_run(id), Phase.RUNNING)
        await store.advance_run(make_run(id), step(Phase.COMPLETED, at))
    await store.prune(claims_before=50.0, runs_before=50.0)
    assert {run.id for run in (await store.list_runs(RunQuery())).runs} == {"run-old", "run-new", "run-b"}
    assert [found.claim.key for found in await store.list_answered()] == ["new"]


async def test_a_session_is_found_as_it_was_created(store: Store) -> None:
    session = make_session(
        policy={"network": "deny_all", "caps": [1, 2.5, None]},
        env={"A": "ö"},
        labels={"team": "röd"},
        resources={"cpu": 0.5, "memory_mb": 64},
        trust_level="untrusted",
        timeout_sec=7,
        image_digest="sha256:1",
    )
    assert await store.create_session(SessionCreation(session=session)) is None
    assert await store.session("s-1") == session
    assert await store.session("s-2") is None


async def test_a_repeated_request_for_a_session_gets_the_first_answer(store: Store) -> None:
    claim = make_claim(endpoint="sessions")
    first = SessionCreation(session=make_session(), claim=claim, response=b'{"id":"s-1"}')
    assert await store.create_session(first) is None
    prior = await store.create_session(replace(first, session=make_session("s-2")))
    assert prior is not None
    assert (prior.object_id, prior.response) == ("s-1", b'{"id":"s-1"}')
    assert await store.session("s-2") is None
    with pytest.raises(IdempotencyConflict):
        await store.create_session(replace(first, claim=make_claim(endpoint="sessions", body="other")))
    assert await store.create_run(Creation(run=make_run(), work=b"", claim=make_claim(body="other"))) is None


async def test_concurrent_identical_requests_make_one_session(store: Store) -> None:
    claim = make_claim(endpoint="sessions")
    creations = [SessionCreation(session=make_session(f"s-{n}"), claim=claim) for n in range(20)]
    answers = await asyncio.gather(*map(store.create_session, creations))
    assert answers.count(None) == 1
    assert (await store.list_sessions(SessionQuery())).total == 1


async def test_a_user_can_be_refused_another_session(store: Store) -> None:
    def at_most_two(held: int) -> None:
        if held >= 2:
            raise QuotaExceeded("too much")

    creations = [SessionCreation(session=make_session(f"s-{n}"), check=at_most_two) for n in range(5)]
    answers = await asyncio.gather(*map(store.create_session, creations), return_exceptions=True)
    assert answers.count(None) == 2
    assert await store.create_session(SessionCreation(session=make_session("s-b", "bob"), check=at_most_two)) is None


async def test_only_a_usable_session_of_ones_own_takes_runs(store: Store) -> None:
    await store.create_session(SessionCreation(session=make_session("s-over", expires_at=100.0)))
    await store.create_session(SessionCreation(session=make_session("s-bob", "bob")))
    await store.create_session(SessionCreation(session=make_session("s-closing")))
    await store.close_session("s-closing")
    for session_id in ("s-over", "s-bob", "s-closing", "s-none"):
        with pytest.raises(NotFound):
            await store.create_run(Creation(run=make_run(session_id=session_id), work=b"", claim=make_claim()))
    assert (await store.list_runs(RunQuery())).total == 0
    assert await store.list_answered() == []


async def test_a_session_is_extended_until_it_is_closed_and_then_forgotten(store: Store) -> None:
    await store.create_session(SessionCreation(session=make_session()))
    extended = await store.extend_session("s-1", 5000.25)
    assert extended == make_session(expires_at=5000.25)
    assert await store.session("s-1") == extended
    closed = replace(extended, state=SessionState.CLOSING)
    for _ in range(2):
        assert await store.close_session("s-1") == closed
    assert await store.session("s-1") == closed
    assert await store.extend_session("s-1", 9000.0) is None
    assert await store.delete_session("s-1")
    assert not await store.delete_session("s-1")
    assert await store.session("s-1") is None
    assert await store.close_session("s-1") is None
    assert await store.extend_session("s-1", 9000.0) is None


async def test_runs_outlive_their_session(store: Store) -> None:
    await store.create_session(SessionCreation(session=make_session()))
    await store.create_run(Creation(run=make_run(session_id="s-1"), work=b""))
    await store.delete_session("s-1")
    assert await listed(store, session_id="s-1") == ["run-1"]


async def test_sessions_to_be_removed_are_those_over_and_those_half_closed(store: Store) -> None:
    for id, created_at, expires_at in (("s-1", 3.0, 50.0), ("s-2", 2.0, 51.0), ("s-3", 1.0, 900.0)):
        await store.create_session(
            SessionCreation(session=make_session(id, created_at=created_at, expires_at=expires_at))
        )
    assert [session.id for session in await store.expired_sessions(49.9, NOBODY.node_id)] == []
    assert [session.id for session in await store.expired_sessions(50.0, NOBODY.node_id)] == ["s-1"]
    await store.close_session("s-3")
    assert [session.id for session in await store.expired_sessions(60.0, NOBODY.node_id)] == ["s-3", "s-2", "s-1"]


async def test_sessions_are_listed_newest_first_in_pages(store: Store) -> None:
    for number in range(5):
        user = "bob" if number == 2 else "ada"
        session = make_session(f"s-{number}", user, created_at=float(number))
        await store.create_session(SessionCreation(session=session))
    await store.close_session("s-3")
    page = await store.list_sessions(SessionQuery(limit=2, offset=1))
    assert ([session.id for session in page.sessions], page.total) == (["s-3", "s-2"], 5)
    page = await store.list_sessions(SessionQuery(user="ada", state=SessionState.ACTIVE))
    assert ([session.id for session in page.sessions], page.total) == (["s-4", "s-1", "s-0"], 3)


async def test_artifacts_are_found_as_they_were_captured(store: Store) -> None:
    await bring_to(store, make_run(), Phase.RUNNING)
    file = make_artifact("b/ö.txt", 1 << 40)
    link = make_artifact("a", 0, is_link=True, link_target="/etc/passwd")
    assert await store.add_artifacts("run-1", [file, link]) == [file, link]
    assert await store.artifacts("run-1") == [link, file]
    assert await store.artifact("run-1", "b/ö.txt") == file
    assert await store.artifact("run-1", "none") is None
    assert await store.artifact("run-2", "a") is None
    assert await store.artifacts("run-2") == []
    assert await store.having_artifacts(["run-2", "run-1"]) == {"run-1"}
    assert await store.having_artifacts([]) == set()


async def test_artifacts_belong_to_a_run_and_to_one_path(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.add_artifacts("run-1", [make_artifact()])
    await bring_to(store, make_run(), Phase.RUNNING)
    await store.add_artifacts("run-1", [make_artifact()])
    with pytest.raises(ValueError, match="already"):
        await store.add_artifacts("run-1", [make_artifact("new"), make_artifact()])
    assert await store.artifacts("run-1") == [make_artifact()]
    assert await store.artifact_bytes("ada") == 10


async def test_artifacts_whose_names_are_no_text_are_left_out(store: Store) -> None:
    await bring_to(store, make_run(), Phase.RUNNING)
    noise = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=4000))
    plain = make_artifact("d" + noise[:1900])
    odd = [
        make_artifact(noise),
        make_artifact("a\udc80"),
        make_artifact("a\0"),
        make_artifact("l", 0, is_link=True, link_target="\udcff"),
    ]
    assert await store.add_artifacts("run-1", [odd[0], plain, *odd[1:]]) == [plain]
    assert await store.artifacts("run-1") == [plain]
    assert await store.artifact_bytes("ada") == 10


async def test_characters_that_databases_do_not_take_harm_nothing(store: Store) -> None:
    await bring_to(store, make_run(), Phase.RUNNING)
    failed = Conclusion(phase=Phase.FAILED, reason=Reason.RUNTIME_ERROR, message="a\0b")
    over = await store.advance_run(make_run("run-1"), ended(failed, 300.0))
    assert over is not None
    assert await store.run("run-1") == over
    for text in ("\0", "\udc80"):
        # An error of the caller's where the database says so, and nothing found where it does not.
        with contextlib.suppress(InvalidRequest):
            assert await store.run(text) is None
        with contextlib.suppress(InvalidRequest):
            assert (await store.list_runs(RunQuery(base_image=text))).runs == ()


async def test_artifacts_of_a_user_are_counted_and_limited(store: Store) -> None:
    for id, user in (("run-1", "ada"), ("run-2", "ada"), ("run-3", "bob"), ("run-4", "eve")):
        await bring_to(store, make_run(id, user), Phase.RUNNING)
    assert await store.artifact_bytes("ada") == 0
    await store.add_artifacts("run-1", [make_artifact(size=60)], user_limit=100)
    offered = [make_artifact(path, size, "run-2") for path, size in (("a", 30), ("b", 20), ("c", 10), ("d", 1))]
    assert await store.add_artifacts("run-2", offered, user_limit=100) == [offered[0], offered[2]]
    assert await store.add_artifacts("run-2", [make_artifact("e", 1, "run-2")], user_limit=100) == []
    await store.add_artifacts("run-3", [make_artifact(size=500, run_id="run-3")])
    assert await store.artifact_bytes("ada") == 100
    assert await store.artifact_usage() == [("bob", 500), ("ada", 100)]
    assert await store.artifact_usage(limit=1, offset=1) == [("ada", 100)]
    assert await store.delete_artifacts("run-1") == 60
    assert await store.delete_artifacts("run-1") == 0
    assert await store.delete_artifacts("run-none") == 0
    assert await store.artifact_bytes("ada") == 40
    assert await store.delete_artifacts("run-3") == 500
    assert await store.artifact_usage() == [("ada", 40)]


async def test_concurrent_captures_do_not_exceed_what_a_user_may_have(store: Store) -> None:
    for number in range(10):
        await bring_to(store, make_run(f"run-{number}"), Phase.RUNNING)
    await asyncio.gather(
        *(
            store.add_artifacts(f"run-{n}", [make_artifact(size=30, run_id=f"run-{n}")], user_limit=100)
            for n in range(10)
        )
    )
    assert await store.artifact_bytes("ada") == 90


async def test_artifacts_are_over_at_their_time(store: Store) -> None:
    for number, expires_at in ((1, 30.0), (2, 20.0), (3, 90.0)):
        await bring_to(store, make_run(f"run-{number}"), Phase.RUNNING)
        await store.add_artifacts(
            f"run-{number}", [make_artifact(name, 1, f"run-{number}", expires_at=expires_at) for name in ("a", "b")]
        )
    assert await store.expired_artifacts(19.9) == []
    assert await store.expired_artifacts(30.0) == ["run-2", "run-1"]
    assert await store.expired_artifacts(30.0, limit=1) == ["run-2"]


async def test_a_forgotten_run_takes_what_is_known_of_its_artifacts_along(store: Store) -> None:
    await bring_to(store, make_run(), Phase.RUNNING)
    await store.add_artifacts("run-1", [make_artifact(size=5)])
    await store.advance_run(make_run("run-1"), step(Phase.COMPLETED, 10.0))
    await store.prune(claims_before=0.0, runs_before=50.0)
    assert await store.run("run-1") is None
    assert await store.artifacts("run-1") == []
    assert await store.artifact_bytes("ada") == 0


async def test_runs_are_added_up(store: Store) -> None:
    usage = Usage(wall_seconds=1, cpu_seconds=0.5)
    ways = [
        ("run-0", "ada", 10.0, "native", Phase.COMPLETED, Reason.EXIT_ZERO),
        ("run-1", "ada", 20.0, "native", Phase.FAILED, Reason.OOM_KILLED),
        ("run-2", "bob", 20.0, "docker", Phase.TIMED_OUT, Reason.EXECUTION_TIMEOUT),
        ("run-3", "bob", 30.0, "native", Phase.KILLED, Reason.CANCELED_BY_USER),
        ("run-4", "bob", 40.0, "native", Phase.COMPLETED, Reason.EXIT_ZERO),
    ]
    for id, user, created_at, runtime, phase, reason in ways:
        await bring_to(store, make_run(id, user, created_at, runtime=runtime), Phase.RUNNING)
        conclusion = Conclusion(phase=phase, reason=reason, usage=usage)
        await store.advance_run(make_run(id), ended(conclusion, 300.0, log_bytes=7, artifact_bytes=11))
    await store.create_run(Creation(run=make_run("run-5", "eve", 20.0), work=b""))
    found = await store.summary(20.0, 30.0)
    assert found.totals == Totals(
        runs=4, failed=1, timed_out=1, killed=1, cpu_seconds=1.5, log_bytes=21, artifact_bytes=33
    )
    assert found.by_runtime == {
        "docker": Totals(runs=1, timed_out=1, cpu_seconds=0.5, log_bytes=7, artifact_bytes=11),
        "native": Totals(runs=3, failed=1, killed=1, cpu_seconds=1.0, log_bytes=14, artifact_bytes=22),
    }
    assert [(user, totals.runs) for user, totals in found.top_users] == [("bob", 2), ("ada", 1), ("eve", 1)]
    assert [user for user, _ in (await store.summary(None, None, top=1)).top_users] == ["bob"]
    nothing = await store.summary(1000.0, None)
    assert (nothing.totals, nothing.by_runtime, nothing.top_users) == (Totals(), {}, ())


async def test_what_was_acknowledged_is_there_when_the_store_is_opened_again(make_store: Callable[[], Store]) -> None:
    first = make_store()
    if not first.durable:
        pytest.skip("a store in memory forgets")
    await first.start()
    session = make_session()
    await first.create_session(SessionCreation(session=session, claim=make_claim(endpoint="sessions"), response=b"{}"))
    await bring_to(first, make_run(session_id="s-1"), Phase.RUNNING)
    await first.add_artifacts("run-1", [make_artifact()])
    queued = Creation(run=make_run("run-2"), work=b"program", claim=make_claim(), response=b"{}")
    await first.create_run(queued)
    run = await first.run("run-1")
    await first.close()
    second = make_store()
    await second.start()
    try:
        assert await second.session("s-1") == session
        assert await second.run("run-1") == run
        assert await second.artifacts("run-1") == [make_artifact()]
        assert await second.artifact_bytes("ada") == 10
        assert await second.recover_runs(NOBODY) == [(run, None), (queued.run, b"program")]
        again = await second.create_run(queued)
        assert again is not None
        assert again.object_id == "run-2"
    finally:
        await second.close()


# No database takes the NUL character, and no surface lets it through.
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    user=text.filter(bool), message=text, labels=st.dictionaries(text, text, max_size=3), work=st.binary(max_size=64)
)
async def test_any_text_comes_back_as_it_was(
    make_store: Callable[[], Store], user: str, message: str, labels: dict[str, str], work: bytes
) -> None:
    store = make_store()
    await store.start()
    try:
        run = make_run(new_id("run"), user, labels=labels, base_image=message)
        await store.create_run(Creation(run=run, work=work))
        assert await store.recover_runs(NOBODY) == [(run, work)]
        conclusion = Conclusion(phase=Phase.KILLED, reason=Reason.CANCELED_BY_USER, message=message)
        over = await store.advance_run(run, ended(conclusion, 1.0))
        assert over is not None
        assert over.message == message
        assert await store.run(run.id) == over
    finally:
        await store.close()


def make_binding(id: str = "b-1", user: str = "ada", thread: str = "t-1", **given: Any) -> Binding:
    fields: dict[str, Any] = {
        "provider": "local",
        "state": SandboxState.ACTIVE,
        "created_at": 100.0,
        "active_at": 100.0,
        "lease_expires_at": 200.0,
        "expires_at": 300.0,
        "sandbox_id": "sb-1",
    }
    return Binding(id=id, user=user, scope=Scope(ScopeType.THREAD, thread), **(fields | given))


async def test_a_scope_has_one_binding(store: Store) -> None:
    first = await store.create_binding(BindingCreation(binding=make_binding()))
    assert (first.binding, first.created) == (make_binding(), True)
    second = await store.create_binding(BindingCreation(binding=make_binding("b-2")))
    assert (second.binding, second.created) == (make_binding(), False)
    assert await store.binding("b-1") == make_binding()
    assert await store.binding("b-2") is None
    other = await store.create_binding(BindingCreation(binding=make_binding("b-3", thread="t-2", created_at=99.0)))
    assert other.created
    assert [binding.id for binding in await store.recover_bindings(NOBODY.node_id)] == ["b-3", "b-1"]


async def test_many_who_bind_one_scope_at_once_get_one_binding(store: Store) -> None:
    creations = [BindingCreation(binding=make_binding(f"b-{number}")) for number in range(20)]
    bound = await asyncio.gather(*map(store.create_binding, creations))
    assert sum(found.created for found in bound) == 1
    assert len({found.binding.id for found in bound}) == 1


async def test_a_scope_is_its_users_until_its_binding_is_forgotten(store: Store) -> None:
    await store.create_binding(BindingCreation(binding=make_binding()))
    theirs = BindingCreation(binding=make_binding("b-2", "bob"))
    with pytest.raises(Forbidden):
        await store.create_binding(theirs)
    assert await store.save_binding(make_binding(state=SandboxState.TERMINATED, active_at=150.0))
    with pytest.raises(Forbidden):
        await store.create_binding(theirs)
    assert (await store.create_binding(BindingCreation(binding=make_binding("b-3", created_at=160.0)))).created
    assert await store.delete_binding("b-3")
    await store.prune_bindings(150.0)
    assert await store.binding("b-1") is not None
    await store.prune_bindings(151.0)
    assert await store.binding("b-1") is None
    assert (await store.create_binding(theirs)).created


async def test_a_binding_changes_until_it_ends(store: Store) -> None:
    await store.create_binding(BindingCreation(binding=make_binding()))
    moved = make_binding(state=SandboxState.IDLE, sandbox_id="sb-2", lease_expires_at=250.5, active_at=120.25)
    assert await store.save_binding(moved)
    assert await store.binding("b-1") == moved
    ended = make_binding(state=SandboxState.TERMINATED)
    assert await store.save_binding(ended)
    assert not await store.save_binding(moved)
    assert await store.binding("b-1") == ended
    assert await store.recover_bindings(NOBODY.node_id) == []
    assert not await store.save_binding(make_binding("b-9"))
    assert await store.delete_binding("b-1")
    assert not await store.delete_binding("b-1")


async def test_how_many_bindings_a_user_has(store: Store) -> None:
    seen: list[int] = []
    for number in range(3):
        binding = make_binding(f"b-{number}", thread=f"t-{number}")
        await store.create_binding(BindingCreation(binding=binding, check=seen.append))
    await store.save_binding(make_binding("b-0", thread="t-0", state=SandboxState.TERMINATED))
    await store.create_binding(BindingCreation(binding=make_binding("b-7", "bob", "t-7"), check=seen.append))

    def refuse(held: int) -> None:
        assert held == 2
        raise QuotaExceeded("enough", quota="sandboxes")

    with pytest.raises(QuotaExceeded):
        await store.create_binding(BindingCreation(binding=make_binding("b-8", thread="t-8"), check=refuse))
    # What is there already is not counted again.
    await store.create_binding(BindingCreation(binding=make_binding("b-9", thread="t-1"), check=refuse))
    assert seen == [0, 1, 2, 0]
    assert await store.binding("b-8") is None


async def test_a_claim_stands_for_a_binding(store: Store) -> None:
    claim = make_claim(endpoint="bindings")
    first = await store.create_binding(BindingCreation(binding=make_binding(), claim=claim))
    assert (first.created, first.replayed) == (True, False)
    again = await store.create_binding(BindingCreation(binding=make_binding("b-2"), claim=claim))
    assert (again.binding.id, again.created, again.replayed) == ("b-1", False, True)
    with pytest.raises(IdempotencyConflict):
        await store.create_binding(
            BindingCreation(binding=make_binding("b-3", thread="t-3"), claim=make_claim(endpoint="bindings", body="x"))
        )
    assert await store.binding("b-3") is None


async def test_bindings_survive(make_store: Callable[[], Store]) -> None:
    store = make_store()
    if not store.durable:
        pytest.skip("a store in memory forgets")
    await store.start()
    await store.create_binding(BindingCreation(binding=make_binding()))
    await store.close()
    store = make_store()
    await store.start()
    assert await store.recover_bindings(NOBODY.node_id) == [make_binding()]
    await store.close()
