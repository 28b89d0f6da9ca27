"""The command itself, ``doctor`` and ``bench``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import tidebox as package
from tests.boxes import missing_guarantees
from tests.cli.command import tidebox
from tidebox.runtime.base import Guarantee


def test_version() -> None:
    assert tidebox("--version").stdout.decode() == f"tidebox {package.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_command(arguments: list[str]) -> None:
    done = tidebox(*arguments)
    assert done.returncode == 0
    for command in ("run", "doctor", "bench", "image"):
        assert f"  {command} " in done.stdout.decode()


def test_help_of_run_shows_the_three_ways() -> None:
    assert b"(FILE | -c CODE | -- COMMAND)" in tidebox("run", "--help").stdout


def test_a_command_loads_nothing_that_it_does_not_need() -> None:
    script = (
        "import sys; sys.argv = ['tidebox', 'run', '--help']\n"
        "from tidebox.cli.main import main\n"
        "main(); print([name for name in ('rich', 'tidebox.config', 'tidebox.embedded') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_doctor_sees_what_is_enforced() -> None:
    done = tidebox("doctor", "--json")
    found = json.loads(done.stdout)
    states = {check["guarantee"]: check["state"] for check in found["checks"]}
    assert states == {g.value: "missing" if g.value in missing_guarantees() else "enforced" for g in Guarantee}
    assert found["healthy"] is not bool(missing_guarantees())
    assert done.returncode == (0 if found["healthy"] else 1)
    [python] = [interpreter for interpreter in found["interpreters"] if interpreter["name"] == "python3"]
    assert python["version"].startswith("Python 3")


def test_doctor_as_a_table() -> None:
    done = tidebox("doctor", env={"COLUMNS": "160"})
    for guarantee in Guarantee:
        assert guarantee.value in done.stdout.decode()


def test_bench_measures_every_row() -> None:
    done = tidebox("bench", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 10
    for row in rows:
        assert row["skipped"] or (row["ours"]["n"] > 0 and row["ours"]["p50"] > 0 and row["met"] is not None)
