"""Times, sizes and states as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

PHASE_COLORS = {
    "running": "green",
    "starting": "green",
    "queued": "yellow",
    "completed": "blue",
    "failed": "red",
    "timed_out": "red",
    "killed": "magenta",
    "active": "green",
    "idle": "yellow",
    "suspended": "yellow",
    "yes": "green",
    "no": "red",
}
"""The colours of states in tables."""


def moment(at: datetime | None) -> str:
    """A time, as the clock of this machine shows it."""
    if at is None:
        return ""
    try:
        return at.astimezone().replace(tzinfo=None).isoformat(" ", "seconds")
    except OverflowError:
        return at.isoformat()  # no year here, so close to the end of the calendar


def took(begin: datetime | None, end: datetime | None) -> str:
    """Return the time that something took, or has taken so far; empty if it has not begun."""
    if begin is None:
        return ""
    return span(((end or datetime.now(UTC)) - begin).total_seconds())


def span(seconds: float | None) -> str:
    """A length of time."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{max(seconds, 0):.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def size_text(size: float) -> str:
    """A number of bytes as disks are sold."""
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"
