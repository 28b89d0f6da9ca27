"""Which connections are let in, and what is written of those that are not."""

from __future__ import annotations

import asyncio
import resource

import pytest
from structlog.testing import capture_logs

from tidebox.api import connection_limits
from tidebox.api.connection_limits import ConnectionLimiter, RefusalLog, connection_state
from tidebox.config import load_settings


class Transport(asyncio.Transport):
    """Knows whether it was aborted."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


def admitted(room: ConnectionLimiter, address: str) -> Transport | None:
    transport = Transport()
    return transport if room.admit(transport, address) else None


def test_the_longest_idle_connection_of_an_address_makes_room() -> None:
    room = ConnectionLimiter(10, 2)
    first, second = admitted(room, "10.0.0.1"), admitted(room, "10.0.0.1")
    assert first is not None
    assert second is not None
    room.busy(first)
    room.idle(first)  # used after the second
    assert admitted(room, "10.0.0.1") is not None
    assert (first.aborted, second.aborted) == (False, True)


def test_a_connection_in_use_makes_no_room() -> None:
    room = ConnectionLimiter(2, 2)
    first, second = admitted(room, "10.0.0.1"), admitted(room, "10.0.0.2")
    assert first is not None
    assert second is not None
    room.busy(first)
    room.busy(second)
    assert admitted(room, "10.0.0.3") is None
    room.leave(first)
    room.leave(first)  # told twice, counted once
    assert admitted(room, "10.0.0.3") is not None
    assert admitted(room, "10.0.0.3") is not None  # in the place of the other


def test_nothing_is_remembered_of_those_that_are_gone() -> None:
    room = ConnectionLimiter(3, 2)
    for number in range(100):
        opened = admitted(room, f"10.0.1.{number}")
        assert opened is not None
        if number % 2:
            room.leave(opened)
    assert len(room._peers) <= 3
    assert len(room._names) == len(room._idle) <= 3


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:0:0:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    room = ConnectionLimiter(10, 1)
    first = admitted(room, one)
    assert first is not None
    room.busy(first)
    assert (admitted(room, other) is None) == same


def test_a_trusted_proxy_stands_for_many() -> None:
    room = ConnectionLimiter(5, 1, ["10.0.0.0/24"])
    assert all(admitted(room, "10.0.0.7") for _ in range(5))
    assert admitted(room, "") is not None  # gone before its address was asked for


def test_a_quarter_of_the_descriptors_is_the_servers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    room = connection_state(load_settings()).admission
    for number in range(2):
        for _ in range(15):
            opened = admitted(room, f"10.0.0.{number}")
            assert opened is not None
            room.busy(opened)
        assert admitted(room, f"10.0.0.{number}") is None
    assert admitted(room, "10.0.0.9") is None


async def test_refusals_are_counted_and_not_all_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "LINE_SECONDS", 0.05)
    log = RefusalLog()
    with capture_logs() as lines:
        for _ in range(1000):
            log.note("nonsense", "10.0.0.1")
        log.note("another", "10.0.0.2")
        await asyncio.sleep(0.2)
        log.note("nonsense", "10.0.0.3")
        log.close()
    assert [(line["reason"], line.get("address"), line.get("suppressed")) for line in lines] == [
        ("nonsense", "10.0.0.1", None),
        ("another", "10.0.0.2", None),
        ("nonsense", None, 999),
        ("nonsense", "10.0.0.3", None),
    ]
