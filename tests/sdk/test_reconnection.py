"""When a client connects again."""

from __future__ import annotations

import pytest

from tidebox.sdk.reconnection import Reconnection


def test_at_once_then_after_pauses_that_double_up_to_half_a_minute() -> None:
    schedule = Reconnection()
    schedule.connected(0.0)
    now = 100.0
    pauses = [schedule.pause(now)]
    for _ in range(12):
        schedule.failed(now)
        pauses.append(schedule.pause(now))
    assert pauses == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30])


def test_a_success_starts_over() -> None:
    schedule = Reconnection()
    for _ in range(5):
        schedule.failed(0.0)
    schedule.connected(10.0)
    assert schedule.pause(11.0) == 0
    schedule.failed(11.0)
    assert schedule.pause(11.0) == pytest.approx(0.1)


def test_time_that_passed_counts() -> None:
    schedule = Reconnection()
    schedule.failed(5.0)
    schedule.failed(5.0)
    assert schedule.pause(5.15) == pytest.approx(0.05)
    assert schedule.pause(6.0) == 0


def test_a_server_that_drops_every_connection_is_not_asked_without_pause() -> None:
    schedule = Reconnection()
    schedule.connected(1.0)
    assert schedule.pause(1.0) == pytest.approx(0.1)
