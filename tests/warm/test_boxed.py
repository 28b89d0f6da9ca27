"""The same programs in real boxes: started there plainly, and handed to a parked cell."""

from __future__ import annotations

import dataclasses
import re
import shutil

import pytest

from tests.boxes import BoxRunner
from tests.warm.programs import ELIXIR, NODE, PYTHON
from tests.warm.runners import Case, Outcome
from tidebox.embedded import Collector
from tidebox.model.launch import WORKSPACE, Launch, Program
from tidebox.model.limits import MIB, Limits

_INTERPRETERS = {"python": "python3", "node": "node", "elixir": "elixir"}
_MAIN_FILES = {"python": "main.py", "node": "main.js", "elixir": "main.exs"}
_EVALUATE = {"python": "-c", "node": "-e", "elixir": "-e"}
_ADDRESS = re.compile(rb"0x[0-9a-f]+")
# Of node alone, and of no program: lines of its own below the evaluated code.
_NODE_FRAMES = re.compile(rb"    at [^\n]*(\(node:|node:internal|\[eval\]-wrapper)[^\n]*\n")


def _cold(case: Case) -> Launch:
    interpreter = _INTERPRETERS[case.cell]
    if case.how == "exec":
        command = list(case.start)
    elif case.how == "code":
        command = [interpreter, _EVALUATE[case.cell], case.source]
    elif case.how == "file":
        command = [interpreter, *case.start]
    else:
        command = [interpreter, f"{WORKSPACE}/{_MAIN_FILES[case.cell]}"]
    argv = (*command, *case.arguments)
    return Launch("any", Program("exec", env=case.env, arguments=argv), argv, direct=True)


def _warm(case: Case) -> Launch:
    path, source, arguments = "", b"", case.arguments
    if case.how == "exec":
        arguments = (*case.start, *case.arguments)
    elif case.how == "file":
        path, arguments = case.start[0], (*case.start[1:], *case.arguments)
    else:
        source = case.source.encode()
        path = "" if case.how == "code" else f"{WORKSPACE}/{_MAIN_FILES[case.cell]}"
    program = Program(case.how, WORKSPACE, path, source, case.env, arguments)  # type: ignore[arg-type]
    return Launch(case.cell, program, ())  # type: ignore[arg-type]


def _run(runner: BoxRunner, case: Case, launch: Launch) -> Outcome:
    files = {name: content.encode() for name, content in case.files.items()}
    if launch.direct and case.how == "script":
        files[_MAIN_FILES[case.cell]] = case.source.encode()
    collector = Collector()
    # No limit that is reached: how a program ends that has written a little more is a matter of who is faster.
    limits = Limits(timeout=40.0, memory=512 * MIB, output=64 * MIB)
    run = runner.engine.run(launch, collector, limits=limits, stdin=case.stdin, files=files, artifacts=["**"])
    ending = runner.submit(run).result(timeout=60)
    assert ending.captured is not None
    captured = {
        name: content
        for name, content in ending.captured.files.items()
        if "__pycache__" not in name and name not in _MAIN_FILES.values()
    }
    stdout, stderr = (_ADDRESS.sub(b"0x", b"".join(collector.parts[name])) for name in ("stdout", "stderr"))
    return Outcome(stdout, stderr, ending.exit_code, ending.signal, captured)


def _compare(runner: BoxRunner, case: Case) -> None:
    cold, warm = _run(runner, case, _cold(case)), _run(runner, case, _warm(case))
    if case.cell == "node" and case.how == "code":
        cold, warm = (dataclasses.replace(one, stderr=_NODE_FRAMES.sub(b"", one.stderr)) for one in (cold, warm))
    assert warm == cold


@pytest.mark.parametrize("case", PYTHON, ids=lambda case: case.name)
def test_python(box_run: BoxRunner, case: Case) -> None:
    _compare(box_run, case)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
@pytest.mark.parametrize("case", NODE, ids=lambda case: case.name)
def test_node(box_run: BoxRunner, case: Case) -> None:
    _compare(box_run, case)


@pytest.mark.skipif(shutil.which("elixir") is None, reason="no elixir on this machine")
@pytest.mark.parametrize("case", ELIXIR, ids=lambda case: case.name)
def test_elixir(box_run: BoxRunner, case: Case) -> None:
    _compare(box_run, case)
