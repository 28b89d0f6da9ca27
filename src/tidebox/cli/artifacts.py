"""Files a program leaves, copied out of its box into a directory of the user's.

Names, contents and number are the program's choice, so they are treated as an attack: nothing is written outside the
directory or through a link, nothing there is replaced unless the user said so, and no hidden file is made that no
pattern named.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tidebox.cli.output import note
from tidebox.cli.streams import write_all
from tidebox.errors import InvalidRequest
from tidebox.model.box import CaptureRule
from tidebox.untrusted_files.globs import Glob

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


BOUNDS = CaptureRule(patterns=())
"""Bounds of artifact capture: how much is copied of what a stranger's program left, here or on a server."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file that came out of a box, and why it was not saved where it was not."""

    path: str
    size: int
    refused: str | None = None


def wanted(captured: Mapping[str, bytes], patterns: Iterable[str], placed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Select the files that users mean: no hidden ones by a mere ``*``, none that they gave and got back unchanged."""
    hidden = [Glob(pattern) for pattern in patterns if _is_hidden(pattern.removeprefix("./"))]
    return {
        path: content
        for path, content in captured.items()
        if placed.get(path) != content and (not _is_hidden(path) or any(glob.matches(path) for glob in hidden))
    }


def choose(sizes: Mapping[str, int], named: Collection[str] = ()) -> list[str]:
    """Those of the files on a server that are copied: hidden ones only if they are named, as many as a box may leave.

    The rest is counted in a line.
    """
    chosen: list[str] = []
    total = hidden = too_much = 0
    for path, size in sizes.items():
        if _is_hidden(path) and path not in named:
            hidden += 1
        elif len(chosen) >= BOUNDS.max_files or size > min(BOUNDS.max_file_bytes, BOUNDS.max_total_bytes - total):
            too_much += 1
        else:
            chosen.append(path)
            total += size
    if hidden:
        note(f"{hidden} hidden files were not copied; name one to copy it")
    if too_much:
        note(f"{too_much} files were not copied: too many, or too large")
    return chosen


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


class ArtifactDirectory:
    """The directory that artifacts are saved in; made if it is not there."""

    def __init__(self, path: str, *, replace: bool) -> None:
        self._replace = replace
        try:
            os.makedirs(path, exist_ok=True)
            self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequest(f"--artifacts-dir {path}: {error.strerror}", field="artifacts_dir") from error

    def close(self) -> None:
        """Let go of it."""
        os.close(self._root)

    def save(self, path: str, content: bytes) -> Artifact:
        """Write one file below the directory."""
        try:
            self._save(path, content)
        except OSError as error:
            return Artifact(path, len(content), refusal(error))
        return Artifact(path, len(content))

    def _save(self, path: str, content: bytes) -> None:
        with self.opened(path) as descriptor:
            write_all(descriptor, content)

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """A new file below the directory, to be written within the context; it is there as a whole or not at all."""
        *parents, name = path.split("/")
        if any(part in ("", ".", "..") for part in (*parents, name)):
            raise OSError(f"not a file name: {path!r}")
        directory = os.dup(self._root)
        try:
            for parent in parents:
                below = _directory_below(directory, parent)
                os.close(directory)
                directory = below
            with self._written(directory, name) as descriptor:
                yield descriptor
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _written(self, directory: int, name: str) -> Iterator[int]:
        # Replacing goes by rename, which puts the file in the place of a link instead of writing through it.
        written = f".tidebox-{os.urandom(8).hex()}" if self._replace else name
        descriptor = os.open(written, _NEW_FILE, 0o666, dir_fd=directory)
        try:
            try:
                yield descriptor
            finally:
                os.close(descriptor)
            if self._replace:
                os.rename(written, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(written, dir_fd=directory)
            raise


def refusal(error: OSError) -> str:
    """Return the reason why a file was not saved."""
    if isinstance(error, FileExistsError):
        return "there is one already; --force replaces it"
    if isinstance(error, NotADirectoryError):
        return "a link or a file is where its directory should be"
    return error.strerror or str(error)


def _directory_below(directory: int, name: str) -> int:
    try:
        os.mkdir(name, dir_fd=directory)
    except FileExistsError:
        pass
    return os.open(name, _DIRECTORY, dir_fd=directory)
