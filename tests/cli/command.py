"""The real command, as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TIDEBOX = str(Path(sys.executable).parent / "tidebox")


def tidebox(
    *arguments: str | Path,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = 100,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``tidebox`` to its end."""
    return subprocess.run(
        [TIDEBOX, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=seconds,
        check=False,
    )


def start_tidebox(*arguments: str) -> subprocess.Popen[bytes]:
    """Start ``tidebox`` with pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen([TIDEBOX, *arguments], stdin=pipe, stdout=pipe, stderr=pipe)


def error_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """The one line that a failure says; anything else than one line and exit code 2 fails the test."""
    assert done.returncode == 2, done
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("tidebox: ")
    return lines[0].removeprefix("tidebox: ")
