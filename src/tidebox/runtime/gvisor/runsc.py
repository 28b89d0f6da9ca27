"""The program ``runsc``: where it is, what of its options it knows, and how it is called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidebox.errors import RuntimeUnavailable

PLATFORMS = ("systrap", "ptrace", "kvm")
"""By which ways it can run a program, in the order in which they are tried."""
_SECONDS = 10.0
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VERSION = re.compile(r"runsc version (\S+)")
_FLAG = re.compile(r"^\s+-([a-zA-Z0-9_-]+)", re.MULTILINE)
_HOW = "install gVisor's runsc (Debian: apt-get install runsc), or name it in SANDBOX_GVISOR_RUNSC"
# Asked for where it is known. No file of the machine is opened by the sentry itself: its gofer does that. What boxes
# see of the machine is read-only and does not change under them, so nothing is looked up twice.
_WANTED = {
    "network": "none",
    "overlay2": "none",
    "directfs": "false",
    "file-access-mounts": "exclusive",
    "host-uds": "none",
    "ignore-cgroups": "true",
}


def find(named: str | None, environment: Mapping[str, str]) -> str:
    """Its path; raises ``RuntimeUnavailable`` where there is none."""
    if named is not None:
        if not (os.path.isabs(named) and os.access(named, os.X_OK) and os.path.isfile(named)):
            raise RuntimeUnavailable(f"gvisor: there is no program {named}; {_HOW}")
        return named
    for path in (environment.get("PATH"), _USUAL_PATH):
        if found := shutil.which("runsc", path=path):
            return os.path.abspath(found)
    raise RuntimeUnavailable(f"gvisor: runsc was not found; {_HOW}")


@dataclass(frozen=True, slots=True)
class Runsc:
    """One that was asked what it is."""

    path: str
    version: str
    flags: frozenset[str]

    def command(self, state: Path, platform: str, rootless: bool) -> list[str]:
        """Return the program and options that every call of it begins with."""
        options = {**_WANTED, "root": str(state), "platform": platform, "rootless": "true" if rootless else "false"}
        return [self.path, *(f"--{name}={value}" for name, value in options.items() if name in self.flags)]


def look(path: str) -> Runsc:
    """Ask it what it is; raises ``RuntimeUnavailable`` where it does not tell."""
    told = _said(path, ["--version"])
    version = _VERSION.search(told)
    flags = frozenset(_FLAG.findall(_said(path, ["flags"])))
    if version is None or not {"root", "platform", "network", "ignore-cgroups"} <= flags:
        raise RuntimeUnavailable(f"gvisor: {path} is no runsc that can be used")
    return Runsc(path, version[1], flags)


def _said(path: str, arguments: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            [path, *arguments],
            env={"PATH": _USUAL_PATH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeUnavailable(f"gvisor: {path} cannot be run: {error}") from None
    return done.stdout + done.stderr
