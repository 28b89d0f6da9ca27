"""Finding events in the audit log: filters, order, paging, and files that are torn, strange or gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidebox.broker.audit.query import AuditQuery, find_events


def line(number: int, **fields: Any) -> str:
    day = 1 + number // 10
    return json.dumps({"ts": f"2026-01-{day:02d}T00:00:{number % 10:02d}.000Z", "number": number, **fields}) + "\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for day in range(3):
        numbers = range(day * 10, day * 10 + 10)
        text = "".join(line(number, user_id="ada" if number % 2 else "bob", event="e") for number in numbers)
        (tmp_path / f"audit-2026-01-{day + 1:02d}-0000.jsonl").write_text(text)
    (tmp_path / "notes.txt").write_text(line(99))
    return tmp_path


def numbers(directory: Path, **query: Any) -> list[int]:
    return [event["number"] for event in find_events(directory, AuditQuery(**query))]


def test_events_are_ordered_and_paged(directory: Path) -> None:
    assert numbers(directory, limit=100) == list(range(29, -1, -1))
    assert numbers(directory, limit=100, descending=False) == list(range(30))
    assert numbers(directory, limit=3, offset=8) == [21, 20, 19]


def test_events_are_filtered_by_values(directory: Path) -> None:
    assert numbers(directory, wanted={"user_id": "ada"}, limit=3) == [29, 27, 25]
    assert numbers(directory, wanted={"user_id": "ada", "event": "other"}) == []
    # The value of another field does not count.
    assert numbers(directory, wanted={"event": "ada"}) == []


def test_a_time_range_includes_its_ends(directory: Path) -> None:
    begin, end = "2026-01-01T00:00:08.000Z", "2026-01-02T00:00:01.000Z"
    assert numbers(directory, begin=begin, end=end, descending=False) == [8, 9, 10, 11]


def test_torn_lines_are_left_out(directory: Path) -> None:
    with (directory / "audit-2026-01-03-0000.jsonl").open("a") as file:
        file.write('{"ts": "2026-01-03T00:00:09.500Z", "num\n[1]\nnull\n' + line(29))
    assert numbers(directory, limit=2) == [29, 29]


def test_values_with_escapes_are_found(directory: Path) -> None:
    (directory / "audit-2026-01-04-0000.jsonl").write_bytes(
        '{"ts":"2026-01-04T00:00:00.000Z","number":30,"user_id":"zoë \\"x\\""}\n'.encode()
    )
    assert numbers(directory, wanted={"user_id": 'zoë "x"'}) == [30]
