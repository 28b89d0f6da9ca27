"""Agents for the tests: under the interpreter of the tests, and under the oldest one on PATH."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.agent.peer import Peer, interpreters, running


def _two() -> list[str]:
    found = interpreters()
    return list(dict.fromkeys((next(iter(found)), "{}.{}".format(*sys.version_info[:2]))))


@pytest.fixture(params=_two(), ids=lambda version: f"py{version}")
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter that runs the agent."""
    return interpreters()[request.param]


@pytest.fixture
def agent(python: str) -> Iterator[Peer]:
    """An agent of the newest generation."""
    with running(python) as peer:
        yield peer
