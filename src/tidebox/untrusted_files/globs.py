"""Patterns for paths, as people write them for files to keep or to leave out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


class MatchBudget:
    """How long patterns may be tried altogether: each match is bounded, but there may be many of both."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def matches(self, glob: Glob, path: str) -> bool:
        """Whether the pattern matches the path."""
        began = time.thread_time()
        try:
            return glob.matches(path)
        finally:
            self._left -= time.thread_time() - began

    @property
    def lost(self) -> bool:
        """Whether it took too long."""
        return self._left < 0


class Glob:
    """A pattern relative to /workspace: ``*``, ``?`` and ``[...]`` stay within a name, ``**`` spans directories.

    Patterns and names both come from strangers, so matching is bounded by the product of their lengths, unlike that
    of a regular expression.
    """

    def __init__(self, pattern: str) -> None:
        relative = pattern.removeprefix("/workspace/").removeprefix("./")
        self._parts = [part if part == "**" else _tokens(part) for part in relative.split("/")]
        self._deep = "**" in self._parts

    def matches(self, path: str) -> bool:
        """Whether the whole path matches."""
        names = path.split("/")
        if not self._deep and len(names) != len(self._parts):
            return False
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
