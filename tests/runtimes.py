"""Which runtime the suites are run on: ``native``, or the one that an environment variable names."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tidebox.runtime.docker.containers import AGENT_BYTES
from tidebox.runtime.gvisor.bundle import OWN_BYTES

VARIABLE = "TIDEBOX_TEST_RUNTIME"
RUNTIME = os.environ.get(VARIABLE, "native")


# The kernel charges some of its own memory without asking.
_ROUNDING = 1 << 20
AGENT_MEMORY = {"native": 0, "docker": AGENT_BYTES, "gvisor": OWN_BYTES + _ROUNDING}[RUNTIME]
"""What a box may use beyond its limit, because its agent, or its kernel too, is in it."""
NO_ENGINE = {"docker_host": "unix:///nonexistent/docker.sock"}
NO_RUNSC = {"gvisor_runsc": "/nonexistent/runsc"}


def native_only(reason: str) -> Any:
    """Mark a test of what other runtimes do not have, or have in another way; docs/runtimes.md tells of each."""
    return pytest.mark.skipif(RUNTIME != "native", reason=f"native only: {reason}")


def runtime_settings(name: str = RUNTIME) -> dict[str, str]:
    """The settings by which engines and servers of tests use a runtime."""
    # Whatever engine or program a machine may have is not for tests that do not ask for it.
    if name == "native":
        return {**NO_ENGINE, **NO_RUNSC}
    if name == "gvisor":
        from tests.gvisor.program import usable_runsc

        return {"default_runtime": name, "gvisor_runsc": usable_runsc(), **NO_ENGINE}
    from tests.docker.daemon import missing
    from tests.docker.keeper import shared_host

    if (reason := missing()) is not None:
        pytest.skip(reason)
    return {"default_runtime": name, "docker_host": shared_host(), **NO_RUNSC}
