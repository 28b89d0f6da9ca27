"""Docker daemons for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docker.daemon import Daemon, missing, running
from tests.docker.keeper import shared_host


@pytest.fixture(scope="session")
def docker_host() -> str:
    """The address of a daemon that all tests share; it has the images for tests."""
    _need_docker()
    return shared_host()


@pytest.fixture
def docker_daemon() -> Iterator[Daemon]:
    """A daemon for one test, which may end it; it has the images for tests."""
    _need_docker()
    with running() as daemon:
        yield daemon


def _need_docker() -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
