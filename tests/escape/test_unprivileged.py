"""The same suite as a user who is not root, and what such a user is refused."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.escape.unprivileged import as_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs as an ordinary user")


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty directory that everybody may reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tidebox-user-") as name:
        yield Path(name)


@pytest.mark.timeout(900)
def test_the_suite_holds_without_root(home: Path) -> None:
    """Every test passes but those of a guarantee that is missing: there a box was refused, and the test says so."""
    options = [
        "-q",
        "-rfEs",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        f"--basetemp={home}/pytest",
        f"--ignore={__file__}",
    ]
    command = [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)]
    done = as_user(command, home, allow_weak_isolation=True, timeout=850)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 500
    accepted = re.compile(
        "a box is refused for it|without root|not writable|no network|could also be|for root alone|only root (may|can)"
    )
    reasons = re.findall(r"SKIPPED \[\d+\] \S+ (.*)", done.stdout)
    assert [reason for reason in reasons if not accepted.search(reason)] == []


REFUSED = """
import asyncio, tempfile
from pathlib import Path
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.errors import GuaranteeMissing

async def main():
    engine = Engine(load_settings(data_dir=Path(tempfile.mkdtemp(dir=Path.home()))), pool=False)
    report = await engine.runtime.probe()
    print(*sorted(finding.guarantee.value for finding in report.missing))
    try:
        print("ran", (await run_on(engine, "print(1)")).outcome.value)
    except GuaranteeMissing as error:
        print("refused", *sorted(error.details["guarantees"]))
    await engine.close()

asyncio.run(main())
"""


def test_a_missing_guarantee_is_refused_without_leave(home: Path) -> None:
    """A machine that gives an ordinary user everything runs the program; others refuse and name what is missing."""
    done = as_user([sys.executable, "-c", REFUSED], home, allow_weak_isolation=False, timeout=60)
    assert done.returncode == 0, done.stderr
    missing, answer = done.stdout.split("\n")[:2]
    assert answer == (f"refused {missing}" if missing else "ran exited")
