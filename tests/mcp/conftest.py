"""Servers for the tests of the protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.conftest import RunningServer, finish, start, start_server
from tests.api.interpreter.service import JWT_SECRET

__all__ = ["mcp_server", "start_server"]


@pytest.fixture(scope="session")
def mcp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that knows several users, shared by many tests."""
    server = start(
        tmp_path_factory.mktemp("mcp"), auth_jwt_secret=JWT_SECRET, rate_limit="off", cancel_grace_seconds="1"
    )
    yield server
    finish(server)
