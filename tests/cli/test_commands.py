"""The command itself, ``doctor`` and ``bench``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tidebox as package
from tests.boxes import missing_guarantees
from tests.cli.command import TIDEBOX, error_line, tidebox
from tests.images import import_python, import_shell
from tidebox.model.runtimes import Guarantee


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


HEAVY = ("pydantic", "fastapi", "uvicorn", "sqlalchemy", "typer", "rich", "structlog", "msgspec")


def loaded_by(script: str) -> set[str]:
    """The modules that a new interpreter has loaded when it has run ``script``."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{script}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"], ["serve", "--help"]])
def test_what_is_only_asked_for_loads_nothing_that_works(words: list[str]) -> None:
    loaded = loaded_by(f"from tidebox.cli.main import main\nsys.argv = ['tidebox', *{words!r}]\nmain()")
    assert loaded.isdisjoint({*HEAVY, "asyncio", "tidebox.config", "tidebox.embedded", "tidebox.runtime"})


def test_a_run_loads_nothing_of_the_server() -> None:
    loaded = loaded_by("import tidebox.cli.main, tidebox.cli.run, tidebox.cli.report, tidebox.embedded")
    assert "tidebox.embedded" in loaded
    assert loaded.isdisjoint({*HEAVY, "tidebox.server", "tidebox.api", "tidebox.broker"})


@pytest.mark.parametrize("words", ["--help", "image list"])
def test_a_reader_who_leaves_is_told_nothing(words: str) -> None:
    script = f"{{ sleep 0.1; {TIDEBOX} {words}; echo $? >&2; }} | true"
    done = subprocess.run(["sh", "-c", script], stderr=subprocess.PIPE, timeout=50, check=True)
    assert done.stderr == b"1\n"


def test_a_misspelled_command_is_guessed() -> None:
    assert "Did you mean 'bench'?" in error_line(tidebox("bnch"))


def test_doctor_sees_what_is_enforced() -> None:
    done = tidebox("doctor", "--json")
    found = json.loads(done.stdout)
    states = {check["guarantee"]: check["state"] for check in found["checks"]}
    assert states == {g.value: "missing" if g.value in missing_guarantees() else "enforced" for g in Guarantee}
    assert found["healthy"] is not bool(missing_guarantees())
    assert done.returncode == (0 if found["healthy"] else 1)
    [python] = [interpreter for interpreter in found["interpreters"] if interpreter["name"] == "python3"]
    assert python["version"].startswith("Python 3")


def test_doctor_tells_how_programs_of_each_image_start(tmp_path: Path) -> None:
    import_python(tmp_path, "own-python", "/usr/bin/python3")
    import_shell(tmp_path, "shell")
    found = json.loads(tidebox("doctor", "--json", env={"SANDBOX_DATA_DIR": str(tmp_path)}).stdout)
    starts = {(each["image"], each["language"]): each["start"] for each in found["images"]}
    assert starts == {
        ("host", "python"): "forked",
        ("host", "javascript"): "parked",
        ("own-python", "python"): "parked",
        ("own-python", "javascript"): "none",
        ("shell", "python"): "none",
        ("shell", "javascript"): "none",
    }


def test_doctor_as_a_table() -> None:
    done = tidebox("doctor", env={"COLUMNS": "160"})
    for guarantee in Guarantee:
        assert guarantee.value in done.stdout.decode()


@pytest.mark.timeout(330)
def test_bench_measures_every_row() -> None:
    done = tidebox("bench", "--quick", "--json", seconds=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 24
    for row in rows:
        assert row["skipped"] or (row["ours"]["n"] > 0 and row["ours"]["p50"] > 0 and row["met"] is not None)
