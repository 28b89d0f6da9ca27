"""Input on its way to a program: order, waiting, rules."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.virtual_time import VirtualTimeLoop
from tidebox.broker.runs.stdin import StdinFeed, StdinRules
from tidebox.errors import Conflict


async def collected(feed: StdinFeed) -> bytes:
    return b"".join([chunk async for chunk in feed.chunks()])


def make_feed(**rules: float) -> tuple[StdinFeed, list[str]]:
    broken: list[str] = []
    return StdinFeed(StdinRules(**rules), broken.append), broken  # type: ignore[arg-type]


async def test_input_arrives_in_order_and_ends() -> None:
    feed, broken = make_feed()
    await feed.write(b"early ")
    reading = asyncio.ensure_future(collected(feed))
    for number in range(100):
        await feed.write(b"%d " % number)
        await asyncio.sleep(0)
    await feed.write(b"")
    feed.close()
    feed.close()
    assert await reading == b"early " + b"".join(b"%d " % number for number in range(100))
    assert broken == []


async def test_a_writer_waits_while_the_program_does_not_read() -> None:
    feed, _ = make_feed(max_bytes=64 * 32 * 1024)

    async def send() -> None:
        for _ in range(64):
            await feed.write(b"x" * 32 * 1024)

    sending = asyncio.ensure_future(send())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not sending.done()
    reading = asyncio.ensure_future(collected(feed))
    await sending
    feed.close()
    assert len(await reading) == 64 * 32 * 1024


async def test_a_waiting_writer_is_released_when_the_run_ends() -> None:
    feed, _ = make_feed(max_frame_bytes=10**6)
    sending = asyncio.ensure_future(feed.write(b"x" * 10**6))
    await asyncio.sleep(0)
    assert not sending.done()
    feed.close()
    await sending
    with pytest.raises(Conflict):
        await feed.write(b"more")


@pytest.mark.parametrize(
    ("rule", "limit", "sizes"),
    [
        ("max_frame_bytes", 10, [10, 11]),
        ("max_bytes", 25, [10, 10, 6]),
        ("bytes_per_second", 20, [10, 10, 1]),
    ],
)
async def test_a_broken_rule_closes_the_input(rule: str, limit: int, sizes: list[int]) -> None:
    feed, broken = make_feed(**{rule: limit})
    for size in sizes[:-1]:
        await feed.write(b"x" * size)
    with pytest.raises(Conflict) as raised:
        await feed.write(b"x" * sizes[-1])
    name = {"bytes_per_second": "stdin_bps"}.get(rule, f"stdin_{rule}")
    assert broken == [name]
    assert raised.value.details["reason"] == name
    assert len(await collected(feed)) == sum(sizes[:-1])


def test_time_gives_back_what_may_be_sent() -> None:
    loop = VirtualTimeLoop()

    async def scenario() -> None:
        feed, broken = make_feed(bytes_per_second=100)
        for _ in range(10):
            await feed.write(b"x" * 50)
            await asyncio.sleep(0.5)
        assert broken == []
        await asyncio.sleep(1000)
        await feed.write(b"x" * 100)
        with pytest.raises(Conflict):
            await feed.write(b"x")

    loop.run_until_complete(scenario())
    loop.close()


def test_an_idle_client_loses_the_input() -> None:
    loop = VirtualTimeLoop()

    async def scenario() -> None:
        feed, broken = make_feed(idle_timeout=5.0)
        # What is waited for before the program reads is not the client's doing.
        await asyncio.sleep(60)
        reading = asyncio.ensure_future(collected(feed))
        for _ in range(3):
            await asyncio.sleep(4)
            await feed.write(b"x")
        started = loop.time()
        assert await reading == b"xxx"
        assert loop.time() - started == pytest.approx(5.0)
        assert broken == ["stdin_idle_timeout_sec"]

    loop.run_until_complete(scenario())
    loop.close()
