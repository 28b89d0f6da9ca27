"""Servers and clients for the tests of the interpreter service."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.api.conftest import RunningServer, finish, start
from tests.api.interpreter.service import JWT_SECRET, Service
from tests.api.interpreter.streams import Streams


@pytest.fixture(scope="session")
def interpreter_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that knows several users, shared by many tests."""
    server = start(
        tmp_path_factory.mktemp("interpreter"),
        auth_jwt_secret=JWT_SECRET,
        rate_limit="off",
        cancel_grace_seconds="1",
        reaper_interval_sec="0.2",
        # Many tests make sessions, and let their time end them.
        max_sessions_per_user="10000",
        # Requests are made up, and so would be the packages that they ask for.
        packages="off",
    )
    yield server
    finish(server)


@pytest.fixture(scope="session")
def service(interpreter_server: RunningServer) -> Iterator[Service]:
    """The service as the holder of the key sees it, who is an admin."""
    with Service.of(interpreter_server) as client:
        yield client


@pytest.fixture(scope="session")
def ada(interpreter_server: RunningServer) -> Iterator[Service]:
    """The service as a user sees it."""
    with Service.of(interpreter_server, "ada") as client:
        yield client


@pytest.fixture(scope="session")
def bob(interpreter_server: RunningServer) -> Iterator[Service]:
    """The service as another user sees it."""
    with Service.of(interpreter_server, "bob") as client:
        yield client


@pytest.fixture
def streams_of() -> Iterator[Callable[..., Streams]]:
    """Readers of a server's logs: its key's holder, or the user of a token with these roles."""
    made: list[Streams] = []

    def make(server: RunningServer, user: str | None = None, *roles: str) -> Streams:
        made.append(Streams.of(server, user, *roles))
        return made[-1]

    yield make
    for each in made:
        each.http.close()


@pytest.fixture
def streams(running_server: RunningServer, streams_of: Callable[..., Streams]) -> Streams:
    """The holder of the key of a server with the default settings."""
    return streams_of(running_server)
