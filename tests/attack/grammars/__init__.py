"""What is tried: each grammar makes steps from a source of chance, and a step is the same whenever its number is."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.attack.grammars import archives, bodies, calls, requests, resources, sockets
from tests.attack.target import Target


@dataclass(frozen=True, slots=True)
class Grammar:
    """One kind of attack. ``boxes`` is how many programs a step starts at most."""

    name: str
    step: Callable[[random.Random, Target], Awaitable[list[str]]]
    """Carry out one step; what the server or the box did wrong in answering."""
    boxes: int = 0
    kernel_resources: bool = False


GRAMMARS: dict[str, Grammar] = {
    grammar.name: grammar
    for grammar in (
        Grammar("sockets", sockets.step, boxes=sockets.BOXES),
        Grammar("requests", requests.step),
        Grammar("bodies", bodies.step, boxes=bodies.BOXES),
        Grammar("calls", calls.step, boxes=calls.BOXES),
        Grammar("archives", archives.step),
        Grammar("resources", resources.step, boxes=resources.BOXES, kernel_resources=True),
    )
}


def chance_of(seed: int, grammar: str, number: int) -> random.Random:
    """The source of chance of one step, which needs no step before it."""
    return random.Random(f"{seed}/{grammar}/{number}")
