"""Encoding of a program's output and end as frames, without losing a byte."""

from __future__ import annotations

import base64

from msgspec import UNSET

from tidebox.broker.sandboxes.processes import ProcessEnd
from tidebox.model.events import StreamName
from tidebox.model.limits import MIB
from tidebox.model.result import exit_status
from tidebox.protocols.codec import text_of
from tidebox.protocols.dataplane.frames import ExecUsage, Exit, Stderr, Stdout, signal_name

# The longest character of UTF-8, but for its last byte.
_MAX_TAIL = 3


class OutputRenderer:
    """Turns output into frames: text where it is UTF-8, base64 where it is not.

    The beginning of a character at the end of a piece is held back until the rest comes, unless the other stream is
    written to first or ``flush`` is called, because nothing comes.
    """

    def __init__(self, *, with_offsets: bool) -> None:
        self._with_offsets = with_offsets
        self._tail = b""
        self._stream: StreamName = "stdout"
        self._offset = 0

    @property
    def holds_back(self) -> bool:
        """Whether part of a character waits for its rest."""
        return bool(self._tail)

    def feed(self, stream: StreamName, data: bytes, end: int) -> list[str]:
        """Frames for ``data``, after which the program's output goes on at ``end``."""
        made = self.flush() if self._tail and stream != self._stream else []
        whole = self._tail + data
        self._stream, self._tail, self._offset = stream, b"", end
        try:
            return [*made, self._frame(whole, whole.decode(), end)]
        except UnicodeDecodeError as error:
            cut = error.start
            if error.reason != "unexpected end of data" or len(whole) - cut > _MAX_TAIL:
                return [*made, self._frame(whole, None, end)]
        self._tail = whole[cut:]
        if cut:
            made.append(self._frame(whole[:cut], whole[:cut].decode(), end - len(self._tail)))
        return made

    def flush(self) -> list[str]:
        """Return frames for the bytes that are held back."""
        tail, self._tail = self._tail, b""
        return [self._frame(tail, None, self._offset)] if tail else []

    def _frame(self, data: bytes, text: str | None, end: int) -> str:
        kind = Stdout if self._stream == "stdout" else Stderr
        offset = end if self._with_offsets else UNSET
        if text is None:
            return text_of(kind(base64.b64encode(data).decode(), "base64", offset))
        return text_of(kind(text, "utf8", offset))


def shown_end(end: ProcessEnd) -> Exit:
    """Make the ``exit`` frame of a program that ended."""
    counted = end.exited.usage or {}
    cpu, memory = counted.get("cpu_us"), counted.get("memory_peak_bytes", counted.get("max_rss_bytes"))
    return Exit(
        exit_code=exit_status(end.exited.code, end.exited.signal),
        signal=signal_name(end.exited.signal),
        duration_ms=round(end.seconds * 1000),
        resource_usage=ExecUsage(
            cpu_time_ms=None if cpu is None else cpu // 1000,
            peak_memory_mb=None if memory is None else -(-memory // MIB),
            oom_kills=counted.get("oom_kills"),
        ),
        timed_out=end.timed_out,
    )
