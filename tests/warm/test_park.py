"""What a parked process does with what is no ordinary program, and that the launchers stand on their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patient
from tests.warm.runners import Case, Parked
from tidebox.model.launch import Program
from tidebox.runtime import launchers
from tidebox.runtime.program import encode_program

PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
ENV = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory filled as a box's is."""
    root = tmp_path / "launchers"
    for name, content in launchers.files().items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return root


def _command(cell: str, installed: Path) -> list[str]:
    return [word.replace(launchers.DIRECTORY, str(installed)) for word in launchers.COMMANDS[cell]]


def _hand(command: list[str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, input=stdin, capture_output=True, env=ENV, timeout=patient(120))


@pytest.mark.parametrize("cell", sorted(launchers.COMMANDS))
def test_a_cell_nobody_needs_goes_quietly(cell: str, installed: Path) -> None:
    if shutil.which(launchers.COMMANDS[cell][0]) is None:
        pytest.skip(f"no {cell} on this machine")
    done = _hand(_command(cell, installed), b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("cell", sorted(launchers.COMMANDS))
def test_a_block_that_is_cut_off_runs_nothing(cell: str, installed: Path) -> None:
    if shutil.which(launchers.COMMANDS[cell][0]) is None:
        pytest.skip(f"no {cell} on this machine")
    block = encode_program(Program("code", "/", "", b"1", (), ()), 0)
    done = _hand(_command(cell, installed), block[:-1])
    assert done.returncode == 126
    assert done.stdout == b""


def test_the_launcher_for_another_python_leaves_no_trace(installed: Path) -> None:
    source = b"import sys; ours = [p for p in sys.path if 'launchers' in p]\n"
    source += b"print(sys.argv, sys.path[0], ours, 'tidebox' in str(sys.modules))"
    program = Program("code", "/", "", source, (), ("a",))
    done = _hand([PYTHON, str(installed / "park.py")], encode_program(program, 0))
    assert done.stderr == b""
    assert done.stdout == b"['-c', 'a']  [] False\n"
    assert done.returncode == 0


def test_the_launcher_does_without_modules_that_it_cannot_load_ahead(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "spoiler.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    source = (
        b"import sys, os; print(sorted(n for n in sys.modules if n in ('json', 'spoiler', 'threading')), sys.argv)\n"
    )
    source += b"import json; print(json.dumps(os.listdir('/proc/self/task') == [str(os.getpid())]))"
    program = Program("script", str(tmp_path), str(tmp_path / "main.py"), source, (), ("a",))
    done = subprocess.run(
        [PYTHON, str(installed / "park.py"), "json,spoiler,csv"],
        input=encode_program(program, 0),
        capture_output=True,
        env={**ENV, "PYTHONPATH": str(tmp_path)},
        timeout=40,
    )
    assert done.stderr == b""
    assert done.stdout.decode() == f"[] ['{tmp_path}/main.py', 'a']\ntrue\n"


@pytest.mark.parametrize(
    ("program", "status", "message"),
    [
        (Program("exec", "/", arguments=("no-such-command",)), 127, b"no-such-command: No such file or directory\n"),
        (Program("exec", "/", arguments=("/etc/passwd",)), 126, b"/etc/passwd: Permission denied\n"),
        (Program("exec", "/", arguments=("/no/such",)), 127, b"/no/such: No such file or directory\n"),
        (Program("code", "/no/such"), 126, b"cannot change directory to '/no/such': No such file or directory\n"),
        (
            Program("script", "/", "/no/such/main.py"),
            126,
            b"cannot write '/no/such/main.py': No such file or directory\n",
        ),
    ],
)
def test_what_cannot_be_started_says_so(program: Program, status: int, message: bytes, installed: Path) -> None:
    done = _hand([PYTHON, str(installed / "park.py")], encode_program(program, 0))
    assert (done.returncode, done.stdout, done.stderr) == (status, b"", message)


def test_a_file_is_written_before_the_command_that_reads_it(tmp_path: Path, installed: Path) -> None:
    path = tmp_path / "main.sh"
    program = Program("exec", str(tmp_path), str(path), b"echo $0 $1 $A", (("A", "1"),), ("sh", "main.sh", "x"))
    done = _hand([PYTHON, str(installed / "park.py")], encode_program(program, 0))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"main.sh x 1\n", b"")
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_processor_time_is_limited_for_good(tmp_path: Path) -> None:
    outcome = Parked(tmp_path, PYTHON).run(
        Case("limit", "import resource; print(resource.getrlimit(resource.RLIMIT_CPU))")
    )
    assert outcome.stdout == b"(30, 31)\n"
