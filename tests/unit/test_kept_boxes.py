"""Boxes between two runs of a session: for that session and no other, for a while, and not many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.virtual_time import VirtualTimeLoop
from tidebox.runtime.kept import IDLE_SECONDS, MOST, KeptBoxes
from tidebox.runtime.pool import CellKey

KEY = CellKey(None, "image", True, 1, 1, 1, 1, 1)


@dataclass(eq=False)
class Waiting:
    """As much of a box as is looked at while it waits."""

    gone: bool = False


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    loop = VirtualTimeLoop()
    yield loop
    loop.close()


@pytest.fixture
def closed() -> list[Any]:
    return []


@pytest.fixture
def kept(closed: list[Any]) -> KeptBoxes:
    return KeptBoxes(closed.append)


def put(loop: VirtualTimeLoop, kept: KeptBoxes, name: str) -> Any:
    box = Waiting()
    loop.do(kept.put, name, KEY, box)
    return box


def test_one_is_given_once_and_to_its_own_session(loop: VirtualTimeLoop, kept: KeptBoxes, closed: list[Any]) -> None:
    box = put(loop, kept, "a")
    assert kept.take("b", KEY) is None
    assert kept.take("a", KEY) is box
    assert kept.take("a", KEY) is None
    loop.pass_time(2 * IDLE_SECONDS)
    assert closed == []


def test_one_that_is_dead_or_of_another_kind_is_closed(
    loop: VirtualTimeLoop, kept: KeptBoxes, closed: list[Any]
) -> None:
    dead, other = put(loop, kept, "a"), put(loop, kept, "b")
    dead.gone = True
    assert kept.take("a", KEY) is None
    assert kept.take("b", KEY._replace(workspace=2)) is None
    assert closed == [dead, other]


def test_none_waits_for_ever_and_no_more_than_a_few_do(
    loop: VirtualTimeLoop, kept: KeptBoxes, closed: list[Any]
) -> None:
    boxes = [put(loop, kept, str(number)) for number in range(MOST + 1)]
    assert closed == boxes[:1]
    replaced = put(loop, kept, str(MOST))
    assert closed == [boxes[0], boxes[-1]]
    loop.do(kept.drop, "1")
    assert closed[2:] == [boxes[1]]
    loop.pass_time(IDLE_SECONDS)
    assert set(closed) == {*boxes, replaced}
    assert len(kept) == 0
