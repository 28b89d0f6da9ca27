"""The audit log: complete, in order, by day, kept for its time, never in the way."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.stage import until
from tidebox.broker.audit import audit_log as audit_module
from tidebox.broker.audit.audit_log import Audit, AuditFiles, AuditRecord, render
from tidebox.errors import AuditUnavailable
from tidebox.model.principal import Caller, Principal

CALLER = Caller(Principal("ada", frozenset({"sandbox_admin"}), "agent"), "192.0.2.7", "req-1", "fathom", "MCP")


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return the events in the log; the last line may be half written."""
    text = "".join(path.read_text() for path in sorted(directory.iterdir()))
    return [json.loads(line) for line in text.split("\n")[:-1]]


def on_day(monkeypatch: pytest.MonkeyPatch, day: str) -> None:
    monkeypatch.setattr(audit_module, "_today", lambda: day)


async def written(directory: Path, count: int) -> None:
    """Wait until so many events are in the log."""
    await until(lambda: len(lines(directory)) >= count, 0.001)


async def test_an_event_says_who_did_what_to_which(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "data" / "audit")
    await audit.start()
    audit.record("sandbox.execution.ended", CALLER, "exit_code_0", execution_id="ex-1", exit_code=0)
    await audit.close()
    [line] = lines(tmp_path / "data" / "audit")
    moment = datetime.datetime.fromisoformat(line.pop("ts"))
    assert abs((datetime.datetime.now(datetime.UTC) - moment).total_seconds()) < 60
    assert line == {
        "event": "sandbox.execution.ended",
        "user_id": "ada",
        "actor": "agent",
        "surface": "fathom",
        "source": "MCP",
        "address": "192.0.2.7",
        "request_id": "req-1",
        "outcome": "exit_code_0",
        "execution_id": "ex-1",
        "exit_code": 0,
    }


async def test_only_the_owner_reads_a_log(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit")
    await audit.start()
    audit.record("x", CALLER, "done")
    await audit.close()
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o700
    [path] = (tmp_path / "audit").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_everything_is_written_in_the_order_it_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_FLUSH_SECONDS", 0.001)
    audit = Audit(tmp_path, max_file_bytes=20_000)
    await audit.start()
    for number in range(3000):
        audit.record("x", CALLER, "done", number=number)
        if number % 100 == 0:
            await written(tmp_path, number + 1)
    await audit.close()
    assert [line["number"] for line in lines(tmp_path)] == list(range(3000))
    assert len(os.listdir(tmp_path)) > 5


async def test_events_reach_the_disk_without_being_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_FLUSH_SECONDS", 0.001)
    audit = Audit(tmp_path)
    await audit.start()
    audit.record("x", CALLER, "done")
    await written(tmp_path, 1)
    await audit.close()


def record(number: int = 0) -> AuditRecord:
    return AuditRecord(0.0, "x", CALLER, "done", {"number": number})


def files(directory: Path, **options: Any) -> AuditFiles:
    made = AuditFiles(directory, **({"retention_days": 30, "max_file_bytes": 10**9} | options))
    made.open()
    return made


def test_each_day_has_its_file_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "audit-2025-99-99-0000.jsonl").touch()
    (tmp_path / "notes.txt").touch()
    on_day(monkeypatch, "2026-01-01")
    log = files(tmp_path, retention_days=2)
    for number, day in enumerate(["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]):
        on_day(monkeypatch, day)
        log.write([record(number)])
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "audit-2025-99-99-0000.jsonl",
        "audit-2026-01-02-0000.jsonl",
        "audit-2026-01-03-0000.jsonl",
        "audit-2026-01-04-0000.jsonl",
        "notes.txt",
    ]


def test_a_restarted_server_goes_on_where_the_log_ended(tmp_path: Path) -> None:
    for number in range(6):
        log = files(tmp_path, max_file_bytes=300)
        log.write([record(number)])
        log.close()
    assert [line["number"] for line in lines(tmp_path)] == list(range(6))
    assert len(list(tmp_path.iterdir())) == 3


def test_a_torn_line_does_not_tear_the_next(tmp_path: Path) -> None:
    log = files(tmp_path)
    log.write([record(1)])
    log.close()
    [path] = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(b'{"ts":"20')
    log = files(tmp_path)
    log.write([record(2)])
    log.close()
    first, torn, last = path.read_text().splitlines()
    assert torn == '{"ts":"20'
    assert [json.loads(line)["number"] for line in (first, last)] == [1, 2]


def test_a_line_that_was_begun_is_completed_in_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_day(monkeypatch, "2026-01-01")
    log = files(tmp_path)
    log.write([record(1)])
    write, calls = os.write, 0

    def fill_up(file: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(28, "No space left on device")
        return write(file, data[:10])

    monkeypatch.setattr(os, "write", fill_up)
    with pytest.raises(OSError, match="No space"):
        log.write([record(2)])
    monkeypatch.setattr(os, "write", write)
    on_day(monkeypatch, "2026-01-02")
    log.write([record(3)])
    log.write([record(4)])
    log.close()
    numbers = [
        [json.loads(line)["number"] for line in path.read_text().splitlines()] for path in sorted(tmp_path.iterdir())
    ]
    assert numbers == [[1, 2, 3], [4]]


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_day(monkeypatch, "2026-01-01")
    target = tmp_path / "target"
    target.touch()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "audit-2026-01-01-0000.jsonl").symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        files(tmp_path / "log")
    assert target.read_bytes() == b""


def test_a_name_that_is_no_text_is_recorded_all_the_same() -> None:
    caller = Caller(Principal("a\ud800b"), "", "", "")
    assert json.loads(render(AuditRecord(0.0, "x", caller, "done", {})))["user_id"] == "a?b"


async def test_a_log_that_cannot_be_opened_keeps_the_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "audit").touch()
    audit = Audit(tmp_path / "audit")
    with pytest.raises(OSError, match="exists"):
        await audit.start()
    await audit.close()


def accepts(audit: Audit) -> bool:
    try:
        audit.check()
    except AuditUnavailable:
        return False
    return True


async def test_a_full_disk_refuses_new_work_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_FLUSH_SECONDS", 0.001)
    monkeypatch.setattr(audit_module, "_RETRY_SECONDS", 0.001)
    # The kernel refuses to let this process write a file beyond the limit, as a full disk would.
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    audit = Audit(tmp_path, max_backlog=20)
    await audit.start()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        number = 0
        while accepts(audit):
            audit.record("x", CALLER, "done", number=number)
            number += 1
            await asyncio.sleep(0)
        audit.record("x", CALLER, "done", number=number)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    await written(tmp_path, number + 1)
    audit.check()
    await audit.close()
    assert [line["number"] for line in lines(tmp_path)] == list(range(number + 1))


def test_a_killed_server_has_written_all_but_the_last_moment(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from pathlib import Path
from tidebox.broker.audit.audit_log import Audit
from tidebox.model.principal import Caller, Principal

async def main():
    audit = Audit(Path(sys.argv[1]))
    await audit.start()
    for number in range(10):
        audit.record("x", Caller(Principal("ada"), "", "", ""), "done", number=number)
    await asyncio.sleep(0.5)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=30)
    assert ended.returncode == -signal.SIGKILL
    assert [line["number"] for line in lines(tmp_path)] == list(range(10))
    assert os.listdir(tmp_path)
