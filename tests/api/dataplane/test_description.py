"""The dataplane in the OpenAPI document: complete, and true whatever is sent."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.api.conftest import RunningServer
from tests.api.dataplane.test_server import acquire, bearer
from tidebox.api.dataplane.surface import ROUTES

OPERATIONS = [(method, path) for path, methods in ROUTES.items() for method in methods]
CASES = [
    (method, path, mode)
    for method, path in OPERATIONS
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    # Hardly anything can be wrong where nothing must be said.
    if not (path == "files/list" and mode is GenerationMode.NEGATIVE)
]


@pytest.fixture(scope="module")
def schema(running_server: RunningServer) -> Any:
    return schemathesis.openapi.from_url(
        running_server.url + "/openapi.json", headers=running_server.headers, timeout=60
    )


@pytest.fixture(scope="module")
def session(running_server: RunningServer) -> dict[str, Any]:
    return acquire(running_server)


def test_every_route_is_described_twice_and_nothing_else(running_server: RunningServer) -> None:
    document = httpx2.get(running_server.url + "/openapi.json", headers=running_server.headers, timeout=60).json()
    described = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if operation["tags"] == ["dataplane"]
    }
    prefixes = ("/v1/", "/api/{sandbox_id}/")
    assert described == {(method, prefix + path) for method, path in OPERATIONS for prefix in prefixes}
    for name in document["components"]["schemas"]:
        assert "__" not in name


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("method", "path", "mode"), CASES, ids=[f"{method} {path}-{mode.value}" for method, path, mode in CASES]
)
def test_the_server_does_what_it_describes(
    schema: Any, session: dict[str, Any], method: str, path: str, mode: GenerationMode
) -> None:
    @given(schema[f"/v1/{path}"][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        # A credential is not guessed, but it may be left out.
        response = case.call(headers=bearer(session["token"]) if "Authorization" in case.headers else {})
        if response.status_code == 431:
            return  # the head of a request is bounded before anybody looks at its path
        # A workspace may be full; and that a path is none, or leads nowhere, is seen by the sandbox alone.
        excluded: list[Any] = [positive_data_acceptance]
        if response.status_code == 507:
            excluded.append(not_a_server_error)
        case.validate_response(response, excluded_checks=excluded)

    check()
