"""Sandboxes that have packages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from tests.api.access.clients import JWT_SECRET, Client, error_of, found
from tests.api.conftest import NO_CELLS, RunningServer, finish, start_command
from tests.api.interpreter.test_audit import events
from tests.packages.index import Index, running_index
from tests.runtimes import native_only
from tidebox.errors import PackageUnresolvable
from tidebox.sdk import Access, AsyncAccess

PACKAGES = {"python": ["tide"]}

pytestmark = native_only("packages need the files of a box on this machine")


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with running_index() as index:
        index.add("tide", {"tide.py": "HIGH = 7\n"})
        yield index


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, index: Index) -> Iterator[RunningServer]:
    settings = [f"{name}={value}" for name, value in index.environment.items()]
    running = start_command(
        tmp_path_factory.mktemp("packages"),
        under=["env", *settings],
        auth_jwt_secret=JWT_SECRET,
        rate_limit="off",
        pool_sandboxes="1",
        **NO_CELLS,
    )
    yield running
    finish(running)


@pytest.fixture(scope="module")
def broker(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    machine = {"name": "machine", "url": server.url, "api_key": server.key, "mode": "relay"}
    running = start_command(
        tmp_path_factory.mktemp("broker"),
        under=["env", "UV_DEFAULT_INDEX=http://127.0.0.1:9/simple", "UV_HTTP_RETRIES=0"],
        providers=json.dumps([machine]),
        rate_limit="off",
        pool_sandboxes="0",
        **NO_CELLS,
    )
    yield running
    finish(running)


def printed(server: RunningServer, token: str, code: str) -> str:
    answer = httpx.post(
        f"{server.url}/v1/exec",
        json={"command": ["python3", "-c", code]},
        headers={"Authorization": f"Bearer {token}"},
        timeout=30,
    )
    return str(answer.json()["stdout"])


def test_a_sandbox_has_its_packages_and_others_do_not(admin: Client, server: RunningServer, thread: str) -> None:
    session = found(admin.negotiate(thread_id=thread, mode="ensure", packages=PACKAGES))
    assert printed(server, session["token"], "import tide; print(tide.HIGH)") == "7\n"
    (built,) = events(server, 1, event="sandbox.packages.built", binding_id=session["binding"]["id"])
    assert built["packages"] == {"python": ["tide"], "node": []}
    assert built["owner"] == "local"
    plain = found(admin.negotiate(thread_id=thread + "-plain", mode="ensure"))
    assert printed(server, plain["token"], "import tide; print(tide.HIGH)") == ""


def test_one_that_is_there_stays_as_it_is(admin: Client, thread: str) -> None:
    first = found(admin.negotiate(thread_id=thread, mode="ensure"))
    again = found(admin.negotiate(thread_id=thread, mode="ensure", packages={"python": ["not-there"]}))
    assert again["sandbox"]["id"] == first["sandbox"]["id"]


def test_a_package_that_is_not_there_is_named(admin: Client, server: RunningServer, thread: str) -> None:
    asked = admin.negotiate(thread_id=thread, mode="ensure", packages={"python": ["not-there"]})
    assert "not-there" in error_of(asked, 422, "PACKAGE_UNRESOLVABLE")["message"]
    assert events(server, 1, event="sandbox.packages.failed", outcome="package_unresolvable")


def test_users_with_tokens_may_ask_for_none(ada: Client, thread: str) -> None:
    asked = ada.negotiate(thread_id=thread, mode="ensure", packages=PACKAGES)
    assert error_of(asked, 403, "PACKAGE_FORBIDDEN")["details"]["package"] == "tide"


class TestClients:
    PROGRAM = ("python3", "-c", "import tide; print(tide.HIGH)")

    def test_a_client_asks_for_packages(self, server: RunningServer, thread: str) -> None:
        with Access(server.url, api_key=server.key) as access:
            with access.ensure(thread, packages=["tide"]) as sandbox:
                assert sandbox.exec(self.PROGRAM).text == "7\n"
            with pytest.raises(PackageUnresolvable, match="not-there"):
                access.ensure(f"{thread}-none", packages={"python": ["not-there"]})

    def test_an_asyncio_client_asks_for_packages(self, server: RunningServer, thread: str) -> None:
        async def ask() -> str:
            async with (
                AsyncAccess(server.url, api_key=server.key) as access,
                await access.ensure(thread, packages={"python": ["tide"]}) as sandbox,
            ):
                return (await sandbox.exec(self.PROGRAM)).text

        assert asyncio.run(ask()) == "7\n"


class TestAnotherServer:
    """The server of this file gives its sandboxes to one that has no index itself."""

    def test_its_sandbox_has_the_packages(self, broker: RunningServer, thread: str) -> None:
        with Client(broker) as client:
            session = client.ensure(thread, provider_preference="machine", packages=PACKAGES)
            assert session["sandbox"]["provider"] == "machine"
            assert printed(broker, session["token"], "import tide; print(tide.HIGH)") == "7\n"

    def test_what_it_says_of_a_package_is_passed_on(self, broker: RunningServer, thread: str) -> None:
        with Client(broker) as client:
            wanted = {"python": ["not-there"]}
            asked = client.negotiate(thread_id=thread, mode="ensure", provider_preference="machine", packages=wanted)
        error = error_of(asked, 422, "PACKAGE_UNRESOLVABLE")
        assert "not-there" in error["message"]
        assert error["details"] == {"field": "packages", "provider": "machine"}
