"""Figures over time, from the courses of runs."""

from __future__ import annotations

from typing import Any

from tidebox.model.run import Phase
from tidebox.model.run_series import Course, DayOfUser, make_series


def course(created: float, started: float | None, finished: float | None, **others: Any) -> Course:
    values: dict[str, Any] = {"user": "ada", "phase": Phase.COMPLETED, "reason": "exit_code_0", "cpu_seconds": 0.5}
    values |= others
    return Course(created_at=created, started_at=started, finished_at=finished, **values)


def test_runs_wait_and_run_at_the_times_between() -> None:
    runs = [course(5, 15, 35), course(0, 0, None), course(12, None, None, phase=Phase.QUEUED, reason=None)]
    found = make_series(runs, 0, 40, 4)
    assert list(found.times) == [10, 20, 30, 40]
    assert found.queued == (1, 1, 1, 1)
    assert found.active == (1, 2, 2, 1)
    assert found.ended == (0, 0, 0, 1)


def test_a_run_that_never_got_a_slot_was_waiting_until_its_end() -> None:
    found = make_series([course(0, None, 25, phase=Phase.KILLED, reason="canceled_by_user")], 0, 40, 4)
    assert found.queued == (1, 1, 0, 0)
    assert found.active == (0, 0, 0, 0)
    assert found.unsuccessful == (0, 0, 1, 0)
    assert found.reasons == (("canceled_by_user", 1),)
    assert found.waits[0] == (None, None, None, None)


def test_runs_that_ended_before_or_after_do_not_count_as_ended() -> None:
    found = make_series([course(0, 0, 10), course(0, 0, 30), course(0, 0, 20)], 10, 20, 1)
    assert found.ended == (1,)
    assert found.active == (1,)


def test_percentiles_are_values_that_there_were() -> None:
    found = make_series([course(0, 1, 1 + number) for number in range(1, 101)], 0, 1000, 1)
    assert [list(each) for each in found.durations] == [[50], [95], [99]]
    assert [list(each) for each in found.waits] == [[1], [1], [1]]


def test_use_is_by_day_and_user() -> None:
    day = 86_400.0
    found = make_series([course(1, 1, 2), course(2, 2, 3), course(day, day, day, user="bob")], 0, 2 * day, 2)
    assert found.days == (DayOfUser("1970-01-02", "bob", 1, 0.5), DayOfUser("1970-01-01", "ada", 2, 1.0))


def test_nothing_is_nothing() -> None:
    found = make_series([], 0, 10, 2)
    assert (found.ended, found.active, found.reasons, found.days) == ((0, 0), (0, 0), (), ())
