"""Clients for tests, closed afterwards with nothing left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.api.conftest import running_server, start_server
from tests.sdk.clients import AnyClient, BlockingClient, Loop
from tidebox.sdk import Client

__all__ = ["make_client", "running_server", "start_server"]

MakeClient = Callable[..., AnyClient]


@pytest.fixture(params=["sync", "async"])
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """Makes a client of either kind."""
    before = set(threading.enumerate())
    with ExitStack() as stack:
        loop: Loop | None = None
        if request.param == "async":
            loop = Loop()
            stack.callback(loop.close)

        def make(url: str, **options: Any) -> AnyClient:
            options.setdefault("api_key", "a-key")
            client = Client(url, **options) if loop is None else BlockingClient(loop, url, **options)
            stack.callback(client.close)
            return client

        yield make
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
