"""Two minutes of every grammar that may be tried on any machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.attack.campaign import Plan, attack
from tests.attack.grammars import GRAMMARS

# Few enough for kernels that cannot free many filters at once: each program has one, and so has each sandbox and cell.
FILTERS = 500
PROGRAMS = 450
SECONDS = 120.0


@pytest.mark.timeout(480)
def test_nothing_grows_and_nobody_waits(tmp_path: Path) -> None:
    names = tuple(name for name, grammar in GRAMMARS.items() if not grammar.kernel_resources)
    # Other tests have browsers, servers and boxes meanwhile.
    plan = Plan(seed=20, seconds=SECONDS, grammars=names, most_programs=PROGRAMS, alone=False)
    said: list[str] = []
    report = asyncio.run(attack(plan, tmp_path, said.append))
    assert not report.failed, "\n".join(said)
    assert set(report.steps) == set(names)
    assert report.programs < FILTERS
