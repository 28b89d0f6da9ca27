"""The tools that every such box has at ``/.tidebox``, read-only: the agent with its own interpreter, and launchers.

Images need no interpreter for it. It goes by a digest of what it is made from, so that it is made once.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from tidebox.errors import ProvisionFailed
from tidebox.runtime import launchers
from tidebox.runtime.shared.archives import with_files
from tidebox.spawner import seccomp

PACKAGE_ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("collect.py")
MODULE = "tidebox.spawner.container"
# What it loads only when it is asked for something.
LATER = ("tidebox.spawner.examination", "tidebox.spawner.renewal", "json")
SECONDS = 60.0
# With any other locale it would load what the image has for one, code included.
ENVIRONMENT = {"LC_ALL": "C"}
# What the agent is made of, below the package.
_PARTS = ("agent", "wire", "spawner")


def agent_command(*arguments: str) -> list[str]:
    """Return the command of a box's pid 1: it is started by its own loader, with nothing of the image."""
    place = launchers.DIRECTORY
    program = [f"{place}/ld.so", "--library-path", f"{place}/lib", f"{place}/bin/python3"]
    code = f"import os, sys; from {MODULE} import main; os._exit(main(sys.argv[1:]))"
    return [*program, "-I", "-S", "-B", "-c", code, *arguments]


def filter_name(nested: bool, executable: bool = True, guest: bool = False) -> str:
    """The file with the system call filter.

    ``nested`` says that programs may load more, ``executable`` that memory may be executed like a file, ``guest`` that
    the kernel of the box is not Linux.
    """
    return "filter" + ("-nested" if nested else "") + ("" if executable else "-noexec") + ("-guest" if guest else "")


def filter_path(nested: bool, executable: bool = True, guest: bool = False) -> str:
    """Return the path of the seccomp filter in boxes."""
    return f"{launchers.DIRECTORY}/{filter_name(nested, executable, guest)}"


def sources() -> dict[str, bytes]:
    """The agent's own files, below the directory that its package is in."""
    package = PACKAGE_ROOT / "tidebox"
    paths = [path for part in _PARTS for path in sorted((package / part).glob("*.py"))]
    return {str(path.relative_to(PACKAGE_ROOT).as_posix()): path.read_bytes() for path in paths}


def runs_here(machine: str) -> bool:
    """Whether this process's own interpreter would run in a box on such a machine."""
    return sys.platform == "linux" and platform.machine() == machine


def collect_here() -> bytes:
    """An archive of this process's own interpreter with the agent."""
    try:
        found = subprocess.run(
            [os.path.realpath(sys.executable), "-I", "-S", str(PROGRAM), str(PACKAGE_ROOT), MODULE, *LATER],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise collecting_failed(str(error)) from error
    if found.returncode:
        raise collecting_failed(found.stderr.decode("utf-8", "replace"))
    return found.stdout


def complete(collected: bytes, machine: str) -> bytes:
    """The whole archive, of an interpreter with the agent."""
    files = launchers.files()
    for choice in itertools.product((False, True), repeat=3):
        files[filter_name(*choice)] = seccomp.build_filter(machine, *choice)
    return with_files(collected, files)


@functools.cache
def digest(machine: str) -> str:
    """Of what it is made from: the interpreter, by what tells one from the next, and our own files."""
    interpreter = os.path.realpath(sys.executable)
    status = os.stat(interpreter)
    marks: list[Any] = [machine, sys.version, interpreter, status.st_size, status.st_mtime_ns]
    found = hashlib.sha256(repr(marks).encode())
    files = {**sources(), "collect": PROGRAM.read_bytes(), **launchers.files()}
    for path, content in files.items():
        found.update(path.encode() + b"\0" + content)
    return found.hexdigest()[:16]


def collecting_failed(reason: str) -> ProvisionFailed:
    """Build the error that says why there is no agent."""
    last = (reason.strip().splitlines() or [""])[-1]
    return ProvisionFailed(f"the agent for boxes could not be put together: {last}", step="tools")
