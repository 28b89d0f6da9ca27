"""What hostile programs and the tests that run them share.

A probe is a small Python program that tries one thing and prints one line: ``denied <errno>`` or ``BREACH <what it
got>``. To know that it can fail, most are also run outside any box, as root in throw-away namespaces, where they must
get another answer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, Protocol

from tests.patience import patient
from tests.runtimes import RUNTIME
from tidebox.model.result import Result
from tidebox.spawner.syscall_tables import syscall_numbers

NUMBERS = syscall_numbers(os.uname().machine)
MIB = 1024 * 1024

_PRELUDE = """\
import ctypes, errno, os, sys
_libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = _libc.syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def attempt(action):
    try:
        got = action()
    except OSError as error:
        print("denied", errno.errorcode.get(error.errno, error.errno), flush=True)
    else:
        print("BREACH", got, flush=True)

"""


class Run(Protocol):
    """Runs a program in a fresh box, to its end."""

    def __call__(self, code: str, language: str = "python", **options: Any) -> Result: ...


class AsyncRun(Protocol):
    """The same without blocking, for several at once."""

    def __call__(self, code: str | None = None, language: str = "python", **options: Any) -> Awaitable[Result]: ...


def on_gvisor(*answers: str) -> tuple[str, ...]:
    """What is an answer there only: its kernel is not Linux, and does not have everything."""
    return answers if RUNTIME == "gvisor" else ()


def python(source: str) -> str:
    """A whole program: ``call``, ``attempt`` and the numbers it names as ``NR.<name>``, then ``source``."""
    source = dedent(source)
    names = sorted(set(re.findall(r"\bNR\.(\w+)", source)))
    table = "".join(f"    {name} = {NUMBERS[name]}\n" for name in names)
    return _PRELUDE + (f"class NR:\n{table}\n" if names else "") + source


def said(result: Result) -> str:
    """What a program printed that ended well."""
    assert (result.outcome.value, result.exit_code) == ("exited", 0), (result.outcome, result.exit_code, result.stderr)
    return result.stdout.decode().strip()


@cache
def _shielded() -> tuple[str, ...] | None:
    """The command prefix under which a probe harms nothing but is as free as root outside a box; None without root."""
    if os.geteuid() != 0:
        return None
    prefix = ("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")
    try:
        works = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        works = False
    return prefix if works else None


def outside(program: str, shield: bool = True) -> str | None:
    """What ``program`` prints outside any box, or None where this cannot be tried."""
    prefix = _shielded()
    if prefix is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        # A session of its own, so that no probe finds the terminal that the tests run in.
        done = subprocess.run(
            [*(prefix if shield else ()), sys.executable, "-I", "-c", program],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patient(30),
            start_new_session=True,
            check=False,
        )
    return done.stdout.strip()


@dataclass(frozen=True)
class Probe:
    """One attempt, and the errno names with which a box may refuse it."""

    name: str
    source: str
    refusals: tuple[str, ...] = ("EPERM",)
    compare: bool = True
    """Whether the same program gets another answer outside a box."""
    gvisor: tuple[str, ...] = ()
    """Further ones with which the kernel of a sandbox of gVisor may refuse it."""

    def __str__(self) -> str:
        return self.name


def try_call(name: str, *arguments: str, refusals: tuple[str, ...] = ("EPERM",), label: str = "") -> Probe:
    """A probe of one system call; arguments are Python expressions, absent ones are zero."""
    padded = ", ".join((*arguments, *["0"] * (6 - len(arguments))))
    return Probe(label or name, f"attempt(lambda: call(NR.{name}, {padded}))", refusals)


def assert_refused(run: Run, probe: Probe) -> None:
    """The box refuses the probe with one of its errnos; the machine outside does not."""
    program = python(probe.source)
    answers = {f"denied {name}" for name in (*probe.refusals, *on_gvisor(*probe.gvisor))}
    assert said(run(program)) in answers
    if probe.compare:
        free = outside(program)
        assert free is None or (free and free not in answers), (
            f"the probe proves nothing: outside a box it says {free!r}"
        )


def host_processes_with(marker: str) -> list[int]:
    """Pids on this machine whose command line contains ``marker``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
