"""What every test shares."""

from __future__ import annotations

import logging

from hypothesis import HealthCheck, settings

from tests.boxes import box_arun, box_run, box_runner

__all__ = ["box_arun", "box_run", "box_runner"]

# Its threads log tracebacks, and pytest would format them there. That parses, which CPython 3.11 cannot do in two
# threads at once: "AST constructor recursion depth mismatch".
logging.getLogger("websockets").propagate = False

# A busy machine must not fail a property: only a wrong answer may. The same examples every time: what changed since the
# last run is the code, and who looks for new ones has fuzz/.
settings.register_profile(
    "tidebox", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tidebox")
