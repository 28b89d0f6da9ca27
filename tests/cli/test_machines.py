"""Machines on which not everything can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.boxes import as_user
from tests.cli.command import TIDEBOX, error_line

MAIN = [sys.executable, "-c", "import sys; from tidebox.cli.main import main; sys.exit(main())"]


def without_namespaces(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``tidebox`` where no further user namespace may be made."""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", TIDEBOX, *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=50, check=False)


needs_unshare = pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_unshare
def test_no_namespaces_is_one_line() -> None:
    assert "user.max_user_namespaces" in error_line(without_namespaces("run", "-c", "print(1)"))


@needs_unshare
def test_doctor_says_what_helps_without_namespaces() -> None:
    done = without_namespaces("doctor")
    assert done.returncode == 1
    assert b"what helps: no user namespaces are allowed: sudo sysctl" in done.stdout
    assert b"enforced" not in done.stdout


@needs_root
def test_an_ordinary_user_without_a_cgroup_is_refused_or_warned() -> None:
    doctor = as_user([*MAIN, "doctor"], allow_weak_isolation=False, timeout=150)
    refused = as_user([*MAIN, "run", "-c", "print(1)"], allow_weak_isolation=False, timeout=150)
    accepted = as_user([*MAIN, "run", "-c", "print(1)"], allow_weak_isolation=True, timeout=150)
    assert accepted.stdout == "1\n"
    if doctor.returncode == 0:
        assert (refused.stdout, refused.stderr, accepted.stderr) == ("1\n", "", "")
        return
    assert "what helps: " in doctor.stdout
    assert refused.returncode == 2
    assert refused.stderr.startswith("tidebox: memory and process limits cannot be enforced here")
    assert accepted.stderr == "tidebox: weak isolation: not enforced here: memory, pids, cpu\n"
