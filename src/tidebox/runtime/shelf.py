"""Directories of files under their digests, which appear and vanish whole; safe for several processes at once.

    <root>/<place>/<digest>/   the files
    <root>/staging-*           being made or removed, or left by a killed process; locked while its maker lives
    <root>/lock                held while anything of this changes, but not while files are removed: that may take long

What is made is made in staging and appears by one rename, so that a failure leaves nothing in use. What is in use
(``hold``) is not removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
STAGING = "staging-"


class Shelf:
    """One kind of such directories."""

    def __init__(self, root: Path, place: str) -> None:
        self.root = root
        self.place = root / place
        # What is to be removed once the lock is let go of, with descriptors that keep others off it.
        self._unwanted: list[tuple[Path, int]] = []

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who changes anything."""
        for directory in (self.root, self.place):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield
            finally:
                unwanted, self._unwanted = self._unwanted, []
                fcntl.flock(lock, fcntl.LOCK_UN)
                for path, descriptor in unwanted:
                    with closing(descriptor):
                        # What cannot be removed is tried again with the next change.
                        shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """A directory to make something in; what is left in it goes with it."""
        with self.locked():
            self.sweep()
            path = Path(tempfile.mkdtemp(prefix=STAGING, dir=self.root))
            descriptor = os.open(path, DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with closing(descriptor):
            try:
                yield path
            finally:
                shutil.rmtree(path)

    def put(self, files: Path, digest: str) -> None:
        """Give staged files their name, unless that is there. Only while locked, and after they are on the disk."""
        if not (self.place / digest).exists():
            files.rename(self.place / digest)
            sync_directory(self.place)

    def hold(self, digest: str) -> int:
        """A descriptor of the directory, which stays until that is closed; raises FileNotFoundError."""
        with self.locked():
            descriptor = os.open(self.place / digest, DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def remove(self, wanted: Callable[[str], bool]) -> None:
        """Remove what is not ``wanted`` and not in use. Only while locked."""
        for path in (path for path in self.place.iterdir() if not wanted(path.name)):
            with closing(os.open(path, DIRECTORY)) as descriptor:
                if _is_unused(descriptor):
                    # Out of the way by one rename, so that half of the files never stand under their digest.
                    path.rename(tempfile.mkdtemp(prefix=STAGING, dir=self.root))
        self.sweep()

    def sweep(self) -> None:
        """Remove what killed processes left, after the lock. Only while locked."""
        for leftover in self.root.glob(f"{STAGING}*"):
            try:
                descriptor = os.open(leftover, DIRECTORY)
            except FileNotFoundError:
                # Its maker was about to remove it.
                continue
            if _is_unused(descriptor):
                self._unwanted.append((leftover, descriptor))
            else:
                os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make sure that the names in a directory survive a power cut."""
    with closing(os.open(path, DIRECTORY)) as descriptor:
        os.fsync(descriptor)


def _is_unused(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """The descriptor, for as long as it is needed."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
