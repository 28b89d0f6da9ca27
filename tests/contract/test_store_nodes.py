"""Nodes in every store: who has joined, who owns a run, and what becomes of what a lost node left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.contract import postgres
from tests.contract.test_stores import make_binding, make_run, make_session, step
from tidebox.errors import Conflict, StoreUnavailable
from tidebox.model.node import NOBODY, Owner
from tidebox.model.run import Phase, Reason, Run
from tidebox.model.sandbox import Binding, SandboxState
from tidebox.store.base import (
    BindingCreation,
    Creation,
    Estate,
    NodeBeat,
    Pulse,
    SessionCreation,
    SessionQuery,
    Standing,
    Store,
)
from tidebox.store.sql.store import PostgresStore, SqliteStore

# So long that nobody's name is free, and so short that everybody's is.
LONG, NOW = 1000.0, -1.0


@pytest.fixture
async def second(make_store: Callable[[], Store], store: Store) -> AsyncIterator[Store]:
    """What another server sees of the same store, where several can share one."""
    if not store.shared:
        yield store
        return
    other = make_store()
    await other.start()
    yield other
    await other.close()


async def heard_of(store: Store, by: Owner, *node_ids: str) -> list[NodeBeat]:
    """What one node has last heard of others."""
    return [beat for beat in (await store.beat(by)).others if beat.node_id in node_ids]


def own(run: Run, owner: Owner) -> Run:
    return replace(run, owner=owner)


async def bring_to(store: Store, run: Run, *phases: Phase) -> Run:
    """Create a run and lead it through these phases."""
    await store.create_run(Creation(run=run, work=b"program of " + run.id.encode()))
    for phase in phases:
        following = await store.advance_run(run, step(phase))
        assert following is not None
        run = following
    return run


async def test_each_time_a_node_joins_its_epoch_is_higher(store: Store) -> None:
    first = await store.join_node("a", "home", LONG)
    again = await store.join_node("a", "home", LONG)
    assert (first.node_id, again.node_id) == ("a", "a")
    assert again.epoch > first.epoch
    assert await store.beat(again) == Pulse(Standing.HELD)
    # Also after it was forgotten, once a moment has passed.
    await asyncio.sleep(0.01)
    other = await store.join_node("b", "other home", LONG)
    await store.take_over(other, await heard_of(store, other, "a"), 1.0)
    assert await store.beat(again) == Pulse(Standing.FORGOTTEN)
    later = await store.join_node("a", "home", LONG)
    assert later.epoch > again.epoch


async def test_two_servers_that_live_are_not_one_node(store: Store) -> None:
    first = await store.join_node("a", "home", LONG)
    with pytest.raises(Conflict, match="another server has the node id a"):
        await store.join_node("a", "other home", LONG)
    assert await store.beat(first) == Pulse(Standing.HELD)
    # One that has been silent for long enough, or has left, is not waited for.
    second = await store.join_node("a", "other home", NOW)
    assert await store.beat(first) == Pulse(Standing.SUPERSEDED)
    await store.leave_node(first)
    with pytest.raises(Conflict):
        await store.join_node("a", "third home", LONG)
    await store.leave_node(second)
    await store.join_node("a", "third home", LONG)


async def test_a_beat_tells_who_is_there_and_what_was_heard_of_them(store: Store) -> None:
    a = await store.join_node("a", "a", LONG)
    assert await store.beat(a) == Pulse(Standing.HELD)
    b = await store.join_node("b", "b", LONG)
    [first] = (await store.beat(a)).others
    assert (first.node_id, first.epoch) == ("b", b.epoch)
    assert await heard_of(store, a, "b") == [first]
    assert [await store.has_node(name) for name in ("a", "b", "c")] == [True, True, False]
    # Who has beaten since is not silent.
    await asyncio.sleep(0.01)
    await store.beat(b)
    [second] = await heard_of(store, a, "b")
    assert second != first
    assert await store.take_over(a, [first], 1.0) == Estate()
    assert (await store.beat(b)).standing is Standing.HELD
    # Nor is one that has joined anew.
    again = await store.join_node("b", "b", LONG)
    assert await store.take_over(a, [second], 1.0) == Estate()
    assert (await store.beat(again)).standing is Standing.HELD
    assert await store.take_over(a, await heard_of(store, a, "b"), 1.0) == Estate()
    assert await store.beat(again) == Pulse(Standing.FORGOTTEN)
    assert await store.beat(a) == Pulse(Standing.HELD)
    assert not await store.has_node("b")


async def test_a_run_is_changed_by_its_owner_alone(store: Store) -> None:
    a = await store.join_node("a", "a", LONG)
    run = await bring_to(store, own(make_run(), a), Phase.STARTING)
    for other in (
        replace(run, owner=NOBODY),
        replace(run, owner=Owner("b", a.epoch)),
        replace(run, owner=Owner("a", a.epoch + 1)),
        replace(run, attempt=2),
    ):
        assert await store.advance_run(other, step(Phase.RUNNING)) is None
        assert await store.advance_run(other, step(Phase.KILLED)) is None
    assert await store.run(run.id) == run
    over = await store.advance_run(run, step(Phase.KILLED))
    assert over is not None
    assert (over.phase, over.owner) == (Phase.KILLED, a)
    assert await store.run(run.id) == over


async def test_a_node_that_joins_again_recovers_its_own_runs(store: Store) -> None:
    before = await store.join_node("a", "a", LONG)
    b = await store.join_node("b", "b", LONG)
    old = await bring_to(store, own(make_run("run-1", created_at=1.0), before), Phase.STARTING)
    await bring_to(store, make_run("run-2", created_at=2.0))
    await bring_to(store, own(make_run("run-3", created_at=3.0), b))
    now = await store.join_node("a", "a", LONG)
    found = {run.id: run.owner for run, _ in await store.recover_runs(now)}
    # Where nobody else can be, nobody else has anything.
    theirs = {} if store.shared else {"run-3": now}
    assert found == {"run-1": now, "run-2": now, **theirs}
    assert await store.advance_run(old, step(Phase.RUNNING)) is None
    assert await store.advance_run(own(old, now), step(Phase.RUNNING)) is not None


async def test_of_a_lost_node_what_waits_is_taken_over_and_the_rest_ends(store: Store, second: Store) -> None:
    lost = await store.join_node("a", "a", LONG)
    await store.create_session(SessionCreation(session=make_session()))
    waiting = [await bring_to(store, own(make_run(f"run-w{n}", created_at=n), lost)) for n in range(2)]
    in_session = await bring_to(store, own(make_run("run-s", session_id="s-1"), lost))
    starting = await bring_to(store, own(make_run("run-t"), lost), Phase.STARTING)
    running = await bring_to(store, own(make_run("run-r"), lost), Phase.STARTING, Phase.RUNNING)
    done = await bring_to(store, own(make_run("run-d"), lost), Phase.STARTING, Phase.RUNNING, Phase.COMPLETED)
    b = await second.join_node("b", "b", LONG)
    mine = await bring_to(second, own(make_run("run-m"), b))
    estate = await second.take_over(b, await heard_of(second, b, "a"), 500.0)
    assert estate is not None
    assert [(run.id, run.owner, run.attempt, run.phase) for run, _ in estate.runs] == [
        (run.id, b, 2, Phase.QUEUED) for run in waiting
    ]
    assert [work for _, work in estate.runs] == [b"program of run-w0", b"program of run-w1"]
    assert {run.id for run in estate.ended} == {in_session.id, starting.id, running.id}
    for run in estate.ended:
        assert (run.phase, run.reason, run.finished_at) == (Phase.FAILED, Reason.NODE_LOST, 500.0)
        assert await second.run(run.id) == run
    assert await second.run(done.id) == done
    assert await second.run(mine.id) == mine
    # What was left to one is not left to another, and the one that was lost has nothing any more.
    for run in (*waiting, starting, running):
        for phase in (Phase.STARTING, Phase.RUNNING, Phase.COMPLETED, Phase.KILLED):
            assert await store.advance_run(run, step(phase)) is None
    assert await second.advance_run(estate.runs[0][0], step(Phase.STARTING)) is not None
    # Asked again it tells what waits: of an answer that was lost nothing is lost.
    again = await second.take_over(b, [], 600.0)
    assert again == Estate(runs=estate.runs[1:])
    assert await second.beat(b) == Pulse(Standing.HELD)


async def test_of_several_who_would_take_over_one_does(store: Store, second: Store) -> None:
    lost = await store.join_node("a", "a", LONG)
    for number in range(20):
        await bring_to(store, own(make_run(f"run-{number}"), lost))
    survivors = [(side, await side.join_node(name, name, LONG)) for name, side in (("b", store), ("c", second))]
    silent = await heard_of(store, survivors[0][1], "a")
    estates = await asyncio.gather(*(side.take_over(owner, silent, 1.0) for side, owner in survivors * 4))
    told = [{run.id for run, _ in estate.runs} if estate is not None else set() for estate in estates]
    # All of it went to one of the two, which may have been told of it several times.
    everything = {f"run-{number}" for number in range(20)}
    assert sorted((set().union(*told[::2]), set().union(*told[1::2])), key=len) == [set(), everything]
    found = [await store.run(run_id) for run_id in everything]
    assert {run.attempt for run in found if run is not None} == {2}


async def test_what_a_node_wrote_after_it_was_forgotten_is_found(store: Store) -> None:
    lost = await store.join_node("a", "a", LONG)
    b = await store.join_node("b", "b", LONG)
    assert await store.take_over(b, await heard_of(store, b, "a"), 1.0) == Estate()
    # It was stopped in the middle of a transaction, say, and went on.
    late = await bring_to(store, own(make_run(), lost))
    assert (await store.beat(b)).left
    estate = await store.take_over(b, [], 1.0)
    assert estate is not None
    [(taken, _)] = estate.runs
    assert (taken.id, taken.owner) == (late.id, b)


async def test_one_who_was_forgotten_takes_over_nothing(store: Store) -> None:
    lost = await store.join_node("a", "a", LONG)
    b = await store.join_node("b", "b", LONG)
    await bring_to(store, own(make_run(), b))
    silent = await heard_of(store, lost, "b")
    assert await store.take_over(replace(lost, epoch=lost.epoch - 1), silent, 1.0) == Estate()
    assert (await store.beat(b)).standing is Standing.HELD


def bound(id: str, node_id: str) -> Binding:
    return make_binding(id, thread=f"thread of {id}", node_id=node_id)


async def test_bindings_end_with_their_node(store: Store) -> None:
    await store.join_node("a", "a", LONG)
    b = await store.join_node("b", "b", LONG)
    for binding in (bound("b-1", "a"), bound("b-2", "b")):
        await store.create_binding(BindingCreation(binding=binding))
    assert not await store.save_binding(bound("b-1", "b"))
    if store.shared:
        # What was made before there were nodes is the next one's that starts.
        await store.create_binding(BindingCreation(binding=bound("b-0", NOBODY.node_id)))
        assert await store.recover_bindings("b") == [bound("b-0", "b"), bound("b-2", "b")]
    over = replace(bound("b-1", "a"), state=SandboxState.TERMINATED, active_at=500.0)
    assert await store.take_over(b, await heard_of(store, b, "a"), 500.0) == Estate(bindings=(over,))
    assert await store.binding("b-1") == over
    assert not await store.save_binding(bound("b-1", "a"))
    again = make_binding("b-3", thread="thread of b-1", created_at=600.0, node_id="b")
    assert (await store.create_binding(BindingCreation(binding=again))).created


async def test_a_second_server_on_one_sqlite_file_is_refused(tmp_path: Path) -> None:
    first, second = SqliteStore(tmp_path / "store.db"), SqliteStore(tmp_path / "store.db")
    await first.start()
    with pytest.raises(StoreUnavailable, match=r"another server uses the database .*store\.db"):
        await second.start()
    await second.close()
    await first.close()
    await second.start()
    await second.close()


@pytest.mark.skipif(postgres.missing() is not None, reason=str(postgres.missing()))
async def test_beats_do_not_wait_for_others(postgres_server: postgres.Server) -> None:
    url = postgres_server.fresh_url()
    store = PostgresStore(url)
    await store.start()
    owner = await store.join_node("a", "a", LONG)
    with psycopg.connect(url) as blocker:
        blocker.execute("LOCK TABLE sandbox_sessions")
        waiting = [asyncio.create_task(store.session(f"s-{number}")) for number in range(20)]
        async with asyncio.timeout(20):
            assert (await store.beat(owner)).standing is Standing.HELD
        assert not any(task.done() for task in waiting)
    assert await asyncio.gather(*waiting) == [None] * 20
    await store.close()


async def test_a_session_is_its_nodes_own(store: Store) -> None:
    a = await store.join_node("a", "a", LONG)
    await store.join_node("b", "b", LONG)
    for id, node_id in (("s-0", NOBODY.node_id), ("s-1", "a"), ("s-2", "b")):
        await store.create_session(SessionCreation(session=make_session(id, node_id=node_id)))
    await store.recover_sessions("a")
    # What was made before there were nodes is the next one's that starts; where nobody else can be, all is.
    theirs = "b" if store.shared else "a"
    found = {session.id: session.node_id for session in (await store.list_sessions(SessionQuery())).sessions}
    assert found == {"s-0": "a", "s-1": "a", "s-2": theirs}
    assert (await store.close_session("s-2") or make_session()).node_id == theirs
    if store.shared:
        assert [session.id for session in await store.expired_sessions(2000.0, "a")] == ["s-0", "s-1"]
        assert [session.id for session in await store.expired_sessions(500.0, "b")] == ["s-2"]
        # Nobody else will remove what a lost node has.
        await store.take_over(a, await heard_of(store, a, "b"), 1.0)
        assert [session.id for session in await store.expired_sessions(2000.0, "a")] == ["s-0", "s-1", "s-2"]
