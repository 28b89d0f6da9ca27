"""Containers of an engine that makes them by runsc."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker import daemon
from tests.docker.images import PYTHON_IMAGE
from tests.patience import patient
from tests.runtimes import NO_RUNSC, RUNTIME
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.errors import GuaranteeMissing
from tidebox.model.result import Outcome

pytestmark = pytest.mark.skipif(RUNTIME != "gvisor", reason="runsc below Docker is part of `make test-runtimes`")

# The version of Linux that gVisor's kernel takes the name of; the machine's own is a newer one.
LOOK = """
import os, sys
open("made", "w").write("kept")
print(os.uname().release, os.getuid() > 0)
print(sys.stdin.read())
"""


@pytest.fixture(scope="module")
def engine_host(runsc_path: str) -> Iterator[str]:
    """The address of a daemon that has runsc among its runtimes."""
    if (reason := daemon.missing()) is not None:
        pytest.skip(reason)
    with daemon.running([PYTHON_IMAGE], runtimes={"runsc": [runsc_path, "--network=none"]}) as own:
        yield own.host


def docker_engine(directory: Path, host: str, *, weak: bool, runtime: str = "runsc") -> Engine:
    settings = load_settings(
        data_dir=directory,
        default_runtime="docker",
        docker_host=host,
        docker_runtime=runtime,
        allow_weak_isolation=weak,
        **NO_RUNSC,
    )
    return Engine(settings, pool=False)


async def test_programs_of_its_containers_see_the_kernel_of_gvisor(tmp_path: Path, engine_host: str) -> None:
    engine = docker_engine(tmp_path, engine_host, weak=True)
    try:
        result = await run_on(engine, LOOK, stdin=b"typed", artifacts=["made"], timeout=patient(60))
        assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0), result
        assert result.stdout == b"4.4.0 True\ntyped\n"
        assert result.artifacts == {"made": b"kept"}
        late = await run_on(engine, "while True: pass", timeout=1.0)
        assert late.outcome is Outcome.TIMEOUT
        failed = await run_on(engine, command=["sh", "-c", "exit 3"], timeout=patient(60))
        assert failed.exit_code == 3
    finally:
        await engine.close()


async def test_what_cannot_be_seen_there_is_refused(tmp_path: Path, engine_host: str) -> None:
    engine = docker_engine(tmp_path, engine_host, weak=False)
    try:
        report = await engine.probe()
        assert report.available
        with pytest.raises(GuaranteeMissing) as refusal:
            await run_on(engine, "pass")
        assert refusal.value.details["guarantees"] == [finding.guarantee.value for finding in report.missing]
        assert engine.runtime.boundary == "container"
    finally:
        await engine.close()
