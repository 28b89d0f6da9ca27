"""What waits for a client: in order, together where it can be, and never without bound."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tidebox.api.asgi import Message
from tidebox.api.fathom.outbox import MAX_DATA_BYTES, FathomOutbox


class Client:
    """Takes frames, one for each it was allowed to."""

    def __init__(self, allowed: int) -> None:
        self.frames: list[Any] = []
        self.gone = False
        self._allowed = asyncio.Semaphore(allowed)

    async def send(self, message: Message) -> None:
        await self._allowed.acquire()
        if self.gone:
            raise ConnectionResetError
        self.frames.append(json.loads(message["text"]))

    def allow(self, frames: int) -> None:
        for _ in range(frames):
            self._allowed.release()

    def leave(self) -> None:
        self.gone = True
        self._allowed.release()


async def settle() -> None:
    """Let everything happen that can happen now."""
    for _ in range(20):
        await asyncio.sleep(0)


def summary(client: Client) -> list[Any]:
    return [frame["data"] if isinstance(frame, dict) else frame for frame in client.frames]


async def test_frames_leave_in_order() -> None:
    client = Client(100)
    outbox = FathomOutbox(client.send, 10)
    for number in range(5):
        outbox.put(str(number))
    await settle()
    assert client.frames == [0, 1, 2, 3, 4]


async def test_a_writer_that_fails_lets_everybody_go() -> None:
    async def send(message: Message) -> None:
        raise ValueError("no reason in particular")

    outbox = FathomOutbox(send, 1)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    outbox.put("first")
    outbox.put("second")
    async with asyncio.timeout(10):
        await outbox.changed()
    assert (outbox.closed, outbox.full) == (True, False)


async def test_output_that_waits_is_sent_together() -> None:
    client = Client(100)
    outbox = FathomOutbox(client.send, 10)
    for text in "abc":
        outbox.put_output("1", "stdout", text, 1)
    outbox.put_output("1", "stderr", "d", 1)
    outbox.put_output("2", "stderr", "e", 1)
    outbox.put("0")
    outbox.put_output("2", "stderr", "f", 1)
    await settle()
    assert summary(client) == ["abc", "d", "e", 0, "f"]
    assert [frame["type"] for frame in client.frames if frame] == ["stdout", "stderr", "stderr", "stderr"]


async def test_output_in_very_small_pieces_is_whole() -> None:
    client = Client(100)
    outbox = FathomOutbox(client.send, 10)
    text = "".join(chr(97 + number % 26) for number in range(3000))
    for character in text:
        outbox.put_output("1", "stdout", character, 1)
    await settle()
    assert summary(client) == [text]


async def test_frames_that_are_ready_together_may_be_written_together() -> None:
    held_back: list[bool] = []

    async def send(message: Message) -> None:
        held_back.append(message["more"])

    outbox = FathomOutbox(send, 10)
    for frame in ("0", "1", "2"):
        outbox.put(frame)
    await settle()
    outbox.put("3")
    await settle()
    assert held_back == [True, True, False, False]
    held_back.clear()
    for number in range(4):
        outbox.put_output(str(number), "stdout", "x" * 40_000, 40_000)
    await settle()
    assert held_back == [True, False, True, False]


async def test_a_frame_has_a_bounded_amount_of_output() -> None:
    client = Client(100)
    outbox = FathomOutbox(client.send, 10)
    for _ in range(3):
        outbox.put_output("1", "stdout", "x" * 30_000, 30_000)
    await settle()
    assert [len(data) for data in summary(client)] == [60_000, 30_000]
    assert MAX_DATA_BYTES == 65_536


@pytest.mark.parametrize("size", [1, 100_000])
async def test_it_is_full_before_it_is_large(size: int) -> None:
    client = Client(0)
    outbox = FathomOutbox(client.send, 20)
    put = 0
    while not outbox.full:
        outbox.put_output(str(put), "stdout", "x" * size, size)
        put += 1
    assert put <= 20
    assert put * size <= 1_100_000


async def test_room_is_made_by_a_client_that_reads() -> None:
    client = Client(0)
    outbox = FathomOutbox(client.send, 3)
    for number in range(5):
        outbox.put(str(number))
    assert outbox.full
    waiting = asyncio.ensure_future(outbox.changed())
    await settle()
    assert not waiting.done()
    client.allow(3)
    await asyncio.wait_for(waiting, 30)
    assert not outbox.full


async def test_waiting_ends_with_its_time() -> None:
    outbox = FathomOutbox(Client(0).send, 1)
    outbox.put("0")
    await asyncio.wait_for(outbox.changed(0.01), 30)
    outbox.close()


async def test_a_client_that_leaves_lets_everybody_go() -> None:
    client = Client(0)
    outbox = FathomOutbox(client.send, 1)
    outbox.put("0")
    outbox.put("1")
    waiting = asyncio.ensure_future(outbox.changed())
    await settle()
    client.leave()
    await asyncio.wait_for(waiting, 30)
    assert outbox.closed
    assert not outbox.full
    outbox.put("2")
    outbox.put_output("1", "stdout", "x", 1)
    await settle()
    assert client.frames == []
