"""Times as clients see them."""

from __future__ import annotations

import datetime


def iso_time(seconds: float) -> str:
    """A time since the epoch as ISO 8601, in UTC with milliseconds: such texts sort as the times do."""
    found = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return found.strftime("%Y-%m-%dT%H:%M:%S.") + f"{found.microsecond // 1000:03d}Z"
