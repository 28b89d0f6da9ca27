"""Runs a command as a user of this machine who is nobody special."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.patience import PATIENCE, VARIABLE, patient

ROOT = Path(__file__).resolve().parents[2]
# One of its own for each process: the kernel counts for a user what all his processes have, and refuses by that.
USER = 30_000 + os.getpid() % 30_000


def closed_ancestor(path: Path) -> Path | None:
    """The topmost directory above ``path`` that others may not enter."""
    for parent in reversed(path.parents):
        if not parent.stat().st_mode & 0o001:
            return parent
    return None


def _script(stage: Path, needed: list[Path]) -> str:
    """Shell lines that drop every power and run the arguments.

    The interpreter or this checkout may lie in a directory only root may enter. In a mount namespace of its own the
    command finds such a directory replaced by an open one that holds nothing but what it needs.
    """
    closed = {path: ancestor for path in needed if (ancestor := closed_ancestor(path)) is not None}
    lines = ["set -e"]
    for number, path in enumerate(closed):
        lines += [f"mkdir '{stage}/{number}'", f"mount --rbind '{path}' '{stage}/{number}'"]
    lines += [f"mount -t tmpfs -o mode=0755 tmpfs '{ancestor}'" for ancestor in sorted(set(closed.values()))]
    for number, path in enumerate(closed):
        lines += [f"mkdir -p '{path}'", f"mount --rbind '{stage}/{number}' '{path}'"]
    lines.append(f'exec setpriv --reuid {USER} --regid {USER} --clear-groups --bounding-set -all -- "$@"')
    return "\n".join(lines)


def as_user(
    command: list[str],
    home: Path,
    *,
    allow_weak_isolation: bool,
    timeout: float,
    before: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in this checkout without root, groups or capabilities, at home in the empty ``home``.

    ``before`` is a command of root's that goes on as the rest.
    """
    stage = home / "stage"
    stage.mkdir()
    os.chown(home, USER, USER)
    needed = [Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT]
    environment = {
        **environment,
        "PATH": os.defpath,
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        VARIABLE: str(PATIENCE),
        "SANDBOX_ALLOW_WEAK_ISOLATION": str(int(allow_weak_isolation)),
    }
    return subprocess.run(
        [*before, "unshare", "--mount", "--propagation", "private", "sh", "-c", _script(stage, needed), "sh", *command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(timeout),
        check=False,
    )
