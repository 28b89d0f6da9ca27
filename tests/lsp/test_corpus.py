"""Real traces of failing programs: each is marked at the line, and with the words, that its author expects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lsp.corpus.programs import CASES
from tidebox.lsp.diagnostics.parsing import find_problems
from tidebox.lsp.diagnostics.path_mapping import SentFiles, locate_problems

TRACES = Path(__file__).parent / "corpus" / "traces"
_NAMES = sorted(path.stem for path in TRACES.glob("*.json"))


def read(name: str) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads((TRACES / f"{name}.json").read_text())
    return trace


@pytest.mark.parametrize("name", _NAMES)
def test_a_trace_is_marked_where_the_program_failed(name: str) -> None:
    trace = read(name)
    files = {path: text.count("\n") + 1 for path, text in trace["files"].items()}
    marks = locate_problems(find_problems(trace["stdout"], trace["stderr"]), SentFiles(files, files.__getitem__))
    wanted = trace["exit_code"] != 0
    found = [
        {"path": each.place.path, "line": each.place.line, "message": each.message, "warning": each.warning}
        for each in marks
        if each.warning or wanted
    ]
    assert found == trace["expected"]


def test_the_corpus_is_large_and_complete() -> None:
    assert len(_NAMES) >= 120
    assert set(_NAMES) == {case.name for case in CASES}


def test_causes_are_related_information() -> None:
    for name, cause in (
        ("python-chained-from", "caused by ValueError: inner"),
        ("node-cause", "caused by TypeError: inner"),
        ("java-cause", "caused by java.lang.IllegalArgumentException: inner"),
        ("python-group", "caused by ExceptionGroup: several (2 sub-exceptions)"),
    ):
        trace = read(name)
        files = {path: text.count("\n") + 1 for path, text in trace["files"].items()}
        marks = locate_problems(find_problems(trace["stdout"], trace["stderr"]), SentFiles(files, files.__getitem__))
        assert cause in [text for _, text in marks[0].related], name
