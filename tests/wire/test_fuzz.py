"""A second of the fuzz target, so that it cannot rot."""

from __future__ import annotations

import time

from fuzz.fuzz_wire import run_random


def test_a_second_of_random_damage() -> None:
    assert run_random(1, seed=time.time_ns()) > 100
