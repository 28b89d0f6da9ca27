"""The OpenAPI document: complete, and true whatever is sent to the server."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import PREFIX
from tests.api.interpreter.test_rbac import MATRIX
from tidebox.api.interpreter import files, run_answers

METHODS = {"get", "post", "put", "patch", "delete"}


@pytest.fixture(scope="module")
def document(interpreter_server: RunningServer) -> dict[str, Any]:
    response = httpx.get(interpreter_server.url + "/openapi.json", headers=interpreter_server.headers, timeout=60)
    found: dict[str, Any] = response.json()
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, found in document["paths"].items()
        for method, operation in found.items()
        if method in METHODS
    ]


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        assert operation["tags"], where
        for parameter in operation.get("parameters", ()):
            assert "schema" in parameter, where


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)


def test_every_answer_is_described(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        answers = operation["responses"]
        assert any(status.startswith("2") for status in answers), where
        if path != f"{PREFIX}/health/public":
            assert {"400", "401", "429", "503"} <= answers.keys(), where
        if path.startswith(PREFIX) and path != f"{PREFIX}/health/public":
            assert "431" in answers, where
        if "{" in path:
            assert "404" in answers, where
        if "/admin/" in path:
            assert "403" in answers, where
        for status, found in answers.items():
            assert found["description"], (where, status)
            assert found.get("content") or status in ("204", "304"), (where, status)
            for content in found.get("content", {}).values():
                assert "schema" in content or "example" in content, (where, status)


def test_errors_are_described_as_the_envelope(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for status, found in operation["responses"].items():
            if status[0] in "45" and "health" not in path:
                schema = found["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorEnvelope"}, (method, path, status)


def test_schemas_have_plain_names(document: dict[str, Any]) -> None:
    """Two models of one name would get those of their modules; a generic one gets brackets."""
    names = document["components"]["schemas"].keys()
    assert [name for name in names if not name.isalnum()] == []
    assert not names & {"HTTPValidationError", "ValidationError"}


def test_no_other_surface_replaces_an_answer(document: dict[str, Any]) -> None:
    for model in (run_answers.ResourceUsage, files.UploadAnswer):
        shown = document["components"]["schemas"][model.__name__]["properties"]
        assert shown.keys() == model.model_json_schema()["properties"].keys()


def test_bodies_have_examples(document: dict[str, Any]) -> None:
    for name in ("RunRequest", "SessionRequest"):
        assert document["components"]["schemas"][name]["examples"]
    for method, path in (("post", "/runs"), ("get", "/runs/{run_id}"), ("post", "/sessions"), ("get", "/runtimes")):
        answers = document["paths"][PREFIX + path][method]["responses"]
        assert answers["200"]["content"]["application/json"]["example"]


def test_credentials_are_described(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"].keys() == {"apiKey", "bearer", "sandboxToken"}
    assert document["security"]
    assert document["paths"][f"{PREFIX}/health/public"]["get"]["security"] == []


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for item in value.values() for found in references(item)]
        if isinstance(value, list):
            return [found for item in value for found in references(item)]
        return []

    for reference in references(document):
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


# Whatever is sent.


@pytest.fixture(scope="module")
def schema(interpreter_server: RunningServer) -> Any:
    found = schemathesis.openapi.from_url(
        interpreter_server.url + "/openapi.json", headers=interpreter_server.headers, timeout=60
    )
    # A head that is longer than the server reads is refused before anybody looks at what it says.
    rejection = found.config.checks.negative_data_rejection
    rejection.expected_statuses = [*rejection.expected_statuses, "413", "431"]
    return found


# JSON Schema can say that items differ, not that they differ in one field; and OpenAPI knows neither the names of files
# in a form nor what is in an archive; nor which languages a server has, and what the file of a program can be called.
NOT_TO_BE_SAID = ("the same file twice", "below another file", "not a file of the workspace")


def cannot_be_described(case: Any, response: Any) -> bool:
    """Whether a right request was refused by a rule that a schema has no words for."""
    if response.status_code != 400:
        return False
    if case.path.endswith("/files") and case.media_type != "application/json":
        return True
    error = response.json()["error"]
    return error["code"] == "unknown_language" or error["details"].get("reason") in NOT_TO_BE_SAID


ROUTES = [
    (route, mode)
    for route in MATRIX
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    # Nothing can be wrong where nothing is asked for, not even a credential.
    if not (route == ("GET", "/health/public") and mode is GenerationMode.NEGATIVE)
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("route", "mode"), ROUTES, ids=[f"{' '.join(route)}-{mode.value}" for route, mode in ROUTES])
def test_the_server_does_what_it_describes(
    schema: Any,
    document: dict[str, Any],
    interpreter_server: RunningServer,
    route: tuple[str, str],
    mode: GenerationMode,
) -> None:
    method, path = route
    operation = schema[PREFIX + path][method]
    described = document["paths"][PREFIX + path][method.lower()]["responses"]

    @given(operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        response = case.call(headers=interpreter_server.headers)
        excluded = [positive_data_acceptance] if cannot_be_described(case, response) else []
        case.validate_response(response, excluded_checks=excluded)
        # 4XX is for what stands before the routes.
        assert str(response.status_code) in described

    check()
