"""Times as clients see them."""

from __future__ import annotations

import datetime


def iso_time(seconds: float) -> str:
    """A time since the epoch as ISO 8601, in UTC with milliseconds: such texts sort as the times do."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def moment(seconds: float | None) -> str | None:
    """A time as clients see it, where there is one."""
    return None if seconds is None else iso_time(seconds)
