"""The output of a process: numbered by its bytes, bounded, and read by any number of clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from tidebox.broker.output_log import Changes
from tidebox.broker.sandboxes.processes import (
    INPUT_BYTES,
    KEPT_BYTES,
    MOST_READERS,
    WINDOW_BYTES,
    ManagedProcess,
    OutputPiece,
    OutputReader,
)
from tidebox.errors import InternalError, InvalidRequest, QuotaExceeded
from tidebox.model.events import Event, Exited, OutputEvent, Started
from tidebox.model.sandbox import Capability
from tidebox.runtime.base import Exec


class Scripted(Exec):
    """A program that does what was written down, and counts how far it got."""

    ended = False

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self.told = 0
        self.signals: list[int] = []

    async def events(self) -> AsyncIterator[Event]:
        for event in self._events:
            self.told += 1
            yield event

    async def write(self, data: bytes) -> None:
        raise AssertionError("nothing is written to it")

    async def end_input(self) -> None:
        raise AssertionError("nothing is written to it")

    async def signal(self, number: int) -> None:
        self.signals.append(number)

    async def resize(self, rows: int, columns: int) -> None:
        raise AssertionError("it has no terminal")


def process_of(outputs: Sequence[OutputEvent], *, detachable: bool = True) -> tuple[ManagedProcess, Scripted]:
    program = Scripted([Started(2), *outputs, Exited(0)])
    process = ManagedProcess(
        program, contextlib.AsyncExitStack(), detachable=detachable, capability=Capability.EXEC, terminal=False
    )
    return process, program


async def over(process: ManagedProcess) -> None:
    ended = asyncio.Event()
    process.on_end(ended.set)
    await asyncio.wait_for(ended.wait(), 30)


async def rest_of(reader: OutputReader) -> list[OutputPiece]:
    found: list[OutputPiece] = []
    while (pieces := await reader.read()) is not None:
        found += pieces
    return found


def text(pieces: Sequence[OutputPiece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


async def test_what_is_written_byte_by_byte_is_kept() -> None:
    process, _ = process_of([OutputEvent("stdout", b"%d" % (number % 10)) for number in range(100_000)])
    await over(process)
    reader = process.attach(7)
    pieces = await rest_of(reader)
    assert text(pieces) == b"789" + b"0123456789" * 9_999
    assert len(pieces) < 4
    assert (reader.offset, pieces[-1].end) == (100_000, 100_000)


async def test_small_pieces_take_no_more_memory_than_large_ones() -> None:
    process, _ = process_of([OutputEvent("stdout", b"o"), OutputEvent("stderr", b"e")] * 10_000)
    await over(process)
    reader = process.attach()
    kept = 20_000 - reader.offset
    assert KEPT_BYTES // 1000 < kept <= KEPT_BYTES // 100
    assert text(await rest_of(reader)) == b"oe" * (kept // 2)


async def test_a_program_waits_for_its_slowest_reader_only_while_it_reads() -> None:
    outputs = [OutputEvent("stdout", bytes([number]) * 65536) for number in range(100)]
    process, program = process_of(outputs, detachable=False)
    slow, fast = process.attach(), process.attach()
    first = await fast.read()
    assert first
    for _ in range(100):
        await asyncio.sleep(0)
    ahead = program.told
    assert ahead * 65536 < 2 * WINDOW_BYTES, "the program ran ahead of a client that reads nothing"
    read = asyncio.ensure_future(rest_of(fast))
    await slow.close()
    assert text(first) + text(await read) == b"".join(output.data for output in outputs)
    assert program.signals == [], "a program was ended that still has a reader"


async def test_the_last_reader_takes_a_program_along() -> None:
    outputs = [OutputEvent("stdout", b"x" * 65536)] * 100
    for detachable, signals in ((False, [9]), (True, [])):
        process, program = process_of(outputs, detachable=detachable)
        readers = [process.attach() for _ in range(3)]
        for reader in readers:
            assert program.signals == []
            await reader.close()
        assert program.signals == signals
        await over(process)


async def test_readers_begin_where_they_ask_to() -> None:
    process, _ = process_of(
        [OutputEvent("stdout", b"one"), OutputEvent("stderr", b"two"), OutputEvent("stdout", b"three")]
    )
    await over(process)
    assert [await process.attach(offset).read() for offset in (0, 2, 3, 4)] == [
        [OutputPiece("stdout", b"one", 3), OutputPiece("stderr", b"two", 6), OutputPiece("stdout", b"three", 11)],
        [OutputPiece("stdout", b"e", 3), OutputPiece("stderr", b"two", 6), OutputPiece("stdout", b"three", 11)],
        [OutputPiece("stderr", b"two", 6), OutputPiece("stdout", b"three", 11)],
        [OutputPiece("stderr", b"wo", 6), OutputPiece("stdout", b"three", 11)],
    ]
    assert await process.attach(11).read() is None
    with pytest.raises(InvalidRequest):
        process.attach(12)


async def test_a_cancelled_wait_leaves_no_waiter_behind() -> None:
    changes = Changes()
    assert await changes.wait(0.001) is False
    waiting = asyncio.ensure_future(changes.wait())
    await asyncio.sleep(0)
    assert changes.awaited
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert not changes.awaited


async def test_the_end_of_a_killed_program_waits_for_no_reader_that_stands_still() -> None:
    process, program = process_of([OutputEvent("stdout", b"x" * WINDOW_BYTES)] * 3)
    process.attach()
    assert await process.read(process.attach())
    assert not process.over
    await process.kill()
    await over(process)
    assert program.signals == [9]


async def test_a_program_has_so_many_readers_and_no_more() -> None:
    process, _ = process_of([])
    for _ in range(MOST_READERS):
        process.attach()
    with pytest.raises(QuotaExceeded):
        process.attach()
    await over(process)


async def test_a_program_that_ends_without_having_started_is_not_waited_for() -> None:
    program = Scripted([Exited(0)])
    process = ManagedProcess(
        program, contextlib.AsyncExitStack(), detachable=True, capability=Capability.EXEC, terminal=False
    )
    with pytest.raises(InternalError):
        await asyncio.wait_for(process.started(), 30)


class Deaf(Scripted):
    """One that reads nothing and does not end."""

    async def events(self) -> AsyncIterator[Event]:
        yield Started(2)
        await asyncio.Event().wait()

    async def write(self, data: bytes) -> None:
        await asyncio.Event().wait()


async def test_unread_input_is_bounded_however_many_send_it() -> None:
    program, use = Deaf([]), contextlib.AsyncExitStack()
    process = ManagedProcess(program, use, detachable=True, capability=Capability.EXEC, terminal=False)
    more = b"x" * (INPUT_BYTES // 2 + 1)
    try:
        assert await process.feed(more, False, 0.01)
        fed = await asyncio.gather(*(process.feed(more, False, 0.01) for _ in range(8)))
        assert fed == [False] * 8
        assert process._input_size <= INPUT_BYTES + len(more)
    finally:
        process._following.cancel()
        await asyncio.wait([process._following])
