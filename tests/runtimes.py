"""Which runtime the suites are run on: ``native``, or the one that an environment variable names."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tidebox.runtime.docker.containers import AGENT_BYTES

VARIABLE = "TIDEBOX_TEST_RUNTIME"
RUNTIME = os.environ.get(VARIABLE, "native")


AGENT_MEMORY = 0 if RUNTIME == "native" else AGENT_BYTES
"""What a box may use beyond its limit, because its agent is in it."""


def native_only(reason: str) -> Any:
    """Mark a test of what other runtimes do not have, or have in another way; docs/runtimes.md tells of each."""
    return pytest.mark.skipif(RUNTIME != "native", reason=f"native only: {reason}")


def runtime_settings(name: str = RUNTIME) -> dict[str, str]:
    """The settings by which engines and servers of tests use a runtime."""
    if name == "native":
        # Whatever engine a machine may have is not the tests' to use.
        return {"docker_host": "unix:///nonexistent/docker.sock"}
    from tests.docker.daemon import missing
    from tests.docker.keeper import shared_host

    if (reason := missing()) is not None:
        pytest.skip(reason)
    return {"default_runtime": name, "docker_host": shared_host()}
