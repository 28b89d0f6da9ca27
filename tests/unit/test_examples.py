"""Every example runs, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SAID = {
    "run_code.py": "tide\n1,4,9\nexited 3 no such luck\n",
    "many_at_once.py": "0 45 190 435 780 1225 1770 2415 3160 4005\n",
    "files.py": 'ages.json {"Ada": 36, "Alan": 41}\n',
    "limits.py": (
        "while True: pass                 timeout, 0 bytes of output\n"
        "x = bytearray(b'x') * (1 << 30)  oom, 0 bytes of output\n"
        "while True: print('tide')        output_limit, 1000 bytes of output\n"
        "refused: memory\n"
    ),
    "agent_tool.py": (
        '{"outcome": "exited", "exit_code": 0, "stdout": "42\\n", "stderr": "", "truncated": false}\n'
        '{"outcome": "exited", "exit_code": 1, "stdout": "", '
        '"stderr": "ZeroDivisionError: division by zero", "truncated": false}\n'
        '{"outcome": "exited", "exit_code": 1, "stdout": "", '
        '"stderr": "OSError: [Errno 101] Network is unreachable", "truncated": false}\n'
    ),
}


def test_every_example_is_known() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == SAID.keys()


@pytest.mark.parametrize("name", sorted(SAID))
def test_an_example(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, SAID[name], "")
