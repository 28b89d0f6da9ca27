"""The same programs in real boxes: started there plainly, and handed to a parked cell."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.boxes import BoxRunner, start_runner, stop_runner
from tests.images import import_python
from tests.warm.imports import IMPORTS, PACKAGES
from tests.warm.programs import ELIXIR, NODE, PYTHON
from tests.warm.runners import Case, Outcome
from tidebox.embedded import Collector
from tidebox.model.box import BoxSpec
from tidebox.model.launch import WORKSPACE, Launch, Program
from tidebox.model.limits import MIB, Limits
from tidebox.model.preloads import SETS
from tidebox.runtime.pool import CellKey, Pool

_INTERPRETERS = {"python": "python3", "node": "node", "elixir": "elixir"}
_MAIN_FILES = {"python": "main.py", "node": "main.js", "elixir": "main.exs"}
_EVALUATE = {"python": "-c", "node": "-e", "elixir": "-e"}
_ADDRESS = re.compile(rb"0x[0-9a-f]+")
# None that is reached: how a program ends that has written a little more is a matter of who is faster.
_LIMITS = Limits(timeout=40.0, memory=512 * MIB, output=64 * MIB)
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


def _run(runner: BoxRunner, case: Case, launch: Launch, image: str) -> Outcome:
    files = {name: content.encode() for name, content in case.files.items()}
    if launch.direct and case.how == "script":
        files[_MAIN_FILES[case.cell]] = case.source.encode()
    collector = Collector()
    options: dict[str, Any] = {"stdin": case.stdin, "files": files, "artifacts": ["**"], "image": image}
    run = runner.engine.run(launch, collector, limits=_LIMITS, **options)
    ending = runner.submit(run).result(timeout=60)
    assert ending.captured is not None
    captured = {
        name: content
        for name, content in ending.captured.files.items()
        if "__pycache__" not in name and name not in _MAIN_FILES.values()
    }
    stdout, stderr = (_ADDRESS.sub(b"0x", b"".join(collector.parts[name])) for name in ("stdout", "stderr"))
    return Outcome(stdout, stderr, ending.exit_code, ending.signal, captured)


def _compare(runner: BoxRunner, case: Case, image: str = "host") -> None:
    cold, warm = _run(runner, case, _cold(case), image), _run(runner, case, _warm(case), image)
    if case.cell == "node" and case.how == "code":
        cold, warm = (dataclasses.replace(one, stderr=_NODE_FRAMES.sub(b"", one.stderr)) for one in (cold, warm))
    assert warm == cold


@pytest.mark.parametrize("case", PYTHON, ids=lambda case: case.name)
def test_python(box_run: BoxRunner, case: Case) -> None:
    _compare(box_run, case)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxRunner]:
    """An engine that forks programs from templates with modules loaded, and has an image of its own."""
    data_dir = tmp_path_factory.mktemp("loaded")
    import_python(data_dir, "imported", "/usr/bin/python3")
    runner = start_runner(data_dir, pool_node=0, pool_python=1)
    for name in SETS:
        runner.submit(runner.engine.runtime.warm(BoxSpec(preload=name))).result(timeout=100)
    yield runner
    stop_runner(runner)


@pytest.mark.parametrize("case", IMPORTS, ids=lambda case: case.name)
def test_python_that_imports(loaded: BoxRunner, case: Case) -> None:
    _compare(loaded, case)


@pytest.mark.parametrize("case", PACKAGES, ids=lambda case: case.name)
def test_python_with_packages_of_the_system(loaded: BoxRunner, case: Case) -> None:
    _compare(loaded, case)


@pytest.mark.parametrize("case", [*IMPORTS, *PYTHON], ids=lambda case: case.name)
def test_python_of_an_imported_image(loaded: BoxRunner, case: Case) -> None:
    key = CellKey.of(loaded.engine.runtime, "python", BoxSpec(image="imported", limits=_LIMITS))
    preload = loaded.engine.runtime.preload_for("imported", case.source.encode())
    loaded.submit(_parked(loaded.engine.pool, key._replace(preload=preload))).result(timeout=50)
    _compare(loaded, case, "imported")


async def _parked(pool: Pool, key: CellKey) -> None:
    """Have a cell parked, so that it is not a cold start that is compared with one."""
    pool.want(key, _LIMITS)
    while not pool.parked(key):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
@pytest.mark.parametrize("case", NODE, ids=lambda case: case.name)
def test_node(box_run: BoxRunner, case: Case) -> None:
    _compare(box_run, case)


@pytest.mark.skipif(shutil.which("elixir") is None, reason="no elixir on this machine")
@pytest.mark.parametrize("case", ELIXIR, ids=lambda case: case.name)
def test_elixir(box_run: BoxRunner, case: Case) -> None:
    _compare(box_run, case)
