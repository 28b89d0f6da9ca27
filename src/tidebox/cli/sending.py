"""Files on their way to a server and back, with a bar that shows how far they are."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from tidebox.cli.inputs import regular_files, split_source
from tidebox.cli.output import note
from tidebox.cli.progress import ProgressLine
from tidebox.errors import InvalidRequest
from tidebox.model.limits import MIB

# A file may grow while it is copied, but not for ever.
_GROWTH_BYTES = 64 * MIB


class Sources:
    """Files and directories here, and the paths they get there."""

    def __init__(self, given: Sequence[str]) -> None:
        self.paths: dict[str, Path] = {}
        left_out = 0
        for each in given:
            source, destination = split_source(each)
            if destination.endswith("/") or not destination:
                destination += os.path.basename(os.path.abspath(source))
            if not os.path.exists(source):
                raise InvalidRequest(f"{source}: No such file or directory", field="source")
            for path, below in regular_files(source):
                if path is None:
                    left_out += 1
                else:
                    self.paths[f"{destination}/{below}" if below else destination] = Path(path)
        if left_out:
            note(f"{left_out} links or special files were not copied")

    @contextlib.contextmanager
    def opened(self) -> Iterator[dict[str, BinaryIO]]:
        """The files, to be read; what is read of them shows on the bar."""
        with contextlib.ExitStack() as stack:
            progress = stack.enter_context(
                ProgressLine("Sending", sum(os.path.getsize(path) for path in self.paths.values()))
            )
            files = {name: stack.enter_context(_OpenedLate(path)) for name, path in self.paths.items()}
            yield {name: progress.reading(cast(BinaryIO, file)) for name, file in files.items()}


class _OpenedLate(io.RawIOBase):
    """A file that is open only while it is read: there may be more of them than descriptors."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def read(self, size: int = -1, /) -> bytes:
        if self._file is None:
            self._file = self._path.open("rb")
        data = self._file.read(size)
        if not data:
            self.close()
        return data

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell() if self._file is not None else 0

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_END:
            return os.path.getsize(self._path)
        self.close()
        self._file = self._path.open("rb")
        return self._file.seek(offset)

    def close(self) -> None:
        """Close it; reading goes on from the beginning."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def target_of(path: str, to: str | None) -> Path | None:
    """Return the local path for a file that comes; None for our own output."""
    if to == "-":
        return None
    target = Path(to or ".")
    if target.is_dir():
        target /= file_name(path)
    return target


def file_name(path: str) -> str:
    """The last part of a path on a server, which is a name here."""
    name = path.rstrip("/").rpartition("/")[2]
    if name in ("", ".", ".."):
        raise InvalidRequest(f"{path}: not the name of a file", field="path")
    return name


async def receive(target: Path | None, size: int | None, download: Callable[[BinaryIO], Awaitable[int]]) -> int:
    """Write a file that comes to its place, which is replaced when all has come, or to our own output."""
    if target is None:
        return await download(sys.stdout.buffer)
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as file, ProgressLine("Receiving", size) as progress:
            received = await download(progress.writing(file, None if size is None else size + _GROWTH_BYTES))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return received
