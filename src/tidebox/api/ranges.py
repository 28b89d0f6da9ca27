"""HTTP range requests (RFC 9110): one range of bytes, or all."""

from __future__ import annotations

import re
from typing import NamedTuple

from tidebox.errors import RangeNotSatisfiable

_RANGE = re.compile(r"(\d{1,18})?-(\d{1,18})?", re.ASCII)


class ByteRange(NamedTuple):
    """From ``start`` up to ``end``, that one excluded."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """The number of bytes."""
        return self.end - self.start

    def content_range(self, size: int) -> str:
        """The header that says which part of ``size`` bytes this is."""
        return f"bytes {self.start}-{self.end - 1}/{size}"


def parse_range(value: str | None, size: int) -> ByteRange | None:
    """The part of ``size`` bytes that a Range header asks for; None for all of them.

    Units other than bytes are ignored, as they must be. Raises ``RangeNotSatisfiable`` for more than one range, for
    what is no range, and for one that is not there.
    """
    if value is None:
        return None
    unit, _, rest = value.partition("=")
    if unit.strip().lower() != "bytes":
        return None
    ranges = [part.strip() for part in rest.split(",")]
    if len(ranges) > 1:
        raise RangeNotSatisfiable("more than one range is not supported", size=size, ranges=len(ranges))
    match = _RANGE.fullmatch(ranges[0])
    if match is None or match[0] == "-":
        raise RangeNotSatisfiable("not a range of bytes", size=size, ranges=1)
    if match[1] is None:
        start, end = max(size - int(match[2]), 0), size
    else:
        start = int(match[1])
        end = size if match[2] is None else min(int(match[2]) + 1, size)
    if start >= end:
        raise RangeNotSatisfiable(f"there are {size} bytes", size=size, ranges=1)
    return ByteRange(start, end)
