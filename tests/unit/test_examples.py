"""Every example runs, and says what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer, running_server

__all__ = ["running_server"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SAID = {
    "run_code.py": "tide\n1,4,9\nexited 3 no such luck\n",
    "mcp_client.py": "10 tools\n42\n2\n",
    "many_at_once.py": "0 45 190 435 780 1225 1770 2415 3160 4005\n",
    "files.py": 'ages.json {"Ada": 36, "Alan": 41}\n',
    "limits.py": (
        "while True: pass                 timeout, 0 bytes of output\n"
        "x = bytearray(b'x') * (1 << 30)  oom, 0 bytes of output\n"
        "while True: print('tide')        output_limit, 1000 bytes of output\n"
        "refused: memory\n"
    ),
    "packages.py": (
        "tide      hour\n------  ------\nebb          6\nflow         7\nrefused: https://example.com/evil.whl\n"
    ),
    "agent_tool.py": (
        '{"outcome": "exited", "exit_code": 0, "stdout": "42\\n", "stderr": "", "truncated": false}\n'
        '{"outcome": "exited", "exit_code": 1, "stdout": "", '
        '"stderr": "ZeroDivisionError: division by zero", "truncated": false}\n'
        '{"outcome": "exited", "exit_code": 1, "stdout": "", '
        '"stderr": "OSError: [Errno 101] Network is unreachable", "truncated": false}\n'
    ),
}

SAID_WITH_DOCKER = {"containers.py": "Python 3\nno Python needed\nruntime_unavailable True\n"}

SAID_WITH_A_SERVER = {
    "a2a.py": "report.txt 55\nchecked ['1+2+3+4+5+6+7+8+9+10', '55']\n",
    "anywhere.py": "tide\n2\n",
    "client.py": "tide\n0 1 2 3\nunknown_language - for good\n",
    "client_async.py": "0 45 190 435 780 1225 1770 2415 3160 4005\ncancelled\n",
    "interpreter.py": (
        "0 ebb\n1 flow\n2 tide\ncompleted 0\n['count.txt', 'words.txt']\n3 words\nCOUNT.PY\nCOUNT.TXT\nWORDS.TXT\n"
    ),
    "interpreter_async.py": "0 45 190 435 780 1225 1770 2415 3160 4005\nHIGH WATER completed\n",
    "sandbox.py": ("copies (directory) words.txt (file)\n['ebb', 'flow']\nhello, tide\nexit code 0\n2 words\n"),
    "sandbox_config.py": "0149165\n",
}


# What needs a network with servers in it runs there: tests/egress/test_service.py.
IN_A_NETWORK = {"egress.py"}


def test_every_example_is_known() -> None:
    known = {*SAID, *SAID_WITH_DOCKER, *SAID_WITH_A_SERVER, *IN_A_NETWORK}
    assert {path.name for path in EXAMPLES.glob("*.py")} == known


@pytest.mark.parametrize("name", sorted(SAID))
def test_an_example(name: str) -> None:
    check(name, SAID[name])


@pytest.mark.parametrize("name", sorted(SAID_WITH_DOCKER))
def test_an_example_with_docker(name: str, docker_host: str) -> None:
    check(name, SAID_WITH_DOCKER[name], SANDBOX_DOCKER_HOST=docker_host)


@pytest.mark.parametrize("name", sorted(SAID_WITH_A_SERVER))
def test_an_example_with_a_server(name: str, running_server: RunningServer) -> None:
    check(name, SAID_WITH_A_SERVER[name], running_server.url, SANDBOX_API_KEY=running_server.key)


def check(name: str, said: str, *arguments: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
