"""The image ``host``: what this machine offers to boxes, its system directories and the interpreters found on it."""

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
from tidebox.runtime.native import configuration
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
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Interpreters:
    """Paths of the host image's interpreters, None where there is none."""

    python: str
    node: str | None
    elixir: str | None

    def by_command(self) -> dict[str, str]:
        """Those that there are, by the command that starts them."""
        return {command: path for command, path in self._looked_for().items() if path is not None}

    def _looked_for(self) -> dict[str, str | None]:
        return {"python3": self.python, "node": self.node, "elixir": self.elixir, "sh": "/bin/sh"}

    def has(self, command: str) -> bool:
        """Whether boxes of the host image find a command: one of these, or one in a system directory."""
        own = self._looked_for()
        if command in own:
            return own[command] is not None
        found = shutil.which(command, path=SYSTEM_PATH)
        return found is not None and contains(SYSTEM_DIRECTORIES, os.path.realpath(found))


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
    trees = (*visible, *(prefix for prefix in prefixes if os.path.isdir(prefix)))
    mounted = _mounted_below(trees)
    return HostFacts(
        directories=tuple(sorted({*trees, *(path for path in mounted if os.path.isdir(path))})),
        files=tuple(sorted({path for path in (*prefixes, *mounted) if _is_no_directory(path)})),
        system_links=tuple((path, link) for path, link in directories if link is not None),
        etc=etc,
        packaged=configuration.package_files(),
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


def _mounted_below(directories: tuple[str, ...]) -> list[str]:
    """Return the mount points below these directories, which are directories and files."""
    with open("/proc/self/mountinfo", "rb") as file:
        points = [os.fsdecode(_unescape(line.split()[4])) for line in file]
    return [point for point in points if contains(directories, point)]


def _is_no_directory(path: str) -> bool:
    return os.path.exists(path) and not os.path.isdir(path)


def _unescape(name: bytes) -> bytes:
    """A name as the kernel shows it there, with octal numbers for white space and backslashes."""
    for number in (b"\\040", b"\\011", b"\\012", b"\\134"):
        name = name.replace(number, bytes([int(number[1:], 8)]))
    return name


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
    """Return the environment that every program in a box starts with."""
    return {
        "PATH": f"{LINK_DIRECTORY}:{SYSTEM_PATH}",
        "HOME": "/workspace",
        "LANG": "C.UTF-8",
        # Output reaches the reader when it is printed, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
    }
