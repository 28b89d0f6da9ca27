"""All parsers on all output: which problems a run had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tidebox.lsp.diagnostics import go, java, node, python, shell, table
from tidebox.lsp.diagnostics import pytest as pytest_
from tidebox.lsp.diagnostics.parsed import (
    MAX_CHARACTERS,
    MAX_PROBLEMS,
    ParsedProblem,
    ProblemKind,
    split_lines,
    without_controls,
)


class _Language(NamedTuple):
    name: str
    hints: tuple[str, ...]
    """An output without any of these has nothing for the parser."""
    parse: Callable[[Sequence[str]], Iterator[ParsedProblem]]


# A program may start others in other languages, so all are tried; the formats tell them apart.
LANGUAGES = (
    _Language("python", python.HINTS, python.parse),
    _Language("pytest", pytest_.HINTS, pytest_.parse),
    _Language("node", node.HINTS, node.parse),
    _Language("go", go.HINTS, go.parse),
    _Language("java", java.HINTS, java.parse),
    _Language("shell", shell.HINTS, shell.parse),
    *(_Language(name, hints, parse) for name, hints, parse in table.PARSERS),
)


def find_problems(stdout: str, stderr: str) -> list[ParsedProblem]:
    """Parse the output of a run into problems: reports first, then the error that ended it, then warnings."""
    of_errors, of_output = _parse(stderr), _parse(stdout)
    reports = [problem for problem in of_errors + of_output if problem.kind is ProblemKind.REPORT]
    # A traceback on standard output is one that somebody printed, unless there is no other.
    crashes = [problem for problem in of_errors if problem.kind is ProblemKind.CRASH] or [
        problem for problem in of_output if problem.kind is ProblemKind.CRASH and not reports
    ]
    warnings = [problem for problem in of_errors + of_output if problem.kind is ProblemKind.WARNING]
    return list(dict.fromkeys(reports + crashes + warnings))[:MAX_PROBLEMS]


def _parse(text: str) -> list[ParsedProblem]:
    text = without_controls(text[-MAX_CHARACTERS:])
    lines: list[str] | None = None
    found: list[ParsedProblem] = []
    for language in LANGUAGES:
        if any(hint in text for hint in language.hints):
            lines = split_lines(text) if lines is None else lines
            for problem in language.parse(lines):
                found.append(problem)
                # Twice as many as are kept: a parser may yield more than one for the same place.
                if len(found) >= 2 * MAX_PROBLEMS:
                    return found
    return found
