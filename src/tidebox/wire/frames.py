"""Frames: ``[length u32][id u32][flags u8][body]``, all big-endian; length counts everything after itself.

The header never changes shape, so that a relay can route any generation without reading the body.
"""

from __future__ import annotations

from struct import Struct

from tidebox.wire.errors import FrameTooLarge, FrameTooShort, FrameTruncated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidebox.wire.cbor import Buffer

HEADER_SIZE = 5
LENGTH_SIZE = 4
# Where the body starts, counted from the first byte of the length.
BODY_OFFSET = LENGTH_SIZE + HEADER_SIZE
MAX_FRAME_SIZE = 4_194_304

FLAG_TERMINAL = 0x01
FLAG_SESSION_START = 0x02
FLAG_SHUTDOWN = 0x04
FLAG_BULK = 0x08

# What one receive call may bring. Frames that do not fit get a buffer of their own and are received straight into it.
RECEIVE_SIZE = 65_536

_HEADER = Struct(">IIB")
_LENGTH = Struct(">I")


class Frame:
    """One frame as it was on the wire; ``raw`` includes the length."""

    __slots__ = ("id", "flags", "raw")

    def __init__(self, id: int, flags: int, raw: bytes | memoryview) -> None:
        self.id = id
        self.flags = flags
        self.raw = raw

    @property
    def body(self) -> memoryview:
        """The bytes after id and flags."""
        return memoryview(self.raw)[BODY_OFFSET:]


def frame_header(id: int, flags: int, body_size: int) -> bytes:
    """Length, id and flags for a body of that size."""
    length = HEADER_SIZE + body_size
    if length > MAX_FRAME_SIZE:
        raise FrameTooLarge(f"frame too large: {length} bytes (max {MAX_FRAME_SIZE})")
    return _HEADER.pack(length, id, flags)


def encode_frame(id: int, flags: int, body: Buffer) -> bytes:
    """One whole frame."""
    return b"".join((frame_header(id, flags, len(body)), body))


class FrameReader:
    """Cuts a byte stream into frames.

    Receive into ``buffer()`` and tell the count with ``received()``; then call ``next_frame()`` until it gives None,
    and only then receive again. Frames that were complete before a broken one are still given; the broken one raises
    FrameError, and so does every call after it. ``feed()`` does all of this for bytes that are already in memory.
    """

    __slots__ = ("_scratch", "_view", "_start", "_end", "_large", "_large_filled", "_whole")

    def __init__(self, receive_size: int = RECEIVE_SIZE) -> None:
        self._scratch = bytearray(receive_size)
        self._view = memoryview(self._scratch)
        self._start = 0
        self._end = 0
        # A frame larger than the scratch buffer, being received into memory of its own.
        self._large: memoryview | None = None
        self._large_filled = 0
        self._whole: Frame | None = None

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream belong; never empty."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Account for ``count`` bytes put into ``buffer()``."""
        large = self._large
        if large is None:
            self._end += count
            return
        self._large_filled += count
        if self._large_filled == len(large):
            _, id, flags = _HEADER.unpack_from(large, 0)
            self._whole = Frame(id, flags, large)
            self._large = None

    def feed(self, data: Buffer) -> list[Frame]:
        """Take bytes that were received elsewhere; every frame completed by them."""
        frames = []
        view = memoryview(data)
        while view:
            space = self.buffer()
            count = min(len(space), len(view))
            space[:count] = view[:count]
            self.received(count)
            view = view[count:]
            frame = self.next_frame()
            while frame is not None:
                frames.append(frame)
                frame = self.next_frame()
        return frames

    def next_frame(self) -> Frame | None:
        """The next complete frame, or None until more bytes are received."""
        if self._whole is not None:
            frame, self._whole = self._whole, None
            return frame
        start = self._start
        available = self._end - start
        if available < LENGTH_SIZE:
            self._compact()
            return None
        (length,) = _LENGTH.unpack_from(self._scratch, start)
        if length > MAX_FRAME_SIZE:
            raise FrameTooLarge(f"frame too large: {length} bytes (max {MAX_FRAME_SIZE})")
        if length < HEADER_SIZE:
            raise FrameTooShort(f"frame too short: {length} bytes (min {HEADER_SIZE})")
        size = LENGTH_SIZE + length
        if available >= size:
            raw = bytes(self._view[start : start + size])
            self._start = start + size
            if self._start == self._end:
                self._start = self._end = 0
            _, id, flags = _HEADER.unpack_from(raw, 0)
            return Frame(id, flags, raw)
        if size > len(self._scratch):
            large = memoryview(bytearray(size))
            large[:available] = self._view[start : self._end]
            self._large, self._large_filled = large, available
            self._start = self._end = 0
        else:
            self._compact()
        return None

    def peek(self, count: int) -> bytes | None:
        """The next ``count`` unframed bytes without taking them, or None until they are there."""
        if self._end - self._start < count:
            return None
        return bytes(self._view[self._start : self._start + count])

    def skip(self, count: int) -> None:
        """Take ``count`` bytes that were peeked at."""
        self._start += count

    def eof(self) -> None:
        """The stream ended: raises FrameTruncated inside a frame."""
        if self._large is not None or self._end > self._start:
            raise FrameTruncated("the stream ended inside a frame")

    def _compact(self) -> None:
        # Only when space runs out: a tail moves at most once per scratch buffer, not once per receive.
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start and len(self._scratch) - self._end < len(self._scratch) // 2:
            tail = self._end - self._start
            self._view[:tail] = self._view[self._start : self._end]
            self._start, self._end = 0, tail
