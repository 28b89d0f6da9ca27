"""What there is of the machine, on whatever system that is."""

from __future__ import annotations

import os


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
