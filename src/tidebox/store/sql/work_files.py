"""The programs of runs that may still have to be started, each in a file of its own beside the database.

A database keeps what was removed from it: in its write-ahead log at least, until that happens to be written anew. Of a
file that is removed nothing can be read any more, also when the server is killed in the next moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection
from pathlib import Path

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkFiles:
    """A directory of such files, for one server. Everything here blocks and raises OSError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None

    def claim(self) -> bool:
        """Make the directory, for its owner only, if there is none, and take it; False where another server has it."""
        with contextlib.suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
        # Not the database itself: SQLite's own locks on a file go with any descriptor of it that is closed.
        lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._lock = lock
        return True

    def release(self) -> None:
        """Let another server have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def keep(self, run_id: str, work: bytes) -> bool:
        """Have the program of a run on the disk, also after the machine's end; False where there is one of that run."""
        try:
            descriptor = os.open(self._directory / run_id, _NEW_FILE, 0o600)
        except FileExistsError:
            return False
        try:
            with open(descriptor, "wb") as file:
                file.write(work)
                file.flush()
                os.fsync(descriptor)
            self._flush()
        except OSError:
            self.drop(run_id)
            raise
        return True

    def find(self, run_id: str) -> bytes | None:
        """The program of a run, if it is kept."""
        try:
            return (self._directory / run_id).read_bytes()
        except FileNotFoundError:
            return None

    def drop(self, run_id: str) -> None:
        """Keep the program of a run no longer."""
        (self._directory / run_id).unlink(missing_ok=True)

    def keep_only(self, run_ids: Collection[str]) -> None:
        """Drop what a server that was killed left of other runs than these."""
        for name in set(os.listdir(self._directory)) - set(run_ids):
            self.drop(name)

    def _flush(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
