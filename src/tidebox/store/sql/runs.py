"""Runs in a database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from tidebox.errors import NotFound
from tidebox.model.idempotency import Answered
from tidebox.model.node import NOBODY, Owner
from tidebox.model.run import (
    NODE_LOST,
    STARTABLE,
    UNFINISHED,
    Phase,
    Run,
    Transition,
    advanced,
    ended,
    taken_over,
)
from tidebox.model.run_query import RunPage, RunQuery
from tidebox.model.run_series import Course
from tidebox.model.run_totals import Summary, Totals
from tidebox.store.base import Creation, Holdings
from tidebox.store.sql import claims, sessions
from tidebox.store.sql.artifacts import forget_artifacts, having
from tidebox.store.sql.rows import (
    changing_columns,
    moment,
    owner_columns,
    record_of,
    run_of,
    run_row,
    stamp,
    stamp_within,
)
from tidebox.store.sql.schema import nodes, run_records, run_work, runs

_columns = runs.c
_FEW = 1000
_COUNTED_TOGETHER = ({"user", "phase"}, {"runtime", "phase"})
_UNFINISHED = sorted(phase.value for phase in UNFINISHED)

# Written once: SQLAlchemy compiles a statement it knows only the first time.
_INSERT = sa.insert(runs)
_INSERT_RECORD = sa.insert(run_records)
_INSERT_WORK = sa.insert(run_work)
_WHOLE = sa.select(
    run_records.c.record,
    _columns.phase,
    _columns.started_at,
    _columns.node_id,
    _columns.node_epoch,
    _columns.attempt,
).join_from(runs, run_records, run_records.c.run_id == _columns.id)
_FIND = _WHOLE.where(_columns.id == bindparam("run_id"))
_FIND_TO_CHANGE = _FIND.with_for_update(of=runs)
_FIND_SOME = _WHOLE.where(_columns.id.in_(bindparam("run_ids", expanding=True)))
# The fence: nobody changes a run but who owns it.
_AS_IT_WAS = sa.and_(
    _columns.id == bindparam("run_id"),
    _columns.phase == bindparam("before"),
    _columns.node_id == bindparam("of_node"),
    _columns.node_epoch == bindparam("of_epoch"),
    _columns.attempt == bindparam("of_attempt"),
)
_STEP = sa.update(runs).where(_AS_IT_WAS).values(phase=bindparam("to"), started_at=bindparam("started"))
_CHANGE = sa.update(runs).where(_AS_IT_WAS)
_END_RECORD = sa.update(run_records).where(run_records.c.run_id == bindparam("of_run"))
_DROP_WORK = sa.delete(run_work).where(run_work.c.run_id == bindparam("of_run"))
_WITH_WORK = (
    _WHOLE.add_columns(run_work.c.work)
    .join(run_work, run_work.c.run_id == _columns.id, isouter=True)
    .order_by(_columns.created_at, _columns.id)
)
_IS_UNFINISHED = _columns.phase.in_(_UNFINISHED)
_RECOVER_ALL = (
    sa.update(runs).where(_IS_UNFINISHED).values(node_id=bindparam("of_node"), node_epoch=bindparam("of_epoch"))
)
_RECOVER = _RECOVER_ALL.where(sa.or_(_columns.node_id == bindparam("of_node"), _columns.node_id == NOBODY.node_id))
_FIND_UNFINISHED = _WITH_WORK.where(_IS_UNFINISHED, _columns.node_id == bindparam("of_node"))
_IS_WITHOUT_NODE = sa.and_(
    _IS_UNFINISHED, _columns.node_id != NOBODY.node_id, _columns.node_id.not_in(sa.select(nodes.c.node_id))
)
EXIST_WITHOUT_NODE = sa.exists().where(_IS_WITHOUT_NODE)
"""Whether there are unfinished runs of a node that is none any more."""
_FIND_WITHOUT_NODE = _WITH_WORK.where(_IS_WITHOUT_NODE).with_for_update(of=runs)
_FIND_TAKEN_OVER = _WITH_WORK.where(
    _columns.phase == Phase.QUEUED.value,
    _columns.node_id == bindparam("of_node"),
    _columns.node_epoch == bindparam("of_epoch"),
    _columns.attempt > 1,
)
_COUNT_UNFINISHED = sa.select(sa.func.count()).where(
    _columns.user_id == bindparam("user"), _columns.phase.in_(_UNFINISHED)
)
_COUNT_IN_SESSION = sa.select(sa.func.count()).where(
    _columns.user_id == bindparam("user"), _columns.session_id == bindparam("session")
)
_CPU_SECONDS = sa.select(sa.func.coalesce(sa.func.sum(_columns.cpu_time_sec), 0.0)).where(
    _columns.user_id == bindparam("user"), _columns.finished_at >= bindparam("since")
)
_FINISHED_BEFORE = (
    sa.select(_columns.id, _columns.user_id)
    .where(_columns.finished_at < bindparam("before"))
    .order_by(_columns.finished_at)
    .limit(bindparam("most"))
)


def create(connection: sa.Connection, creation: Creation) -> Answered | None:
    """Create a run, or return how its claim was answered before."""
    run, claim = creation.run, creation.claim
    claims.lock_user(connection, run.user)
    if claim is not None:
        prior = claims.answered(connection, claim, creation.valid_after)
        if prior is not None:
            return prior
    session_id = run.facts.session_id
    if session_id is not None:
        session = sessions.find(connection, session_id)
        if session is None or session.user != run.user or not session.usable(run.created_at):
            raise NotFound("no such session", session_id=session_id)
    if creation.check is not None:
        creation.check(_holdings(connection, run, creation.used_since))
    try:
        connection.execute(_INSERT, run_row(run))
    except sa.exc.IntegrityError:
        raise ValueError(f"there is a run {run.id} already") from None
    connection.execute(_INSERT_RECORD, {"run_id": run.id, "record": record_of(run)})
    connection.execute(_INSERT_WORK, {"run_id": run.id, "work": creation.work})
    if claim is not None:
        claims.remember(
            connection,
            Answered(claim=claim, object_id=run.id, response=creation.response, created_at=run.created_at),
        )
    return None


def _holdings(connection: sa.Connection, new: Run, used_since: float) -> Holdings:
    session_id = new.facts.session_id
    in_session = 0
    if session_id is not None:
        in_session = connection.scalar(_COUNT_IN_SESSION, {"user": new.user, "session": session_id}) or 0
    return Holdings(
        unfinished=connection.scalar(_COUNT_UNFINISHED, {"user": new.user}) or 0,
        in_session=in_session,
        cpu_seconds=connection.scalar(_CPU_SECONDS, {"user": new.user, "since": stamp(used_since)}) or 0.0,
    )


def find(connection: sa.Connection, run_id: str) -> Run | None:
    """The run of that id."""
    row = connection.execute(_FIND, {"run_id": run_id}).first()
    return run_of(*row) if row is not None else None


def advance(connection: sa.Connection, run: Run, step: Transition) -> Run | None:
    """Take a run one step further and return it; None where it cannot take that step, or is another owner's."""
    row = connection.execute(_FIND_TO_CHANGE, {"run_id": run.id}).first()
    there = run_of(*row) if row is not None else None
    if there is None or (there.owner, there.attempt) != (run.owner, run.attempt):
        return None
    following = advanced(there, step)
    return following if following is not None and _take_step(connection, there, following) else None


def _take_step(connection: sa.Connection, run: Run, following: Run) -> bool:
    if following.phase.terminal:
        changed = connection.execute(_CHANGE, {**_as_it_was(run), **changing_columns(following)})
    else:
        started = None if following.started_at is None else stamp(following.started_at)
        changed = connection.execute(_STEP, {**_as_it_was(run), "to": following.phase.value, "started": started})
    if changed.rowcount != 1:
        return False
    if following.phase.terminal:
        connection.execute(_END_RECORD, {"of_run": run.id, "record": record_of(following)})
    if following.phase not in STARTABLE:
        connection.execute(_DROP_WORK, {"of_run": run.id})
    return True


def _as_it_was(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.id,
        "before": run.phase.value,
        "of_node": run.owner.node_id,
        "of_epoch": run.owner.epoch,
        "of_attempt": run.attempt,
    }


def recover(connection: sa.Connection, owner: Owner, *, shared: bool) -> list[tuple[Run, bytes | None]]:
    """Make ``owner`` the owner of every unfinished run that can be its own, and return them."""
    connection.execute(_RECOVER if shared else _RECOVER_ALL, {"of_node": owner.node_id, "of_epoch": owner.epoch})
    found = connection.execute(_FIND_UNFINISHED, {"of_node": owner.node_id})
    return [(run_of(*whole), work) for *whole, work in found]


def take_over(connection: sa.Connection, owner: Owner, at: float) -> tuple[Run, ...]:
    """Make ``owner`` the owner of the runs without a node that it can do, and return the others, which have ended."""
    over = []
    for *whole, work in connection.execute(_FIND_WITHOUT_NODE).all():
        run = run_of(*whole)
        if run.movable and work is not None:
            connection.execute(_CHANGE, {**_as_it_was(run), **owner_columns(taken_over(run, owner))})
            continue
        following = advanced(run, ended(NODE_LOST, at))
        if following is not None and _take_step(connection, run, following):
            over.append(following)
    return tuple(over)


def taken_over_by(connection: sa.Connection, owner: Owner) -> tuple[tuple[Run, bytes], ...]:
    """The queued runs that ``owner`` has taken over from others, oldest first."""
    found = connection.execute(_FIND_TAKEN_OVER, {"of_node": owner.node_id, "of_epoch": owner.epoch})
    return tuple((run_of(*whole), work) for *whole, work in found if work is not None)


def list_runs(connection: sa.Connection, query: RunQuery) -> RunPage:
    """Runs in the order asked for; those without the time that is sorted by come last."""
    counted = _conditions(connection, query, scan=not _has_index(query))
    total = connection.scalar(sa.select(sa.func.count()).select_from(runs).where(*counted)) or 0
    ids: list[str] = []
    if query.offset < total:
        ids = _page(connection, query, _conditions(connection, query, scan=total > _FEW))
    found = {}
    for start in range(0, len(ids), 500):
        for whole in connection.execute(_FIND_SOME, {"run_ids": ids[start : start + 500]}):
            run = run_of(*whole)
            found[run.id] = run
    return RunPage(tuple(found[run_id] for run_id in ids), total)


def _page(connection: sa.Connection, query: RunQuery, conditions: Sequence[sa.ColumnElement[bool]]) -> list[str]:
    """Ids of one page: first of the runs with a time, then of those without, each in the order of an index."""
    time = _columns[query.sort]
    order = (time.desc(), _columns.id.desc()) if query.descending else (time, _columns.id)
    timed = sa.select(_columns.id).where(*conditions, time.is_not(None))
    ids = list(connection.scalars(timed.order_by(*order).limit(query.limit).offset(query.offset)))
    room = query.limit - len(ids)
    if not room or query.sort == "created_at":
        return ids
    passed = query.offset + len(ids)
    if not ids and query.offset:
        passed = connection.scalar(sa.select(sa.func.count()).select_from(timed.subquery())) or 0
    untimed = sa.select(_columns.id).where(*conditions, time.is_(None)).order_by(order[1])
    return ids + list(connection.scalars(untimed.limit(room).offset(max(0, query.offset - passed))))


def _has_index(query: RunQuery) -> bool:
    """Whether one index has all that is asked for, so that counting looks at nothing else."""
    asked = {
        name
        for name in ("user", "session_id", "phase", "runtime", "base_image", "image_digest", "node_id", "text")
        if getattr(query, name) is not None
    }
    timed = any((query.started_from, query.started_to, query.finished_from, query.finished_to))
    return "session_id" in asked or (not timed and (len(asked) == 1 or asked in _COUNTED_TOGETHER))


def _conditions(connection: sa.Connection, query: RunQuery, *, scan: bool) -> list[sa.ColumnElement[bool]]:
    """The SQL of a query for runs. ``scan`` asks SQLite to use the index that has everything, in the order asked for.

    It knows no figures: left alone it takes any index on a column that is asked for, though nearly all runs may have
    that value, and then looks up every single row.
    """
    sqlite = connection.dialect.name == "sqlite"
    conditions = [
        (_unindexed(column) if scan and sqlite else column) == wanted
        for column, wanted in (
            (_columns.user_id, query.user),
            (_columns.phase, query.phase.value if query.phase is not None else None),
            (_columns.runtime, query.runtime),
            (_columns.base_image, query.base_image),
            (_columns.image_digest, query.image_digest),
        )
        if wanted is not None
    ]
    if query.node_id is not None:
        conditions.append(_columns.node_id == query.node_id)
    if query.session_id is not None:
        conditions.append(_columns.session_id == query.session_id)
    for column, low, high in (
        (_columns.started_at, query.started_from, query.started_to),
        (_columns.finished_at, query.finished_from, query.finished_to),
    ):
        if low is not None:
            conditions.append(column >= stamp(low))
        if high is not None:
            conditions.append(column <= stamp_within(high))
    if query.text is not None:
        position = sa.func.instr if sqlite else sa.func.strpos
        conditions.append(position(_columns.search, query.text.lower()) > 0)
    if query.label is not None:
        conditions.append(_has_label(*query.label, sqlite=sqlite))
    return conditions


def _has_label(name: str, value: str, *, sqlite: bool) -> sa.ColumnElement[bool]:
    """Whether a run has a label. Only its record tells."""
    record = run_records.c.record
    wanted: sa.ColumnElement[bool]
    if sqlite:
        labels = sa.func.json_each(record, "$.facts.labels").table_valued("key", "value")
        wanted = sa.exists().where(labels.c.key == name, labels.c.value == value)
    else:
        # PostgreSQL reads nothing of a JSON text that has the one character in it that it does not take.
        readable = sa.func.strpos(record, "\\u0000") == 0
        found = sa.cast(record, sa.JSON)["facts"]["labels"][name].as_string() == value
        wanted = sa.case((readable, found), else_=sa.false())
    return sa.exists().where(run_records.c.run_id == _columns.id, wanted)


def _unindexed(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """A column, as SQLite says that none of its indexes is to be used: with a plus sign."""
    return UnaryExpression(column, operator=custom_op("+"), type_=column.type)


def prune(connection: sa.Connection, before: float, most: int) -> int:
    """Forget at most so many of the runs finished before a time, and say how many it were."""
    found = connection.execute(_FINISHED_BEFORE, {"before": stamp(before), "most": most}).all()
    # In one order for everybody, so that no two wait for each other.
    for user in sorted({user for _, user in found}):
        claims.lock_user(connection, user)
    ids = [run_id for run_id, _ in found]
    if ids:
        owners = {run_id: user for run_id, user in found}
        for run_id in having(connection, ids):
            forget_artifacts(connection, run_id, owners[run_id])
        connection.execute(sa.delete(run_work).where(run_work.c.run_id.in_(ids)))
        connection.execute(sa.delete(run_records).where(run_records.c.run_id.in_(ids)))
        connection.execute(sa.delete(runs).where(_columns.id.in_(ids)))
    return len(ids)


def _counted(phase: Phase) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((_columns.phase == phase.value, 1), else_=0))


_TOTALS = (
    sa.func.count(),
    _counted(Phase.COMPLETED),
    _counted(Phase.FAILED),
    _counted(Phase.TIMED_OUT),
    _counted(Phase.KILLED),
    sa.func.coalesce(sa.func.sum(_columns.cpu_time_sec), 0.0),
    sa.func.sum(_columns.log_bytes),
    sa.func.sum(_columns.artifact_bytes),
)
_TOTAL_NAMES = ("runs", "completed", "failed", "timed_out", "killed", "cpu_seconds", "log_bytes", "artifact_bytes")


def summary(connection: sa.Connection, created_from: float | None, created_to: float | None, top: int = 10) -> Summary:
    """Totals over the runs created between two times."""
    conditions = []
    if created_from is not None:
        conditions.append(_columns.created_at >= stamp(created_from))
    if created_to is not None:
        conditions.append(_columns.created_at <= stamp(created_to))

    # Gone through once: the groups are few, the runs are many.
    by_runtime: dict[str, Totals] = {}
    by_user: dict[str, Totals] = {}
    groups = sa.select(_columns.runtime, _columns.user_id, *_TOTALS).where(*conditions)
    for runtime, user, *values in connection.execute(groups.group_by(_columns.runtime, _columns.user_id)):
        found = _totals(values)
        by_runtime[runtime] = _added([by_runtime.get(runtime, Totals()), found])
        by_user[user] = _added([by_user.get(user, Totals()), found])
    return Summary(
        totals=_added(by_runtime.values()),
        by_runtime=dict(sorted(by_runtime.items())),
        top_users=tuple(sorted(by_user.items(), key=lambda item: (-item[1].runs, item[0]))[:top]),
    )


_COURSE = sa.select(
    _columns.user_id,
    _columns.phase,
    _columns.reason_code,
    _columns.created_at,
    _columns.started_at,
    _columns.finished_at,
    _columns.cpu_time_sec,
).order_by(_columns.created_at.desc())


def courses(connection: sa.Connection, begin: float, end: float, limit: int) -> list[Course]:
    """The courses of the runs that existed between two times, the newest first."""
    there = sa.or_(_columns.finished_at.is_(None), _columns.finished_at >= stamp(begin))
    found = connection.execute(_COURSE.where(_columns.created_at <= stamp(end), there).limit(limit))
    return [
        Course(
            user=user,
            phase=Phase(phase),
            reason=reason,
            created_at=moment(created),
            started_at=moment(started) if started is not None else None,
            finished_at=moment(finished) if finished is not None else None,
            cpu_seconds=cpu or 0.0,
        )
        for user, phase, reason, created, started, finished, cpu in found
    ]


def _totals(values: Sequence[Any]) -> Totals:
    # PostgreSQL adds up whole numbers to decimals.
    kinds: Any = {"cpu_seconds": float}
    return Totals(**{name: kinds.get(name, int)(value) for name, value in zip(_TOTAL_NAMES, values, strict=True)})


def _added(parts: Iterable[Totals]) -> Totals:
    return reduce(
        lambda one, other: _totals([getattr(one, n) + getattr(other, n) for n in _TOTAL_NAMES]), parts, Totals()
    )
