"""A second of the fuzz target, so that it cannot rot."""

from __future__ import annotations

from fuzz.fuzz_wire import check, mutate
from fuzz.harness import run_random


def test_a_second_of_random_damage() -> None:
    assert run_random(check, mutate, seconds=1, seed=1) > 100
