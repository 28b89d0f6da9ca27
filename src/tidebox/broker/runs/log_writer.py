"""From a program's output to entries of its log: capped, in pieces a client can take, characters kept whole."""

from __future__ import annotations

import asyncio

from tidebox.broker.run_metrics import RunMetrics
from tidebox.broker.runs.log_hub import LogChannel
from tidebox.model.events import OutputEvent, StreamName
from tidebox.model.log import Truncated

# As base64 in a JSON frame this stays below 64 KiB, the longest message clients are promised.
PIECE_BYTES = 32 * 1024
LOG_CAP = "log_cap"
# Shorter than anybody notices, long enough that output in haste becomes few frames.
_GATHER_SECONDS = 0.005


class LogWriter:
    """Writes the output of one run to its channel.

    What comes after a pause is logged at once. What follows it closely is gathered for a moment, so that a program
    that writes line by line does not cost every reader a frame for each of them.
    """

    def __init__(self, channel: LogChannel, cap: int, metrics: RunMetrics | None = None) -> None:
        self._channel = channel
        self._metrics = metrics or RunMetrics()
        self._room = cap
        self._begun: dict[StreamName, bytes] = {"stdout": b"", "stderr": b""}
        self._gathered: list[tuple[StreamName, bytearray]] = []
        self._gathered_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.written = 0
        self.truncated = False

    def write(self, stream: StreamName, data: bytes) -> None:
        """Log what the program wrote."""
        if self.truncated:
            return
        if self._gathered and self._gathered[-1][0] == stream:
            self._gathered[-1][1].extend(data)
        else:
            self._gathered.append((stream, bytearray(data)))
        self._gathered_bytes += len(data)
        if self._timer is None:
            self._log_gathered()
            self._timer = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._on_timer)
        elif self._gathered_bytes >= PIECE_BYTES:
            self._log_gathered()

    def flush(self) -> None:
        """Log everything, also characters that were begun and will not be completed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._log_gathered()
        for stream, rest in self._begun.items():
            self._append(stream, rest)
        self._begun = dict.fromkeys(self._begun, b"")

    def _on_timer(self) -> None:
        self._timer = None
        if self._channel.over:
            return
        if self._gathered:
            self._log_gathered()
            self._timer = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._on_timer)
        elif any(self._begun.values()):
            # Nothing completes it: it is no text.
            self.flush()

    def _log_gathered(self) -> None:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        for stream, new in gathered:
            data = self._begun[stream] + bytes(new)
            # The beginning of a character waits for the rest of it.
            end = complete_length(data)
            self._begun[stream] = data[end:]
            self._append(stream, data[:end])

    def _append(self, stream: StreamName, data: bytes) -> None:
        kept = data[: self._room]
        self._room -= len(kept)
        self.written += len(kept)
        start = 0
        while start < len(kept):
            piece = kept[start : start + PIECE_BYTES]
            if start + len(piece) < len(kept):
                piece = piece[: complete_length(piece)]
            self._channel.publish(OutputEvent(stream, piece))
            start += len(piece)
        if kept:
            self._metrics.logged(len(kept))
        if len(kept) < len(data) and not self.truncated:
            self.truncated = True
            self._metrics.truncated(LOG_CAP)
            self._channel.publish(Truncated(LOG_CAP))


def complete_length(data: bytes) -> int:
    """How much of ``data`` there is before a UTF-8 character that is begun but not completed at its end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) - back if length > back else len(data)
    return len(data)
