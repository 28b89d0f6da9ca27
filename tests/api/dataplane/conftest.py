"""A dataplane, a sandbox in it, and tokens."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.api.dataplane.plane import Plane, running_plane
from tests.boxes import BoxRunner
from tidebox.broker.sandboxes.sandbox import LocalSandbox


@pytest.fixture(scope="module")
def plane(box_runner: BoxRunner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A dataplane over real boxes."""
    with running_plane(box_runner, tmp_path_factory.mktemp("plane")) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(plane: Plane) -> LocalSandbox:
    """A sandbox that the tests of a module share."""
    return plane.sandbox()


@pytest.fixture(scope="module")
def token(plane: Plane, sandbox: LocalSandbox) -> str:
    """For everything in that sandbox."""
    return plane.token(sandbox)


@pytest.fixture
def http(plane: Plane, token: str) -> Iterator[httpx2.Client]:
    """A client with that token."""
    with plane.client(token) as client:
        yield client
