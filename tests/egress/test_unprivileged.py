"""The same tests as a user who is not root, in a network that root has made for them."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from tests.egress.world import READY
from tests.escape.unprivileged import as_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs as an ordinary user")
ALL = "TIDEBOX_TEST_EGRESS"
_IN_A_NETWORK = """
import os, sys
from tests.egress.world import prepare_network
prepare_network()
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.timeout(900)
def test_the_suite_holds_without_root() -> None:
    """Every test passes but those of what such a user cannot have, which say so."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tidebox-egress-") as name:
        home = Path(name)
        options = ["-q", "-rfEs", "--tb=short", "-p", "no:cacheprovider", f"--basetemp={home}/pytest", "-n", "0"]
        # What boxes and the egress process do; servers and tools above them are the same for everybody.
        here = Path(__file__).parent
        names = ("test_hostile.py", "test_reach.py", "test_limits.py", "test_secrets.py")
        tests = [str(here / name) for name in names] if ALL not in os.environ else [f"--ignore={__file__}", str(here)]
        done = as_user(
            [sys.executable, "-m", "pytest", *options, *tests],
            home,
            allow_weak_isolation=True,
            timeout=860,
            before=["unshare", "--net", sys.executable, "-c", _IN_A_NETWORK],
            environment={READY: "1"},
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        passed = re.search(r"(\d+) passed", done.stdout)
        assert passed is not None
        assert int(passed[1]) >= 60
        reasons = re.findall(r"SKIPPED \[\d+\] \S+ (.*)", done.stdout)
        assert [reason for reason in reasons if "without root" not in reason and "make test-egress" not in reason] == []
