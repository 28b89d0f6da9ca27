"""The same suite as a user who is not root, and what such a user is refused."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests import boxes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs as an ordinary user")


@pytest.mark.timeout(900)
def test_the_suite_holds_without_root() -> None:
    """Every test passes but those of a guarantee that is missing: there a box was refused, and the test says so."""
    options = ["-q", "-rs", "-p", "no:cacheprovider", f"--ignore={__file__}"]
    command = [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)]
    done = boxes.as_user(command, allow_weak_isolation=True, timeout=850)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 300
    accepted = re.compile("is refused for it|without root|not writable|not root|no network|could also be")
    reasons = re.findall(r"SKIPPED \[\d+\] \S+ (.*)", done.stdout)
    assert [reason for reason in reasons if not accepted.search(reason)] == []


def test_a_missing_guarantee_is_refused_without_leave() -> None:
    """A machine that gives an ordinary user everything runs the program; others refuse and name what is missing."""
    program = """
from tests import boxes
print(sorted(boxes.missing_guarantees()))
print(boxes.run_strictly("print(1)").outcome.value)
"""
    done = boxes.as_user([sys.executable, "-c", program], allow_weak_isolation=False, timeout=60)
    missing = re.findall(r"'(\w+)'", done.stdout.splitlines()[0])
    if missing:
        assert "GuaranteeMissing" in done.stderr
        assert all(name in done.stderr for name in missing)
    else:
        assert done.stdout.split()[-1] == "exited"
