"""What every test shares."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.boxes import box_arun, box_run, box_runner

__all__ = ["box_arun", "box_run", "box_runner"]

# A busy machine must not fail a property: only a wrong answer may.
settings.register_profile("tidebox", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("tidebox")
