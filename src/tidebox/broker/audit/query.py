"""Queries of the audit log. Blocking; for a thread."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

_NAME = re.compile(r"audit-(\d{4}-\d{2}-\d{2})-\d{4}\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """A filter of events: all of these values, within a time range that includes its ends."""

    wanted: Mapping[str, str] = field(default_factory=dict)
    begin: str | None = None
    """As events have it, ISO 8601 in UTC with milliseconds: such times sort as texts do."""
    end: str | None = None
    descending: bool = True
    limit: int = 50
    offset: int = 0


def find_events(directory: Path, query: AuditQuery) -> list[dict[str, Any]]:
    """Return the events that match a query. No more files are read than it takes to find them."""
    needles = [msgspec.json.encode(value) for value in query.wanted.values()]
    found: list[dict[str, Any]] = []
    skipped = 0
    for line in _lines(directory, query):
        # Most lines are not wanted, and looking for a text costs less than parsing one.
        if not all(needle in line for needle in needles):
            continue
        event = _parsed(line)
        if event is None or not _matches(event, query):
            continue
        if skipped < query.offset:
            skipped += 1
            continue
        found.append(event)
        if len(found) == query.limit:
            break
    return found


def _lines(directory: Path, query: AuditQuery) -> Iterator[bytes]:
    days = [(match[1], path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    for day, path in sorted(days, reverse=query.descending):
        if (query.begin is not None and day < query.begin[:10]) or (query.end is not None and day > query.end[:10]):
            continue
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            continue  # its time was over meanwhile
        yield from reversed(lines) if query.descending else lines


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None  # the torn end of what a killed server wrote
    return event if isinstance(event, dict) else None


def _matches(event: dict[str, Any], query: AuditQuery) -> bool:
    moment = str(event.get("ts", ""))
    if (query.begin is not None and moment < query.begin) or (query.end is not None and moment > query.end):
        return False
    return all(event.get(name) == value for name, value in query.wanted.items())
