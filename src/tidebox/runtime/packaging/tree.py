"""The files of a layer while it is made: archives of strangers, unpacked one by one and put together."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Sized
from pathlib import Path

from tidebox.errors import InvalidImage, InvalidPackage, InvalidRequest
from tidebox.runtime.layers import Locked
from tidebox.untrusted_files.ignore import Ignore
from tidebox.untrusted_files.staging import ArchiveKind, Stage, StageLimits
from tidebox.untrusted_files.trees import opened

MAX_DEPTH = 40
MAX_FILES = 200_000
MAX_COMMANDS = 500
"""Number of commands that one package may come with."""
_UNPACK_SECONDS = 300.0


class Tree:
    """A directory that packages are unpacked into; the limits count over all of them."""

    def __init__(self, root: Path, scratch: Path, max_bytes: int) -> None:
        """``scratch`` is on the same file system, and empty again after each package."""
        self.root = root
        self._scratch = scratch
        self._bytes_left = max_bytes
        self._files_left = MAX_FILES
        self.size = 0
        root.mkdir()

    def add(
        self,
        archive: Path,
        kind: ArchiveKind,
        package: Locked,
        place: Callable[[bytes], bytes | None],
        finish: Callable[[Path], None],
    ) -> None:
        """Unpack the archive of a package; raises ``InvalidPackage`` where it is none, or hostile, or too large.

        ``place`` says where a member goes, and ``finish`` adds to its files, which it counts, before they are put with
        the others.
        """
        self._scratch.mkdir()
        limits = StageLimits(
            max_bytes=self._bytes_left,
            max_files=max(self._files_left, 1),
            max_depth=MAX_DEPTH,
            max_seconds=_UNPACK_SECONDS,
        )
        try:
            with opened(self._scratch) as root, archive.open("rb") as file:
                stage = Stage(root, limits, Ignore(()), rename=place)
                try:
                    stage.unpack(file.fileno(), kind)
                finally:
                    stage.close()
        except (InvalidRequest, InvalidImage) as error:
            raise InvalidPackage(
                f"{package.shown} cannot be unpacked: {error.message}", field="packages", package=package.name
            ) from error
        self.count(stage.file_count, stage.bytes, package.shown)
        finish(self._scratch)
        _open_to_all(self._scratch)
        _merge(self._scratch, self.root)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def count(self, files: int, size: int, what: str) -> None:
        """Count files of a package, or of ``what`` else; raises ``InvalidPackage`` where there are too many."""
        self._files_left -= files
        self._bytes_left -= size
        self.size += size
        if self._files_left < 0 or self._bytes_left < 0:
            raise InvalidPackage(
                f"with {what} the packages are too many files, or too large (SANDBOX_PACKAGE_MAX_MB)",
                field="packages",
                package=what,
            )


def check_commands(commands: Sized, package: Locked) -> None:
    """Refuse a package with more commands than one has."""
    if len(commands) > MAX_COMMANDS:
        raise InvalidPackage(
            f"{package.shown} has more than {MAX_COMMANDS} commands", field="packages", package=package.name
        )


def _open_to_all(root: Path) -> None:
    """Programs in boxes are users of their own: what an archive says of modes is kept only as far as execution."""
    for directory, _, files in os.walk(root):
        os.chmod(directory, 0o755)
        for name in files:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                os.chmod(path, 0o755 if mode & 0o111 else 0o644)


def _merge(source: Path, target: Path) -> None:
    """Move what is in one directory into another; of two files at one place the one that comes last stays."""
    for entry in list(os.scandir(source)):
        there = target / entry.name
        if entry.is_dir(follow_symlinks=False) and there.is_dir():
            _merge(Path(entry.path), there)
        elif there.is_dir() or (entry.is_dir(follow_symlinks=False) and there.exists()):
            raise InvalidPackage(f"two packages need {entry.name} to be different things", field="packages")
        else:
            os.rename(entry.path, there)


def hide(path: Path) -> None:
    """Let nothing be at ``path`` that the image has there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # What overlay file systems take for "nothing is here"; anybody may make one since Linux 5.8.
    with contextlib.suppress(FileExistsError, PermissionError):
        os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def hide_below(directory: Path) -> None:
    """Let ``directory`` hide what the image has in it: halves of two versions fail."""
    # Not every file system has such attributes; there an image's own package of that name shines through.
    with contextlib.suppress(OSError):
        os.setxattr(directory, "user.overlay.opaque", b"y")
