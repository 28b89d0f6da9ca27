"""Every promise names tests, and the tests it names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text()
PROMISES = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)


def test_promises_are_numbered_without_gaps() -> None:
    """Each keeps its number; a new one has the next, in whatever section it is."""
    assert sorted(int(number) for number, _ in PROMISES) == list(range(1, len(PROMISES) + 1))


@pytest.mark.parametrize(("number", "text"), PROMISES, ids=[number for number, _ in PROMISES])
def test_a_promise_is_held_by_tests_that_exist(number: str, text: str) -> None:
    named = re.findall(r"`(tests/[^`]+)::(\w+)`", text)
    assert named or "*pending*" in text
    for path, name in named:
        tree = ast.walk(ast.parse((ROOT / path).read_text()))
        assert name in {node.name for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
