"""What every test shares."""

from __future__ import annotations

import contextlib
import logging
import os

import pytest
from hypothesis import HealthCheck, settings

from tests.boxes import box_arun, box_run, box_runner
from tests.docker.fixtures import docker_daemon, docker_host
from tests.docker.keeper import meeting_place
from tests.gvisor.program import shared_finding
from tests.patience import patient

__all__ = ["box_arun", "box_run", "box_runner", "docker_daemon", "docker_host"]

# Its threads log tracebacks, and pytest would format them there. That parses, which CPython 3.11 cannot do in two
# threads at once: "AST constructor recursion depth mismatch".
logging.getLogger("websockets").propagate = False

# A busy machine must not fail a property: only a wrong answer may. The same examples every time: what changed since the
# last run is the code, and who looks for new ones has fuzz/.
settings.register_profile(
    "tidebox", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tidebox")


# Most tests wait most of the time, for servers, programs, limits: so many more than there are processors.
WAITING_WORKERS = 2


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Say how many processes run tests at once with ``-n auto``."""
    return WAITING_WORKERS + len(os.sched_getaffinity(0))


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes of this run share a Docker daemon, and what is known of runsc."""
    sharing = contextlib.ExitStack()
    sharing.enter_context(meeting_place())
    sharing.enter_context(shared_finding())
    config.add_cleanup(sharing.close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test as much more time as the machine is slower, and begin with those that may take longest.

    One of these at the end would keep its worker busy when the others have nothing left to do.
    """

    def seconds(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return float(mark.args[0] if mark else config.getini("timeout"))

    items.sort(key=seconds, reverse=True)
    for item in items:
        item.add_marker(pytest.mark.timeout(patient(seconds(item))), append=False)
