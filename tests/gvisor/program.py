"""The runsc of tests: what this machine has, if it can boot a sandbox here."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.errors import RuntimeUnavailable
from tidebox.model.runtimes import RuntimeReport
from tidebox.runtime.gvisor import runsc

_VARIABLE = "TIDEBOX_TEST_RUNSC"
"""Where the processes of one test run keep what the first of them found."""


@contextlib.contextmanager
def shared_finding() -> Iterator[None]:
    """Let this process and its children find out once whether there is one that works."""
    if _VARIABLE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="tidebox-runsc-") as place:
        os.environ[_VARIABLE] = place
        try:
            yield
        finally:
            del os.environ[_VARIABLE]


@functools.cache
def problem() -> str | None:
    """Why sandboxes cannot be made here; None where they can."""
    place = Path(os.environ[_VARIABLE])
    with (place / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = place / "found"
        if not found.exists():
            found.write_text(json.dumps(_find_problem()))
        reason: str | None = json.loads(found.read_text())
    return reason


def usable_runsc() -> str:
    """Its path; a test that needs it is skipped where it boots nothing."""
    if (reason := problem()) is not None:
        pytest.skip(reason)
    return runsc.find(None, os.environ)


def _find_problem() -> str | None:
    try:
        path = runsc.find(None, os.environ)
    except RuntimeUnavailable as error:
        return error.message
    # The caller may be on a loop of its own.
    with ThreadPoolExecutor(1) as apart:
        report = apart.submit(lambda: asyncio.run(_probe(path))).result()
    return None if report.available else report.reason


async def _probe(path: str) -> RuntimeReport:
    with tempfile.TemporaryDirectory(prefix="tidebox-gvisor-") as directory:
        settings = load_settings(data_dir=Path(directory), default_runtime="gvisor", gvisor_runsc=path)
        engine = Engine(settings, pool=False)
        try:
            return await engine.runtime.probe()
        finally:
            await engine.close()
