"""Progress lines on standard error, while that is a terminal."""

from __future__ import annotations

import io
import sys
import threading
import time
from types import TracebackType
from typing import BinaryIO, Self, cast

from tidebox.cli.output import one_line
from tidebox.cli.wording import size_text, span

_BAR = 24
_PAUSE_SECONDS = 0.1
# What is over sooner needs no bar.
_PATIENCE_SECONDS = 0.3


class ProgressLine:
    """A line that says how much of something is done; without ``total``, only how much and for how long."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = one_line(what)
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._drawn = 0.0
        self._shown = False
        self._on = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def add(self, size: int) -> None:
        """So much more is done."""
        self._done += size
        now = time.monotonic()
        if self._on and now - self._began > _PATIENCE_SECONDS and now - self._drawn > _PAUSE_SECONDS:
            self._drawn, self._shown = now, True
            sys.stderr.write(f"\r{self._line(now)}\x1b[K")
            sys.stderr.flush()

    def _line(self, now: float) -> str:
        import shutil

        seconds = now - self._began
        if not self._done and self._total is None:
            text = f"{self._what}  {span(seconds)}"
        else:
            text = f"{self._what}  {size_text(self._done)}"
            if self._total:
                part = min(1.0, self._done / self._total)
                text += f" of {size_text(self._total)} [{'#' * round(part * _BAR):{_BAR}}] {part:4.0%}"
            text += f"  {size_text(self._done / seconds)}/s"
        return text[: shutil.get_terminal_size().columns - 1]

    def reading(self, file: BinaryIO) -> BinaryIO:
        """The same file; what is read of it counts."""
        return cast(BinaryIO, _Counted(file, self))

    def writing(self, file: BinaryIO, most: int | None = None) -> BinaryIO:
        """The same file; what is written to it counts, and is refused beyond ``most`` bytes."""
        return cast(BinaryIO, _Counted(file, self, most))


class _Counted(io.RawIOBase):
    """A file that tells how much passes through it."""

    def __init__(self, file: BinaryIO, progress: ProgressLine, most: int | None = None) -> None:
        self._file = file
        self._progress = progress
        self._most = most

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._progress.add(len(data))
        return data

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        if self._most is not None and self._file.tell() + len(data) > self._most:
            raise OSError("more comes than the server said")
        self._file.write(data)
        self._progress.add(len(data))
        return len(data)

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


class BusyLine(ProgressLine):
    """The same for work that does not tell how far it is: a thread keeps the line up to date."""

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)
        if self._on:
            self._thread.start()
        return self

    def _draw(self) -> None:
        while not self._over.wait(_PAUSE_SECONDS):
            self.add(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._on:
            self._thread.join()
        super().__exit__(kind, error, trace)
