"""Copy files out of a dead box's workspace through its directory descriptor.

Every name, type and link in there is hostile: nothing is opened but by name relative to an already opened directory, without following links,
without blocking, and only regular files are read. All processes of the box are dead, so nothing changes under us.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from tidebox.runtime.base import Captured, CaptureRule

_MAX_DEPTH = 32
_MAX_ENTRIES = 200_000
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def capture(workspace: int, rule: CaptureRule) -> Captured:
    """The files that match ``rule``, in the order of their names; what matches and is refused is counted."""
    matchers = [re.compile(glob_to_regex(pattern)) for pattern in rule.patterns]
    files: dict[str, bytes] = {}
    skipped = total = 0
    for path, directory, name in _walk(workspace):
        if path in rule.exclude or not any(matcher.fullmatch(path) for matcher in matchers):
            continue
        content = None
        if len(files) < rule.max_files and _is_text(path):
            content = _read(directory, name, min(rule.max_file_bytes, rule.max_total_bytes - total))
        if content is None:
            skipped += 1
            continue
        total += len(content)
        files[path] = content
    return Captured(files, skipped)


def glob_to_regex(pattern: str) -> str:
    """A pattern relative to /workspace: ``*`` and ``?`` stay within a name, ``**`` spans directories."""
    pattern = pattern.removeprefix("/workspace/").removeprefix("./")
    out = []
    position = 0
    while position < len(pattern):
        rest = pattern[position:]
        if rest.startswith("**/"):
            out.append("(?:[^/]+/)*")
            position += 3
        elif rest.startswith("**"):
            out.append(".*")
            position += 2
        elif rest[0] == "*":
            out.append("[^/]*")
            position += 1
        elif rest[0] == "?":
            out.append("[^/]")
            position += 1
        elif rest[0] == "[" and (end := rest.find("]", 2)) > 0:
            body = rest[1:end].replace("\\", "\\\\").replace("[", "\\[")
            out.append("[" + ("^/" + body[1:] if body.startswith("!") else body) + "]")
            position += end + 1
        else:
            out.append(re.escape(rest[0]))
            position += 1
    return "".join(out)


def _walk(workspace: int) -> Iterator[tuple[str, int, str]]:
    """Every entry that is no directory, as (path, descriptor of its directory, name)."""
    seen = 0
    root = os.open(".", _OPEN_DIRECTORY, dir_fd=workspace)
    stack: list[tuple[str, int]] = [("", root)]
    try:
        while stack:
            prefix, directory = stack.pop()
            try:
                for name in sorted(os.listdir(directory)):
                    seen += 1
                    if seen > _MAX_ENTRIES:
                        return
                    path = prefix + name
                    if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                        yield path, directory, name
                    elif path.count("/") < _MAX_DEPTH:
                        stack.append((path + "/", _open_directory(directory, name)))
            finally:
                os.close(directory)
    finally:
        for _, directory in stack:
            os.close(directory)


def _open_directory(parent: int, name: str) -> int:
    try:
        return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
    except PermissionError:
        # The owner may take away his own permissions; the machine's user with the same uid gives them back to himself.
        os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(directory: int, name: str, limit: int) -> bytes | None:
    try:
        descriptor = os.open(name, _OPEN_FILE, dir_fd=directory)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        return file.read(limit)
