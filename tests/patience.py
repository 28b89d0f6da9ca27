"""How long tests wait on a machine that is slower than others, such as one whose processor is emulated."""

from __future__ import annotations

import os

VARIABLE = "TIDEBOX_TEST_PATIENCE"
PATIENCE = float(os.environ.get(VARIABLE, "1"))
"""How many times slower than a real processor this machine is."""


def patient(seconds: float) -> float:
    """A time limit for what takes that long at most on a real processor."""
    return seconds * PATIENCE
