"""Copy files out of a dead box's workspace through its directory descriptor.

Every name, type and link in there is hostile: nothing is opened but by name relative to an already opened directory,
without following links,
without blocking, and only regular files are read. All processes of the box are dead, so nothing changes under us.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidebox.runtime.base import Captured, CaptureRule

_MAX_DEPTH = 32
_MAX_ENTRIES = 200_000
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def capture(workspace: int, rule: CaptureRule) -> Captured:
    """The files that match ``rule``, in the order of their names; what matches and is refused is counted."""
    patterns = [Glob(pattern) for pattern in rule.patterns]
    files: dict[str, bytes] = {}
    skipped = total = 0
    for path, directory, name in _walk(workspace):
        if path in rule.exclude or not any(pattern.matches(path) for pattern in patterns):
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


class Glob:
    """A pattern relative to /workspace: ``*``, ``?`` and ``[...]`` stay within a name, ``**`` spans directories.

    Patterns and names both come from strangers, so matching is bounded by the product of their lengths, unlike that
    of a regular expression.
    """

    def __init__(self, pattern: str) -> None:
        relative = pattern.removeprefix("/workspace/").removeprefix("./")
        self._parts = [part if part == "**" else _tokens(part) for part in relative.split("/")]

    def matches(self, path: str) -> bool:
        """Whether the whole path matches."""
        names = path.split("/")
        if self._parts[-1] == "**" and len(self._parts) > 1:
            # "dir/**" is what lies below dir, not dir itself.
            return _wild([*self._parts[:-1], _ANYTHING, "**"], names, _is_deep, _part_matches)
        return _wild(self._parts, names, _is_deep, _part_matches)


_STAR = "*"


def _tokens(part: str) -> list[str]:
    """One token per character, class or star."""
    found = []
    position = 0
    while position < len(part):
        end = part.find("]", position + 2) if part[position] == "[" else -1
        token = part[position : end + 1] if end > 0 else part[position]
        found.append(token)
        position += len(token)
    return found


_ANYTHING = [_STAR]


def _is_deep(part: object) -> bool:
    return part == "**"


def _is_star(token: object) -> bool:
    return token == _STAR


def _part_matches(part: Any, name: str) -> bool:
    return _wild(part, name, _is_star, _token_matches)


def _token_matches(token: str, character: str) -> bool:
    if token == "?":
        return True
    if len(token) < 3:
        return token == character
    body = token[1:-1]
    negated = body.startswith("!")
    body = body[negated:]
    found = False
    while body:
        low, high = (body[0], body[2]) if len(body) > 2 and body[1] == "-" else (body[0], body[0])
        found = found or low <= character <= high
        body = body[3:] if high is not low or (len(body) > 2 and body[1] == "-") else body[1:]
    return found != negated


def _wild(
    pattern: Sequence[Any], items: Sequence[Any], is_star: Callable[[Any], bool], matches: Callable[[Any, Any], bool]
) -> bool:
    """Match items against a pattern in which stars stand for any run: only the last star is ever tried again."""
    at = start = item = 0
    star = -1
    while item < len(items):
        if at < len(pattern) and is_star(pattern[at]):
            star, start = at, item
            at += 1
        elif at < len(pattern) and matches(pattern[at], items[item]):
            at += 1
            item += 1
        elif star >= 0:
            start += 1
            at, item = star + 1, start
        else:
            return False
    return all(is_star(rest) for rest in pattern[at:])


def _walk(workspace: int) -> Iterator[tuple[str, int, str]]:
    """Every entry that is no directory, as (path, descriptor of its directory, name)."""
    seen = 0
    # Depth first: one open descriptor for each level, however many directories there are.
    open_levels = [_level("", os.open(".", _OPEN_DIRECTORY, dir_fd=workspace))]
    try:
        while open_levels:
            prefix, directory, names = open_levels[-1]
            name = next(names, None)
            if name is None:
                os.close(open_levels.pop()[1])
                continue
            seen += 1
            if seen > _MAX_ENTRIES:
                return
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                yield prefix + name, directory, name
            elif len(open_levels) <= _MAX_DEPTH:
                open_levels.append(_level(f"{prefix}{name}/", _open_directory(directory, name)))
    finally:
        for _, directory, _ in open_levels:
            os.close(directory)


def _level(prefix: str, directory: int) -> tuple[str, int, Iterator[str]]:
    return prefix, directory, iter(sorted(os.listdir(directory)))


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
