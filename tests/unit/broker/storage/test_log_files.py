"""Logs on the disk: read from their beginning, continued by the next server, torn ones, full disks, one end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.broker.runs.log_hub import LogHub, LogReader
from tidebox.broker.runs.log_writer import LogWriter
from tidebox.broker.storage.log_files import LogFileReader, LogFiles, encode
from tidebox.broker.storage.log_frames import Gap, LogFrame
from tidebox.model.events import OutputEvent
from tidebox.model.log import Began, Ended, Heartbeat, InputClosed, LogEntry, PhaseChanged, Truncated
from tidebox.model.principal import Caller, Principal
from tidebox.model.run import Phase, Reason, Run, RunFacts

RUN = Run(
    id="run-1",
    caller=Caller(Principal("ada"), "", "", ""),
    facts=RunFacts(runtime="native", base_image="host", spec_version="1.0", policy_hash=""),
    created_at=0.0,
    phase=Phase.COMPLETED,
)
END = Ended(RUN)
MakeHub = Callable[..., LogHub]


def out(text: str) -> OutputEvent:
    return OutputEvent("stdout", text.encode())


@pytest.fixture
async def make_hub(tmp_path: Path) -> AsyncIterator[MakeHub]:
    hubs: list[LogHub] = []

    def make(**options: Any) -> LogHub:
        hubs.append(LogHub(LogFiles(tmp_path), **options))
        return hubs[-1]

    yield make
    for hub in hubs:
        await hub.close()


async def read_all(reader: LogReader | None) -> list[LogFrame | Gap]:
    assert reader is not None
    found: list[LogFrame | Gap] = []
    while batch := await reader.read():
        found += batch
    await reader.close()
    return found


def numbers(items: list[LogFrame | Gap]) -> list[int]:
    return [item.seq for item in items if isinstance(item, LogFrame)]


ENTRIES: list[LogEntry] = [
    PhaseChanged(Phase.QUEUED),
    Began(1.5),
    OutputEvent("stdout", b"\x00\xff"),
    OutputEvent("stderr", "é".encode()),
    Truncated("log_cap"),
    InputClosed("stdin_bps"),
    Heartbeat(2.25),
]


async def test_every_kind_of_entry_comes_back(make_hub: MakeHub) -> None:
    first = make_hub()
    channel = first.open("run-1")
    for entry in ENTRIES:
        channel.publish(entry)
    first.end("run-1", END)
    await first.close()
    found = await read_all(await make_hub().reader(RUN))
    assert found == [LogFrame(seq, entry) for seq, entry in enumerate([*ENTRIES, END], start=1)]


async def test_what_left_the_memory_is_read_from_the_disk(make_hub: MakeHub) -> None:
    hub = make_hub(buffer_bytes=1000)
    channel = hub.open("run-1")
    for number in range(50):
        channel.publish(out(str(number)))
    assert channel.first_seq > 40
    going_on = await hub.reader(RUN)
    resumed = await hub.reader(RUN, 20)
    assert going_on is not None
    first = await going_on.read()
    assert isinstance(first[0], LogFrame)
    hub.end("run-1", END)
    assert numbers([*first, *await read_all(going_on)]) == list(range(1, 52))
    assert numbers(await read_all(resumed)) == list(range(20, 52))
    assert numbers(await read_all(await hub.reader(RUN))) == list(range(1, 52))


async def test_a_reader_that_falls_behind_gets_a_gap(make_hub: MakeHub, tmp_path: Path) -> None:
    drops: list[int] = []
    hub = LogHub(LogFiles(tmp_path / "other"), buffer_bytes=1000, on_drop=drops.append)
    channel = hub.open("run-1")
    channel.publish(out("0"))
    reader = await hub.reader(RUN)
    assert reader is not None
    assert numbers(await reader.read()) == [1]
    for number in range(1, 20):
        channel.publish(out(str(number)))
    hub.end("run-1", END)
    gap, *rest = await read_all(reader)
    assert isinstance(gap, Gap)
    assert (gap.requested, gap.lost) == (2, drops[0])
    assert numbers(rest) == list(range(gap.delivered, 22))
    # A reader that resumes at that number gets all of it.
    assert numbers(await read_all(await hub.reader(RUN, 2))) == list(range(2, 22))
    await hub.close()


async def test_numbers_that_another_node_may_have_used_are_not_lost_entries(make_hub: MakeHub) -> None:
    run = replace(RUN, attempt=2)
    hub = make_hub()
    channel = await hub.resume(run.id, begins_at=run.first_seq)
    channel.publish(PhaseChanged(Phase.QUEUED))
    reader = await hub.reader(run)
    assert reader is not None
    [first, queued] = await reader.read()
    assert isinstance(first, Gap)
    assert (first.requested, first.delivered, first.lost) == (1, 1_000_001, 0)
    assert queued == LogFrame(1_000_001, PhaseChanged(Phase.QUEUED))
    hub.end(run.id, END)
    await hub.close()
    # From the disk too, wherever a reader goes on.
    for asked in (None, 1, 7, 1_000_000):
        found = await read_all(await make_hub().reader(run, asked))
        assert sum(item.lost for item in found if isinstance(item, Gap)) == 0
        assert numbers(found) == [1_000_001, 1_000_002]
    # What is really missing is told.
    assert Gap(5, 1_000_011, run.first_seq).lost == 10


async def test_the_next_server_goes_on_with_the_numbers(make_hub: MakeHub, tmp_path: Path) -> None:
    first = make_hub()
    channel = first.open("run-1")
    channel.publish(PhaseChanged(Phase.QUEUED))
    channel.publish(PhaseChanged(Phase.STARTING))
    first.abandon("run-1")
    await first.close()
    path = tmp_path / "run-1" / "logs" / "stream.log"
    with path.open("ab") as file:
        file.write(encode(LogFrame(3, out("torn")))[:-2])
    second = make_hub()
    resumed = await second.resume("run-1")
    assert (resumed.first_seq, resumed.last_seq) == (3, 2)
    resumed.publish(out("new"))
    second.end("run-1", END)
    await second.close()
    found = await read_all(await make_hub().reader(RUN))
    assert [item.entry for item in found if isinstance(item, LogFrame)] == [
        PhaseChanged(Phase.QUEUED),
        PhaseChanged(Phase.STARTING),
        out("new"),
        END,
    ]
    assert numbers(found) == [1, 2, 3, 4]


async def test_an_interrupted_log_ends_after_what_its_readers_have_seen(make_hub: MakeHub) -> None:
    first = make_hub()
    channel = first.open("run-1")
    channel.publish(out("a"))
    first.abandon("run-1")
    await first.close()
    run = replace(RUN, phase=Phase.FAILED, reason=Reason.SERVER_RESTARTED)
    hub = make_hub()
    assert numbers(await read_all(await hub.reader(run))) == [1, 2]
    assert numbers(await read_all(await hub.reader(run, 7))) == [7]
    assert numbers(await read_all(await hub.reader(run, tail=True))) == [2]


async def test_a_finished_log_always_gives_its_end(make_hub: MakeHub) -> None:
    hub = make_hub()
    hub.open("run-1").publish(out("a"))
    hub.end("run-1", END)
    await hub.close()
    for source in (hub, make_hub()):
        for seq, tail in ((99, False), (None, True), (2, False)):
            assert await read_all(await source.reader(RUN, seq, tail=tail)) == [LogFrame(2, END)]
    assert await read_all(await make_hub().reader(replace(RUN, id="unknown"))) != []


async def test_a_disk_that_takes_nothing_costs_only_the_disk(make_hub: MakeHub, tmp_path: Path) -> None:
    blocked = tmp_path / "run-1"
    blocked.write_text("not a directory")
    hub = make_hub(buffer_bytes=1000)
    channel = hub.open("run-1")
    for number in range(10):
        channel.publish(out(str(number)))
        await channel.flush()
    hub.end("run-1", END)
    with pytest.raises(NotADirectoryError):
        await hub.reader(replace(RUN, id="run-1/x"))
    blocked.unlink()
    gap, *rest = await read_all(await hub.reader(RUN))
    assert isinstance(gap, Gap)
    assert gap.requested == 1
    assert numbers(rest)[-1] == 11


async def test_entries_lost_to_a_full_disk_are_a_gap(make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = make_hub(buffer_bytes=100)
    channel = hub.open("run-1")
    channel.publish(out("a"))
    await channel.flush()
    real = os.write

    def full(file: int, data: bytes) -> int:
        real(file, bytes(data)[:5])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        channel.publish(out("lost"))
        await channel.flush()
    channel.publish(out("b"))
    hub.end("run-1", END)
    await hub.close()
    found = await read_all(await make_hub().reader(RUN))
    assert found == [LogFrame(1, out("a")), Gap(2, 3), LogFrame(3, out("b")), LogFrame(4, END)]


async def test_readers_are_told_that_the_server_is_there() -> None:
    hub = LogHub(heartbeat_seconds=0.01)
    hub.start()
    watched, unwatched = hub.open("run-1"), hub.open("run-2")
    reader = watched.read_from()
    found = [item for _ in range(3) for item in await reader.read()]
    assert all(isinstance(item, LogFrame) and isinstance(item.entry, Heartbeat) for item in found)
    assert unwatched.last_seq == 0
    await reader.close()
    last = watched.last_seq
    await asyncio.sleep(0.03)
    assert watched.last_seq == last
    await hub.close()


async def test_logs_of_forgotten_runs_are_removed(tmp_path: Path) -> None:
    files = LogFiles(tmp_path)
    for name in ("old", "new"):
        file = files.new(name)
        file.append(LogFrame(1, out("a")))
        await file.close()
    os.utime(tmp_path / "old" / "logs" / "stream.log", (0, 0))
    (tmp_path / "no-log").mkdir()
    assert [(log.run_id, log.modified > 0) for log in await files.kept()] == [("new", True), ("old", False)]
    await files.remove("old")
    assert sorted(os.listdir(tmp_path)) == ["new", "no-log"]
    (tmp_path / "new" / "artifacts").mkdir()
    await files.remove("new")
    assert (tmp_path / "new" / "artifacts").is_dir()
    files.close()


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(0, 400))
def test_a_log_may_end_anywhere(chunks: list[bytes], cut: int) -> None:
    import tempfile

    records = [encode(LogFrame(seq, OutputEvent("stderr", data))) for seq, data in enumerate(chunks, start=1)]
    whole = b"".join(records)
    kept = whole[: max(len(whole) - cut, 0)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        path.write_bytes(kept)
        log = LogFileReader(path)
        frames = log.read_from(1, 10**9)
        extents = log.extents()
        seq, end = log.last_seq()
        log.close()
    assert [frame.seq for frame in frames] == list(range(1, seq + 1))
    assert end == sum(len(record) for record in records[:seq]) <= len(kept)
    assert b"".join(kept[each.offset : each.offset + each.length] for each in extents) == b"".join(chunks[:seq])


async def test_output_in_haste_becomes_few_frames_and_none_is_late() -> None:
    hub = LogHub()
    channel = hub.open("run-1")
    writer = LogWriter(channel, 10**6)
    writer.write("stdout", b"first ")
    assert channel.last_seq == 1
    for _ in range(1000):
        writer.write("stdout", b"x")
    assert channel.last_seq == 1
    writer.write("stderr", b"err")
    await asyncio.sleep(0.02)
    assert [frame.entry for frame in channel.frames_from(1, 10**9)] == [
        OutputEvent("stdout", b"first "),
        OutputEvent("stdout", b"x" * 1000),
        OutputEvent("stderr", b"err"),
    ]
    # What is no text does not wait for the rest of a character for ever.
    writer.write("stdout", b"\xe2")
    await asyncio.sleep(0.02)
    assert channel.frames_from(4, 1)[0].entry == OutputEvent("stdout", b"\xe2")
    writer.flush()
