"""Real boxes for hostile programs, and what a machine without root may have to refuse."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.boxes import BoxRunner, assert_nothing_left, box_run, box_runner, start_runner, stop_runner
from tests.escape import gvisor
from tests.patience import patient
from tests.runtimes import RUNTIME
from tidebox.embedded import run_on
from tidebox.errors import GuaranteeMissing
from tidebox.model.result import Result

__all__ = ["box_run", "box_runner"]

pytest.register_assert_rewrite("tests.escape.probes")

# In this process' environment and memory before the first box exists: no program in a box may ever find it.
os.environ["TIDEBOX_ESCAPE_CANARY"] = "canary-" + os.urandom(12).hex()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what does not apply to the runtime that the suite is run on."""
    if RUNTIME == "gvisor":
        for item in items:
            here = item.path.parent == Path(__file__).parent
            if here and (reason := gvisor.reason_for(item.name)) is not None:
                item.add_marker(pytest.mark.skip(reason=f"not on gvisor: {reason}"))


@pytest.fixture
def box_arun(box_runner: BoxRunner) -> Iterator[Callable[..., Any]]:
    """Run code in a fresh box without blocking, for tests with several at once."""

    async def arun(code: str | None = None, language: str = "python", **options: Any) -> Result:
        options.setdefault("timeout", patient(20.0))
        result: Result = await asyncio.wrap_future(
            box_runner.submit(run_on(box_runner.engine, code, language, **options))
        )
        return result

    yield arun
    assert_nothing_left(box_runner)


@pytest.fixture(scope="session")
def missing_guarantees(box_runner: BoxRunner) -> frozenset[str]:
    """What this user cannot be given on this machine."""
    report = box_runner.submit(box_runner.engine.runtime.probe()).result(timeout=patient(60))
    return frozenset(finding.guarantee.value for finding in report.missing)


@pytest.fixture
def needs(missing_guarantees: frozenset[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], None]:
    """For a test of a guarantee: where this machine cannot give it, boxes must be refused by name instead."""

    def check(guarantee: str) -> None:
        if guarantee not in missing_guarantees:
            return
        strict = start_runner(tmp_path_factory.mktemp("strict"), pool_python=0, pool_node=0, allow_weak_isolation=False)
        try:
            with pytest.raises(GuaranteeMissing) as refusal:
                strict("pass")
        finally:
            stop_runner(strict)
        assert guarantee in refusal.value.details["guarantees"]
        pytest.skip(f"this user cannot be given {guarantee!r} on this machine: a box is refused for it")

    return check
