"""Keeps the frames of the code that forked a program out of sight of the program that runs above them.

A plain interpreter has nothing below the program's module frame: ``sys._getframe(1)`` raises there, ``inspect.stack()``
ends there, and the recursion limit is all the program's own. A parked interpreter was forked inside another. So its
current-frame pointer is set to NULL at the moment in which the program's first frame is made, and its recursion counter
to what an empty stack has.

Where those two live differs by version, so nothing is written before what stands there has been recognised. On an
interpreter that is not recognised, or has no ``_ctypes``, the frames stay visible and nothing else changes.
"""

from __future__ import annotations

import sys

try:
    import _ctypes
except ImportError:
    _ctypes = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Protocol

    class Place(Protocol):
        """The place of the current-frame pointer in memory; ``value`` is the address it holds."""

        value: int | None


_VERSION = sys.version_info[:2]
# Version -> where the thread state keeps the current frame and, where it only points to a holder, the offset in that.
_CURRENT_FRAME = {(3, 9): (24, None), (3, 10): (24, None), (3, 11): (56, 8), (3, 12): (56, 0), (3, 13): (72, None)}
# Since 3.11 the current frame is a record of the interpreter's own, to which a frame object points.
_RECORD_IN_FRAME_OBJECT = 24
# Until 3.10 the thread state counts levels up, here; later it counts down, beside a copy of the limit that tells where.
_DEPTH_COUNTER = 32
_LEFT_COUNTERS = range(24, 64, 4)


class Unrecognised:
    """Takes the place of the pointer where it is not known; writing to it does nothing."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | None = None


_thread_state = 0
if _VERSION in _CURRENT_FRAME and sys.maxsize > 1 << 32 and _ctypes is not None:

    class _Word(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "P"

    class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "i"

    class _GetPointer(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_PYTHONAPI | _ctypes.FUNCFLAG_CDECL
        _restype_ = _Word

    # A forked child keeps the thread state of its parent's forking thread, at the same address.
    _thread_state = _GetPointer(_ctypes.dlsym(_ctypes.dlopen(None, 0), "PyThreadState_Get"))() or 0  # type: ignore[arg-type]


def current_frame() -> Place:
    """The place of the current-frame pointer; after ``value = None`` there, the next frame made by C is a bottom frame.

    In 3.11 and 3.12 the place belongs to one run of the evaluation loop, so the caller must be the one that writes,
    and first make sure that it points to the caller's frame: ``place.value == frames.record_of(sys._getframe())``.
    """
    if not _thread_state:
        return Unrecognised()
    offset, in_holder = _CURRENT_FRAME[_VERSION]
    address = _thread_state + offset
    if in_holder is not None:
        holder = _Word.from_address(address).value
        if not holder:
            return Unrecognised()
        address = holder + in_holder
    place = _Word.from_address(address)
    return place if place.value == record_of(sys._getframe()) else Unrecognised()


def record_of(frame: FrameType) -> int | None:
    """Return the value of the current-frame pointer while ``frame`` is current; None if it is not known."""
    if not _thread_state:
        return None
    if _VERSION < (3, 11):
        return id(frame)
    record: int | None = _Word.from_address(id(frame) + _RECORD_IN_FRAME_OBJECT).value
    return record


def forget_depth() -> None:
    """Let the program start with the whole recursion limit, as from an empty stack."""
    if not _thread_state:
        return
    # Of the three levels above the module's first frame one goes with this function; the function that runs the module
    # is one, and until 3.11 exec() is another.
    if _VERSION < (3, 11):
        _Int.from_address(_thread_state + _DEPTH_COUNTER).value = -1
        return
    limit = sys.getrecursionlimit()
    for offset in _LEFT_COUNTERS:
        left = _Int.from_address(_thread_state + offset)
        if _Int.from_address(_thread_state + offset + 4).value == limit and 0 < limit - left.value < limit:
            left.value = limit + 1 if _VERSION == (3, 11) else limit
            return
