"""Logs and their readers: numbers, bounds, gaps, one end."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.broker.runs.log_hub import LogChannel, LogHub, LogReader
from tidebox.broker.storage.log_frames import Gap, LogFrame
from tidebox.model.events import OutputEvent
from tidebox.model.log import Ended, Heartbeat
from tidebox.model.principal import Caller, Principal
from tidebox.model.run import Run, RunFacts

RUN = Run(
    id="run-1",
    caller=Caller(Principal("ada"), "", "", ""),
    facts=RunFacts(runtime="native", base_image="host", spec_version="1.0", policy_hash=""),
    created_at=0.0,
)
END = Ended(RUN)


def out(text: str) -> OutputEvent:
    return OutputEvent("stdout", text.encode())


def wide_channel() -> LogChannel:
    return LogChannel(max_bytes=10**9)


async def read_all(reader: LogReader) -> list[LogFrame | Gap]:
    found: list[LogFrame | Gap] = []
    while batch := await reader.read():
        found += batch
    return found


async def test_entries_are_numbered_from_one_without_holes() -> None:
    channel = wide_channel()
    for number in range(5):
        channel.publish(out(str(number)))
    channel.end(END)
    frames = await read_all(channel.read_from())
    assert [frame.seq for frame in frames if isinstance(frame, LogFrame)] == [1, 2, 3, 4, 5, 6]
    assert frames[-1] == LogFrame(6, END)


async def test_a_log_ends_once() -> None:
    channel = wide_channel()
    channel.end(END)
    for late in (END, out("x")):
        with pytest.raises(RuntimeError):
            channel.publish(late)
    assert await read_all(channel.read_from()) == [LogFrame(1, END)]


async def test_a_reader_begins_where_it_asks_to() -> None:
    channel = wide_channel()
    for number in range(4):
        channel.publish(out(str(number)))
    tail = channel.read_from(tail=True)
    channel.end(END)
    for seq, expected in ((None, 1), (0, 1), (-3, 1), (3, 3), (5, 5)):
        first = (await channel.read_from(seq).read())[0]
        assert isinstance(first, LogFrame)
        assert first.seq == expected
    assert await read_all(tail) == [LogFrame(5, END)]
    for late in (channel.read_from(99), channel.read_from(tail=True)):
        assert await read_all(late) == [LogFrame(5, END)]


async def test_a_reader_waits_for_what_comes() -> None:
    channel = wide_channel()
    reader = channel.read_from()
    reading = asyncio.ensure_future(reader.read())
    await asyncio.sleep(0)
    assert not reading.done()
    channel.publish(out("a"))
    assert await reading == [LogFrame(1, out("a"))]
    ended = asyncio.ensure_future(reader.read())
    await asyncio.sleep(0)
    channel.abandon()
    assert await ended == []


async def test_a_reader_that_goes_away_leaves_the_others() -> None:
    channel = wide_channel()
    readings = [asyncio.ensure_future(channel.read_from().read()) for _ in range(3)]
    await asyncio.sleep(0)
    readings[1].cancel()
    channel.publish(out("a"))
    assert await readings[0] == await readings[2] == [LogFrame(1, out("a"))]
    with pytest.raises(asyncio.CancelledError):
        await readings[1]


async def test_one_that_falls_behind_is_told_what_it_missed() -> None:
    channel = LogChannel(max_bytes=900)
    reader = channel.read_from()
    channel.publish(out("0"))
    assert [found for found in await reader.read()] == [LogFrame(1, out("0"))]
    for number in range(1, 8):
        channel.publish(out(str(number)))
    found = await reader.read()
    assert found[0] == Gap(requested=2, delivered=6)
    assert isinstance(found[0], Gap)
    assert found[0].lost == 4
    assert [frame.seq for frame in found[1:] if isinstance(frame, LogFrame)] == [6, 7, 8]


async def test_a_history_is_bounded_in_bytes() -> None:
    channel = LogChannel(max_bytes=10_000)
    for _ in range(1000):
        channel.publish(out("x" * 1000))
    assert channel.size <= 10_000
    assert len(channel.frames_from(1, 10**9)) == 7
    channel.publish(Heartbeat(0.0))
    assert channel.last_seq == 1001


async def test_an_entry_that_is_too_large_to_keep_is_a_gap_too() -> None:
    channel = LogChannel(max_bytes=1000)
    reader = channel.read_from()
    channel.publish(out("x" * 5000))
    channel.publish(out("a"))
    assert await reader.read() == [Gap(1, 2), LogFrame(2, out("a"))]


async def test_a_reader_is_not_left_waiting_by_an_entry_that_is_not_kept() -> None:
    channel = LogChannel(max_bytes=1000)
    reader = channel.read_from()
    channel.publish(out("x" * 5000))
    channel.end(END)
    assert await read_all(reader) == [Gap(1, 2), LogFrame(2, END)]


@given(
    st.lists(st.integers(0, 400), max_size=60),
    st.integers(300, 2000),
    st.lists(st.integers(0, 60), max_size=6),
)
async def test_a_reader_sees_every_number_or_a_gap_in_its_place(
    sizes: list[int], max_bytes: int, pauses: list[int]
) -> None:
    channel = LogChannel(max_bytes=max_bytes)
    reader = channel.read_from()
    found: list[LogFrame | Gap] = []
    for position, size in enumerate(sizes):
        channel.publish(out("x" * size))
        if position in pauses and reader.next_seq <= channel.last_seq:
            found += await reader.read()
    channel.end(END)
    found += await read_all(reader)
    following = 1
    for item in found:
        if isinstance(item, Gap):
            assert item.requested == following < item.delivered
            following = item.delivered
        else:
            assert item.seq == following
            following += 1
    assert following == len(sizes) + 2


def filled(hub: LogHub, id: str, size: int) -> None:
    hub.open(id).publish(out("x" * size))


async def test_logs_that_ended_stay_until_newer_ones_need_the_room() -> None:
    hub = LogHub(kept_bytes=10_000, kept_channels=3)
    filled(hub, "live", 50_000)
    for number in range(5):
        filled(hub, f"run-{number}", 10)
        hub.end(f"run-{number}", END)
    assert [hub.channel(f"run-{number}") is not None for number in range(5)] == [False, False, True, True, True]
    filled(hub, "big", 9_000)
    hub.end("big", END)
    assert hub.channel("run-4") is None
    assert hub.channel("big") is not None
    assert hub.channel("live") is not None
    hub.abandon("live")
    assert hub.channel("live") is None


async def test_a_log_that_is_forgotten_is_still_read_to_its_end_by_who_has_it() -> None:
    hub = LogHub(kept_bytes=0, kept_channels=0)
    filled(hub, "run", 3)
    channel = hub.channel("run")
    assert channel is not None
    reader = channel.read_from()
    hub.end("run", END)
    assert hub.channel("run") is None
    assert len(await read_all(reader)) == 2
