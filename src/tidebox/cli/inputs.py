"""Inputs of a run from this machine: the program, the files beside it, variables, sizes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from tidebox.config import environment_variable
from tidebox.errors import InvalidRequest
from tidebox.model.languages import Languages
from tidebox.model.launch import WORKSPACE
from tidebox.model.limits import GIB, KIB, MIB

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_UNITS = {"k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB}


def parse_size(option: str, text: str) -> int:
    """Bytes from ``512M``, ``2G``, ``1.5GiB`` or a plain number; units are powers of 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidRequest(f"{option}: {text!r} is no size; write it like 512M or 2G", field=option)
    return int(float(found[1]) * _UNITS.get((found[2] or "").lower(), 1))


def parse_env(given: Iterable[str]) -> dict[str, str]:
    """Variables from ``K=V``, or ``K`` for the value it has here."""
    variables = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            own = environment_variable(name)
            if own is None:
                raise InvalidRequest(f"--env {name}: there is no such variable here to hand on", field="env")
            value = own
        variables[name] = value
    return variables


def named_interpreter(source: bytes) -> list[str] | None:
    """The command that a file's first line names."""
    first_line = source[:256].partition(b"\n")[0]
    if first_line.startswith(b"#!"):
        words = first_line[2:].decode("utf-8", "replace").split()
        if words and os.path.basename(words[0]) == "env":
            words = [word for word in words[1:] if word != "-S"]
        if words and not words[0].startswith("-") and "=" not in words[0]:
            # By name: where an interpreter lies is another matter in a box than on the machine the file was written on.
            return [os.path.basename(words[0]), *words[1:]]
    return None


def language_of_file(path: str, languages: Languages) -> str:
    """The language of a file, from its name; raises ``InvalidRequest`` where that does not tell."""
    suffix = os.path.splitext(path)[1]
    found = languages.by_suffix(suffix) or languages.by_suffix(suffix.lower())
    if found is None:
        raise InvalidRequest(f"{path}: its name and first line do not tell the language; give --language", field="file")
    return found.name


class FilesIn:
    """Files to place in the workspace, read now, together no larger than it."""

    def __init__(self, limit: int) -> None:
        self.files: dict[str, bytes] = {}
        self.links_left_out = 0
        self._left = limit

    def read_program(self, path: str) -> bytes:
        """The file to run; ``-`` is standard input. It may be a pipe, as from ``<(...)``."""
        try:
            with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
                return self._counted(file.read(self._left + 1), path)
        except OSError as error:
            raise _unreadable(path, error) from error

    def add(self, given: str) -> None:
        """``SRC`` or ``SRC:DEST``: a file, or a directory with everything in it."""
        source, destination = split_source(given)
        if destination.endswith("/") or not destination:
            destination += os.path.basename(os.path.abspath(source))
        try:
            for path, below in regular_files(source):
                target = f"{destination}/{below}" if below else destination
                if path is None:
                    self.links_left_out += 1
                else:
                    self.place(target, self._counted(_read(path, self._left + 1, follow=not below), source))
        except OSError as error:
            raise _unreadable(source, error) from error

    def place(self, name: str, content: bytes) -> None:
        """Give the workspace a file."""
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{name!r}: a file name in a box must be UTF-8", field="file") from None
        if name in self.files:
            raise InvalidRequest(f"two files for {WORKSPACE}/{name}", field="file")
        self.files[name] = content

    def _counted(self, content: bytes, source: str) -> bytes:
        self._left -= len(content)
        if self._left < 0:
            raise InvalidRequest(f"{source}: the files are larger than the workspace; give --workspace", field="file")
        return content


def split_source(given: str) -> tuple[str, str]:
    """``SRC`` and ``DEST`` of ``SRC:DEST``; what is not said is empty."""
    source, colon, destination = given.rpartition(":")
    # A name with a colon in it is still a name.
    if not colon or os.path.lexists(given):
        return given, ""
    return source, destination.removeprefix(WORKSPACE + "/")


def regular_files(source: str) -> Iterator[tuple[str | None, str]]:
    """(path, path below ``source``) of each file; None for what is no regular file.

    A link in a directory is not followed: the directory may be a stranger's, and the link may point to a secret of the
    user's. The source itself was named by the user.
    """
    if not os.path.isdir(source):
        yield source, ""
        return
    for directory, subdirectories, names in os.walk(source, onerror=_raise):
        subdirectories.sort()
        for name in sorted(names + [name for name in subdirectories if os.path.islink(os.path.join(directory, name))]):
            path = os.path.join(directory, name)
            regular = stat.S_ISREG(os.lstat(path).st_mode)
            yield (path if regular else None), str(Path(path).relative_to(source))


def _raise(error: OSError) -> None:
    raise error


def _read(path: str, limit: int, *, follow: bool) -> bytes:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidRequest(f"{path}: not a regular file", field="file")
        return file.read(limit)


def _unreadable(path: str, error: OSError) -> InvalidRequest:
    return InvalidRequest(f"{error.filename or path}: {error.strerror or error}", field="file")
