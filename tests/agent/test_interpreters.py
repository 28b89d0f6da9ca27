"""The agent under every interpreter on PATH, and what it imports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.agent.peer import SOURCE, interpreters, running

# What costs memory in every box, or would be loaded from a hostile image.
UNWANTED = {"asyncio", "dataclasses", "enum", "inspect", "json", "logging", "re", "socket", "subprocess", "threading"}


@pytest.mark.parametrize("version", interpreters())
def test_a_program_a_terminal_and_a_file(version: str, tmp_path: Path) -> None:
    with running(interpreters()[version]) as peer:
        assert peer.run("cat", stdin=b"in and out").stdout == b"in and out"
        assert peer.run_sh("stty size", tty=True).stdout == b"24 80\r\n"
        handle = peer.open(tmp_path / "file", read=True, write=True, create=True)
        assert peer.write(handle, b"content").ok
        assert peer.read(handle) == b"content"


@pytest.mark.parametrize("version", interpreters())
def test_imports_stay_few(version: str) -> None:
    program = "import sys; before = set(sys.modules); import tidebox.agent.main; print(*set(sys.modules) - before)"
    answer = subprocess.run(
        [interpreters()[version], "-S", "-c", program],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not UNWANTED & set(answer.stdout.split())
