"""Where a new process begins.

Many schedulers leave it on the processor of its parent, where it waits until that one sleeps, although there is another
processor that has nothing to do.
"""

from __future__ import annotations

import ctypes
import os

_ALL = os.sched_getaffinity(0)
_others = {processor: _ALL - {processor} for processor in _ALL}
_current = ctypes.CDLL(None).sched_getcpu


def spread(child: int) -> None:
    """Let a child that was forked just now begin on another processor than this one; it will ``gather``."""
    others = _others.get(_current())
    if others:
        try:
            os.sched_setaffinity(child, others)
        except OSError:
            pass  # not allowed here, or over already: it runs all the same


def gather() -> None:
    """Be free to run anywhere again."""
    if len(_ALL) > 1:
        try:
            os.sched_setaffinity(0, _ALL)
        except OSError:
            pass  # where this is not allowed nobody was spread
