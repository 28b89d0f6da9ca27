"""Who may do what: every route that the server describes, for nobody, its owner, another user and an admin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import HELLO, PREFIX, Service

RUN = {"spec_version": "1.0", "base_image": "host", "command": HELLO}


class Owned(NamedTuple):
    """What belongs to ada."""

    run: str
    session: str


class Expected(NamedTuple):
    """What each gets; nobody always gets 401 unless it says otherwise."""

    owner: int
    other: int
    admin: int
    nobody: int = 401


OWN = Expected(200, 404, 200)
"""Something of ada's: for others there is no such thing."""
ANYBODY = Expected(200, 200, 200)
"""About the server, or about what the caller themself has."""
ADMIN = Expected(403, 403, 200)

MATRIX: dict[tuple[str, str], Expected] = {
    ("GET", "/runtimes"): ANYBODY,
    ("POST", "/sessions"): ANYBODY,
    ("GET", "/sessions"): ANYBODY,
    ("GET", "/sessions/{session_id}"): OWN,
    ("DELETE", "/sessions/{session_id}"): OWN,
    ("POST", "/sessions/{session_id}/files"): OWN,
    ("GET", "/sessions/{session_id}/files"): OWN,
    ("GET", "/sessions/{session_id}/files/{path}"): OWN,
    ("POST", "/runs"): ANYBODY,
    ("GET", "/runs"): ANYBODY,
    ("GET", "/runs/{run_id}"): OWN,
    ("POST", "/runs/{run_id}/cancel"): OWN,
    ("GET", "/runs/{run_id}/logs"): OWN,
    ("GET", "/runs/{run_id}/artifacts"): OWN,
    ("DELETE", "/runs/{run_id}/artifacts"): OWN,
    ("GET", "/runs/{run_id}/artifacts.zip"): OWN,
    ("GET", "/runs/{run_id}/artifacts/{path}"): OWN,
    ("GET", "/admin/runs"): ADMIN,
    ("GET", "/admin/runs/{run_id}"): ADMIN,
    ("GET", "/admin/idempotency"): ADMIN,
    ("GET", "/admin/usage"): ADMIN,
    ("GET", "/admin/usage/summary"): ADMIN,
    ("GET", "/admin/metrics"): ADMIN,
    ("GET", "/admin/audit"): ADMIN,
    ("GET", "/admin/series"): ADMIN,
    ("GET", "/me"): ANYBODY,
    ("GET", "/health"): ANYBODY,
    ("GET", "/health/public"): Expected(200, 200, 200, nobody=200),
}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/sessions"): {"json": {"spec_version": "1.0"}},
    ("POST", "/runs"): {"json": RUN},
    ("POST", "/sessions/{session_id}/files"): {"files": {"files": ("a.txt", b"new")}},
}


@pytest.fixture(scope="module")
def root(interpreter_server: RunningServer) -> Iterator[Service]:
    with Service.of(interpreter_server, "root", "sandbox_admin") as client:
        yield client


@pytest.fixture
def owned(ada: Service) -> Owned:
    session = ada.session()
    ada.post(f"/sessions/{session}/files", files={"files": ("a.txt", b"hello")}).raise_for_status()
    run = ada.run(["sh", "-c", "echo x > a.txt"], session_id=session, capture_patterns=["*.txt"])
    return Owned(run["id"], session)


def test_every_route_is_in_the_matrix(service: Service) -> None:
    document = httpx.get(service.server.url + "/openapi.json", headers=service.server.headers, timeout=60).json()
    described = {
        (method.upper(), path.removeprefix(PREFIX))
        for path, operations in document["paths"].items()
        if path.startswith(PREFIX)
        for method in operations
    }
    assert described == MATRIX.keys()


def ask(client: httpx.Client, route: tuple[str, str], owned: Owned) -> int:
    method, path = route
    path = path.format(run_id=owned.run, session_id=owned.session, path="a.txt")
    return client.request(method, path, **BODIES.get(route, {})).status_code


@pytest.mark.parametrize("route", MATRIX, ids=" ".join)
def test_each_route_is_open_to_the_users_of_the_matrix_only(
    route: tuple[str, str], owned: Owned, ada: Service, bob: Service, root: Service
) -> None:
    expected = MATRIX[route]
    with httpx.Client(base_url=ada.server.url + PREFIX, timeout=60) as nobody:
        assert ask(nobody, route, owned) == expected.nobody
        nobody.headers["X-API-KEY"] = "wrong"
        assert ask(nobody, route, owned) == expected.nobody
    assert ask(bob.http, route, owned) == expected.other
    # What others were refused is all still there.
    assert ask(ada.http, route, owned) == expected.owner
    if route[0] == "DELETE":
        owned = owned._replace(session=ada.session())
    assert ask(root.http, route, owned) == expected.admin


@pytest.mark.parametrize("who", ["nobody", "other", "owner", "admin"])
def test_who_may_read_a_stream(who: str, owned: Owned, ada: Service, bob: Service, root: Service) -> None:
    url = ada.server.url.replace("http", "ws") + PREFIX + f"/runs/{owned.run}/stream"
    clients: dict[str, Callable[[], dict[str, str]]] = {
        "nobody": dict,
        "other": lambda: {"Authorization": bob.http.headers["authorization"]},
        "owner": lambda: {"Authorization": ada.http.headers["authorization"]},
        "admin": lambda: {"Authorization": root.http.headers["authorization"]},
    }
    refused = {"nobody": 401, "other": 404}
    if who in refused:
        with pytest.raises(InvalidStatus) as caught:
            connect(url, additional_headers=clients[who](), open_timeout=60)
        assert caught.value.response.status_code == refused[who]
        return
    with connect(url, additional_headers=clients[who](), open_timeout=60) as stream:
        assert '"seq":1' in str(stream.recv()).replace(" ", "")


def test_lists_show_ones_own_only(ada: Service, bob: Service, owned: Owned) -> None:
    runs = [item["id"] for item in bob.get("/runs", params={"limit": 1000}).json()["items"]]
    sessions = [item["id"] for item in bob.get("/sessions", params={"limit": 1000}).json()["items"]]
    assert owned.run not in runs
    assert owned.session not in sessions
    assert bob.get("/runs", params={"session_id": owned.session}).json()["items"] == []
    assert owned.run in [item["id"] for item in ada.get("/runs", params={"session_id": owned.session}).json()["items"]]


def test_a_run_cannot_use_the_session_of_another(bob: Service, owned: Owned) -> None:
    assert bob.submit(session_id=owned.session).status_code == 404
