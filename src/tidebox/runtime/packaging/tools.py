"""Runs uv and npm: with the operator's settings for them, in a directory of their own, within limits.

Neither starts other programs with a package in its hands (uv builds nothing, npm is guarded), so that limits of a
process are limits of all that is done.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tidebox.errors import FetchFailed, InvalidPackage, ShuttingDown
from tidebox.model.limits import GIB, MIB

_LOOK_SECONDS = 0.2
# Of looks, how many go by until its directory is measured again.
_LOOKS_PER_MEASUREMENT = 4
_MOST_FILES = 100_000
_MOST_SAID = 64 * 1024
_MOST_OUTPUT = 4 << 20
_MOST_LOGGED = 4 << 20
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}:\d+|\[?(?:[0-9a-fA-F]{0,4}:){3,}[0-9a-fA-F]*\]?(?::\d+)?")
# Before the tool itself: it ends with the thread that waits for it, even where our process is killed. Programs in boxes
# come first. The data limit is one of memory that is used: address space is reserved by gigabytes.
_START = """
import ctypes, os, resource, signal, sys
parent, size, memory, seconds = map(int, sys.argv[1:5])
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != parent:
    sys.exit(1)
os.nice(5)
for name, most in (("FSIZE", size), ("DATA", memory), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
os.execv(sys.argv[5], sys.argv[5:])
"""
# How programs end that get no memory.
_OUT_OF_MEMORY = (signal.SIGKILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS)


class Stop:
    """Tells the threads that make a layer to end, and does so."""

    def __init__(self) -> None:
        self._set = threading.Event()

    def set(self) -> None:
        """End them."""
        self._set.set()

    def check(self) -> None:
        """Raise where it is set."""
        if self._set.is_set():
            raise ShuttingDown("the packages are not needed any more")


@dataclass(frozen=True, slots=True)
class Said:
    """The result of a tool: its exit code and what it printed."""

    code: int
    output: bytes
    errors: str
    private: tuple[str, ...] = ()
    """Names of directories and hosts that are not to be shown."""

    def reason(self, text: str, wanted: Callable[[str], bool], most: int = 600) -> str:
        """The wanted lines of what the tool said, as one line that users may see.

        They are not to learn where the index is, and its address may hold credentials.
        """
        words = " ".join(" ".join(line.split()) for line in text.splitlines() if wanted(line))
        words = _URL.sub("(...)", words)
        for name in self.private:
            # Of a directory, all that is below it too.
            words = re.sub(re.escape(name) + (r"[^\s'\"]*" if "/" in name else ""), "(...)", words)
        words = _ADDRESS.sub("(...)", words)
        shown = "".join(letter if letter.isprintable() else "?" for letter in words)
        return shown if len(shown) <= most else shown[:most] + "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits of one start of a tool."""

    memory_bytes: int = 2 * GIB
    cpu_seconds: int = 120
    disk_bytes: int = 4 * GIB
    """Of the directory that it works in."""


class PackageTools:
    """Starts uv and npm."""

    def __init__(self, environment: Mapping[str, str], limits: ToolLimits, log: Path) -> None:
        """``environment`` has their settings; ``log`` is a file for all that they say, which the operator reads."""
        self.environment = environment
        self._limits = limits
        self._log = log

    def run(
        self,
        command: Sequence[str],
        directory: Path,
        stop: Stop,
        *,
        purpose: str,
        seconds: float,
        variables: Mapping[str, str] | None = None,
    ) -> Said:
        """Run a tool to its end; ``purpose`` names the packages that it is for.

        Raises ``FetchFailed`` where it takes too long, and ``InvalidPackage`` where it takes too much.
        """
        name, limits = Path(command[0]).name, self._limits
        temporary = directory / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {**self.environment, **(variables or {}), "TMPDIR": str(temporary)}
        bounds = (limits.disk_bytes, limits.memory_bytes, limits.cpu_seconds)
        with (directory / "stdout").open("w+b") as output, (directory / "stderr").open("w+b") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), *map(str, bounds), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
            try:
                self._wait(process, directory, stop, name, purpose, seconds)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            finally:
                errors.seek(0)
                said = errors.read(_MOST_SAID).decode("utf-8", "replace")
                self._keep(command, process.returncode, said)
            output.seek(0)
            found = Said(process.returncode, output.read(_MOST_OUTPUT), said, _private(environment, directory))
        self._check_end(found, name, purpose)
        return found

    def _wait(
        self, process: subprocess.Popen[bytes], directory: Path, stop: Stop, name: str, purpose: str, seconds: float
    ) -> None:
        deadline = time.monotonic() + seconds
        for look in itertools.count(1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_SECONDS)
            stop.check()
            over = process.poll() is not None
            if (over or look % _LOOKS_PER_MEASUREMENT == 0) and not _fits(directory, self._limits.disk_bytes):
                limit = f"{self._limits.disk_bytes // MIB} MiB of the disk (twice SANDBOX_PACKAGE_MAX_MB)"
                raise _takes_too_much(name, purpose, limit)
            if over:
                return
            if time.monotonic() > deadline:
                raise FetchFailed(f"{name} did not end within {seconds:g} s for {purpose}", step="packages")

    def _check_end(self, said: Said, name: str, purpose: str) -> None:
        if said.code == -signal.SIGXCPU:
            limit = f"{self._limits.cpu_seconds} s of processor time (SANDBOX_PACKAGE_TOOL_CPU_SEC)"
        elif -said.code in _OUT_OF_MEMORY:
            limit = f"{self._limits.memory_bytes // MIB} MiB of memory (SANDBOX_PACKAGE_TOOL_MEMORY_MB)"
        else:
            return
        raise _takes_too_much(name, purpose, limit)

    def _keep(self, command: Sequence[str], code: int | None, said: str) -> None:
        """Add what a tool said to the operator's log; it may hold addresses and credentials of an index."""
        entry = {"at": time.time(), "command": list(command[:3]), "exit_code": code, "stderr": said}
        # Tools run by twos, and a line is written at once. That it is not kept stops nobody.
        with contextlib.suppress(OSError):
            if self._log.exists() and self._log.stat().st_size > _MOST_LOGGED:
                self._log.replace(self._log.with_suffix(".old"))
            descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with open(descriptor, "ab", buffering=0) as file:
                file.write(json.dumps(entry).encode() + b"\n")


def _takes_too_much(name: str, purpose: str, limit: str) -> InvalidPackage:
    return InvalidPackage(f"{name} took more than {limit} for {purpose}", field="packages", packages=purpose)


def _fits(directory: Path, most: int) -> bool:
    """Whether all files below a directory take no more than so many bytes, and are no absurd number."""
    files = 0
    pending = [str(directory)]
    while pending:
        # What goes meanwhile counts for nothing.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                files += 1
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        most -= entry.stat(follow_symlinks=False).st_blocks * 512
                if most < 0 or files > _MOST_FILES:
                    return False
    return True


def _private(environment: Mapping[str, str], directory: Path) -> tuple[str, ...]:
    hosts = set()
    for value in environment.values():
        for url in _URL.findall(value):
            with contextlib.suppress(ValueError):
                hosts.add(urlsplit(url).hostname or "")
    return (str(directory), *sorted(hosts - {""}))
