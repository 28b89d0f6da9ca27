"""What this machine offers to boxes: its system directories and the interpreters found on it."""

from __future__ import annotations

import glob
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tidebox.runtime import launchers
from tidebox.runtime.native.plan import (
    ETC_PATTERNS,
    MASKED_DIRECTORIES,
    MASKED_FILES,
    SYSTEM_DIRECTORIES,
    HostFacts,
    contains,
)

OLDEST_PYTHON = (3, 9)
LINK_DIRECTORY = "/opt/tidebox/bin"
COPIED_FILE_BYTES = 4096
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Interpreters:
    """Where the host image's interpreters are, None where there is none."""

    python: str
    node: str | None
    elixir: str | None


def find_interpreters(python: str | None, path: str | None) -> Interpreters:
    """The real programs, never a version manager's shim."""
    return Interpreters(python or _find_python(), _find_tool("node", path), _find_tool("elixir", path))


def _find_python() -> str:
    system = "/usr/bin/python3"
    if os.access(system, os.X_OK) and _version(system) >= OLDEST_PYTHON:
        return system
    # sys.executable may be a virtual environment's link: boxes get the interpreter behind it.
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _version(python: str) -> tuple[int, ...]:
    name = os.path.basename(os.path.realpath(python))
    digits = name.removeprefix("python").split(".")
    if len(digits) == 2 and all(part.isdigit() for part in digits):
        return tuple(int(part) for part in digits)
    code = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=10, check=False)
    return tuple(int(part) for part in done.stdout.split())


def _find_tool(name: str, path: str | None) -> str | None:
    found = shutil.which(name, path=path or SYSTEM_PATH)
    return os.path.realpath(found) if found else None


def gather(interpreters: Interpreters) -> HostFacts:
    """Everything a plan needs to know of this machine."""
    directories = _existing(SYSTEM_DIRECTORIES)
    etc = _existing(tuple(sorted(path for pattern in ETC_PATTERNS for path in glob.glob("/etc/" + pattern))))
    copied = {
        path
        for path, link in etc
        if link is None and os.path.isfile(path) and os.path.getsize(path) <= COPIED_FILE_BYTES
    }
    visible = tuple(path for path, link in directories if link is None)
    names = (
        ("python3", interpreters.python),
        ("python", interpreters.python),
        ("node", interpreters.node),
        ("elixir", interpreters.elixir),
    )
    # What the box's PATH would find by itself needs no help.
    links = {name: program for name, program in names if program is not None and not _is_found(name, program, visible)}
    prefixes = [_prefix_of(program) for program in links.values() if not contains(visible, program)]
    return HostFacts(
        system_directories=directories,
        etc_shared=tuple((path, link) for path, link in etc if path not in copied),
        etc_copied=tuple((path, Path(path).read_bytes()) for path in sorted(copied)),
        extra_prefixes=tuple(dict.fromkeys(prefixes)),
        masked_files=tuple(name for name in MASKED_FILES if _readable_by_all("/proc/" + name)),
        masked_directories=tuple(name for name in MASKED_DIRECTORIES if os.path.isdir("/proc/" + name)),
        # Only root may set it, even in a pid namespace of one's own.
        memfd_noexec=os.access("/proc/sys/vm/memfd_noexec", os.W_OK),
        links=tuple(links.items()),
        launchers=tuple(launchers.files().items()),
    )


def _is_found(name: str, program: str, visible: tuple[str, ...]) -> bool:
    found = shutil.which(name, path=SYSTEM_PATH)
    return found is not None and os.path.samefile(found, program) and contains(visible, os.path.realpath(found))


def _existing(paths: tuple[str, ...]) -> tuple[tuple[str, str | None], ...]:
    return tuple((path, os.readlink(path) if os.path.islink(path) else None) for path in paths if os.path.exists(path))


def _prefix_of(program: str) -> str:
    """The directory tree an interpreter needs: ``<prefix>/bin/python`` needs the prefix; anything else only itself."""
    directory = Path(program).parent
    prefix = directory.parent
    if directory.name == "bin" and len(prefix.parts) > 2 and prefix != Path.home():
        return str(prefix)
    return program


def _readable_by_all(path: str) -> bool:
    try:
        return bool(stat.S_IMODE(os.stat(path).st_mode) & 0o044)
    except OSError:
        return False


def default_environment() -> dict[str, str]:
    """What every program in a box starts with."""
    return {
        "PATH": f"{LINK_DIRECTORY}:{SYSTEM_PATH}",
        "HOME": "/workspace",
        "LANG": "C.UTF-8",
        # Output reaches the reader when it is printed, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
    }
