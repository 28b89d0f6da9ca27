"""The frozen snapshot of every generation."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import pytest

from tidebox.wire.generations import GENERATION
from tidebox.wire.messages import MESSAGE_TYPES
from tidebox.wire.schema import FIRST_SNAPSHOT, render, snapshot, snapshot_path

SNAPSHOTS = range(FIRST_SNAPSHOT, max(message_type.GENERATION for message_type in MESSAGE_TYPES) + 1)
COUNTS = {3: 19, 4: 26, 5: 27, 6: 31, 7: 32, 8: 36, 9: 44, 10: 46}


@pytest.mark.parametrize("generation", SNAPSHOTS)
def test_the_code_matches_the_snapshot(generation: int) -> None:
    """An intended change of the current generation: python -m tidebox.wire.schema --bless."""
    assert snapshot_path(generation).read_text() == render(generation)


def test_the_number_of_types_per_generation() -> None:
    assert {generation: len(snapshot(generation)["message_types"]) for generation in SNAPSHOTS} == COUNTS


@pytest.mark.parametrize(("older", "newer"), list(pairwise(SNAPSHOTS)))
def test_generations_only_add(older: int, newer: int) -> None:
    old, new = (json.loads(snapshot_path(generation).read_text()) for generation in (older, newer))
    added = [kind for kind in new["message_types"] if kind not in old["message_types"]]
    assert all(kind in new["message_types"] for kind in old["message_types"])
    assert [kind["introduced_in"] for kind in added] == [newer] * len(added)
    assert old["frame"].items() <= new["frame"].items()
    assert old.get("bulk", {}).items() <= new.get("bulk", {}).items()


def test_the_current_generation_has_a_snapshot() -> None:
    assert GENERATION in SNAPSHOTS


def test_the_command_prints_the_current_surface() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "tidebox.wire.schema"], capture_output=True, text=True, check=True
    ).stdout
    assert printed == render(GENERATION)
