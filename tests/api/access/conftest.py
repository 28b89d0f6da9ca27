"""One server for most tests of access, with users of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.access.clients import JWT_SECRET, Client
from tests.api.conftest import NO_CELLS, RunningServer, finish, start
from tidebox.model.ids import new_id


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that accepts tokens of users."""
    server = start(
        tmp_path_factory.mktemp("access"),
        rate_limit="off",
        auth_jwt_secret=JWT_SECRET,
        capabilities_agent="fs_read,exec",
        capabilities_roles="viewer=fs_read",
        **NO_CELLS,
    )
    yield server
    finish(server)


@pytest.fixture
def ada(server: RunningServer) -> Iterator[Client]:
    with Client(server, "ada") as client:
        yield client


@pytest.fixture
def bob(server: RunningServer) -> Iterator[Client]:
    with Client(server, "bob") as client:
        yield client


@pytest.fixture
def admin(server: RunningServer) -> Iterator[Client]:
    with Client(server) as client:
        yield client


@pytest.fixture
def thread() -> str:
    return new_id("thr")
