"""A parked interpreter is not to be told from a plain one: the same programs, outcome for outcome."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.warm.imports import IMPORTS
from tests.warm.programs import ELIXIR, NODE, PYTHON
from tests.warm.runners import Bare, Case, Forked, Outcome, Parked, python_interpreters
from tidebox.model.preloads import STANDARD, modules_of

INTERPRETERS = python_interpreters()


@functools.cache
def _version(interpreter: str) -> tuple[int, int]:
    command = [interpreter, "-c", "import sys; print(*sys.version_info[:2])"]
    major, minor = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(major), int(minor)


def _compare(bare: Outcome, parked: Outcome) -> None:
    assert parked.stderr == bare.stderr
    assert parked.stdout == bare.stdout
    assert (parked.exit_code, parked.signal) == (bare.exit_code, bare.signal)
    assert parked.files == bare.files


@pytest.mark.parametrize("interpreter", INTERPRETERS)
@pytest.mark.parametrize("case", PYTHON, ids=lambda case: case.name)
def test_python(case: Case, interpreter: str, tmp_path: Path) -> None:
    """Also beside modules that were loaded before, with the first interpreter."""
    if _version(interpreter) < case.oldest:
        pytest.skip("newer than this interpreter")
    bare = Bare(tmp_path, interpreter).run(case)
    _compare(bare, Forked(tmp_path, interpreter).run(case))
    if interpreter == INTERPRETERS[0]:
        _compare(bare, Forked(tmp_path, interpreter, modules_of(STANDARD)).run(case))


@pytest.mark.parametrize("interpreter", INTERPRETERS)
@pytest.mark.parametrize("case", IMPORTS, ids=lambda case: case.name)
def test_python_that_imports(case: Case, interpreter: str, tmp_path: Path) -> None:
    forked = Forked(tmp_path, interpreter, modules_of(STANDARD))
    _compare(Bare(tmp_path, interpreter).run(case), forked.run(case))


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
@pytest.mark.parametrize("case", NODE, ids=lambda case: case.name)
def test_node(case: Case, tmp_path: Path) -> None:
    node = shutil.which("node") or ""
    bare, parked = Bare(tmp_path, node).run(case), Parked(tmp_path, node).run(case)
    if case.how == "code":
        # Below the program's own lines a trace has some of node's, which are not the same ones.
        bare, parked = _without_node_frames(bare), _without_node_frames(parked)
    _compare(bare, parked)


def _without_node_frames(outcome: Outcome) -> Outcome:
    stderr = re.sub(rb"    at [^\n]*(\(node:|node:internal|\[eval\]-wrapper)[^\n]*\n", b"", outcome.stderr)
    return Outcome(outcome.stdout, stderr, outcome.exit_code, outcome.signal, outcome.files)


@pytest.mark.skipif(shutil.which("elixir") is None, reason="no elixir on this machine")
@pytest.mark.parametrize("case", ELIXIR, ids=lambda case: case.name)
def test_elixir(case: Case, tmp_path: Path) -> None:
    elixir = shutil.which("elixir") or ""
    _compare(Bare(tmp_path, elixir).run(case), Parked(tmp_path, elixir).run(case))
