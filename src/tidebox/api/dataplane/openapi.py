"""The dataplane in the OpenAPI document: its routes as a table, what they take and answer from the messages themselves.

Its sockets are there only in words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tidebox.protocols.dataplane import routes
from tidebox.protocols.dataplane.routes import Route

TAG = "dataplane"
SCHEME = "sandboxToken"

_ABOUT = (
    "Programs, terminals and files of a live sandbox, for holders of a token for it. The same routes are below "
    "`/v1`, for the sandbox of the token, and below `/api/{sandbox_id}`. Sockets, which this format has no words for: "
    "`/v1/exec/ws`, `/v1/shell/ws`, `/v1/files/watch`, the same below `/api/{sandbox_id}`, and `/ws/{sandbox_id}`."
)
_SCHEMES = {
    SCHEME: {"type": "http", "scheme": "bearer", "description": "A token for the sandbox.", "bearerFormat": "JWT"}
}
_ERRORS = {
    "400": "The request is wrong; `details` says where.",
    "401": "No token, or one that is wrong, expired or revoked, or whose sandbox is gone.",
    "403": "The token does not cover it or is for another sandbox, or the sandbox's user may not.",
    "404": "No such file.",
    "409": "Something else is there, or it is not in a state that allows this.",
    "413": "More bytes than the server accepts.",
    "416": "The range asked for is not there.",
    "422": "The program cannot be started, or the operation failed.",
    "429": "Too many requests; see `Retry-After`.",
    "503": "The sandbox ended, or the server does.",
    "507": "The workspace is full.",
}
_EVERY = ("400", "401", "403", "429", "503")

_REF = "#/components/schemas/{name}"


class _Operation(NamedTuple):
    """The description of a route beyond its messages."""

    route: Route[Any, Any]
    summary: str
    about: str
    answer: str
    failures: tuple[str, ...] = ("404", "409", "422", "507")


_IN_QUERY = " The fields may be in the query instead."
_DOWNLOAD = ("All of it.", ("404", "409", "416", "422"))
_OPERATIONS = (
    _Operation(
        routes.EXEC,
        "Run a program",
        "A program with all its output in one answer; it is killed when the client leaves.",
        "The program is over.",
        ("413", "422"),
    ),
    _Operation(
        routes.UPLOAD,
        "Upload a file",
        "Appears as a whole or not at all; with `upload_id` it may come in several requests.",
        "It is there, or so much of it.",
    ),
    _Operation(routes.UPLOADED, "How much has come", "How much of an upload in several requests is there.", "So much."),
    _Operation(
        routes.DISCARD,
        "Give an upload up",
        "Remove what has come of an upload in several requests.",
        "It is gone.",
    ),
    _Operation(routes.DOWNLOAD, "Download a file", "The content of a file.", *_DOWNLOAD),
    _Operation(routes.DOWNLOAD_HEAD, "Download a file", "What a download would be answered with.", *_DOWNLOAD),
    _Operation(
        routes.LIST,
        "List a directory",
        "Its entries by name; `/workspace` where no path is given.",
        "The entries.",
    ),
    _Operation(
        routes.STAT,
        "Look at a file",
        "What is at a path; a link itself and not what it leads to.",
        "What is there.",
    ),
    _Operation(routes.MKDIR, "Make a directory", "Parents are made too." + _IN_QUERY, "It is done."),
    _Operation(
        routes.REMOVE,
        "Remove a file",
        "Or a directory, with `recursive` and what is in it." + _IN_QUERY,
        "It is done.",
    ),
    _Operation(routes.MOVE, "Move a file", "A file at the target is replaced." + _IN_QUERY, "It is done."),
)


def _schemas() -> dict[str, Any]:
    known = [operation.route for operation in _OPERATIONS]
    answers = {route.answer for route in known if route.answer is not bytes} | {routes.FileEntry}
    kinds = {route.request for route in known if _in_body(route)} | answers
    _, found = msgspec.json.schema_components(sorted(kinds, key=lambda kind: kind.__name__), ref_template=_REF)
    for kind in answers:
        # What a client does not insist on, a server sends all the same.
        sent = [field.encode_name for field in msgspec.structs.fields(kind) if field.default is not msgspec.UNSET]
        found[kind.__name__]["required"] = sent
    return found


def _in_body(route: Route[Any, Any]) -> bool:
    return route.method == "POST" and route is not routes.UPLOAD


def _query(kind: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """The parameters of a query with the fields of a request."""
    found = msgspec.json.schema_components([kind], ref_template=_REF)[1][kind.__name__]
    parameters = []
    for name, schema in found["properties"].items():
        # A query knows no null: what need not be there is missing.
        schema = schema["anyOf"][0] if "anyOf" in schema else schema
        about = {"description": schema.pop("description")} if "description" in schema else {}
        required = name in found.get("required", ())
        parameters.append({"name": name, "in": "query", "required": required, **about, "schema": schema})
    return parameters


_SANDBOX = {
    "name": "sandbox_id",
    "in": "path",
    "required": True,
    "description": "The sandbox, which must be that of the token.",
    "schema": {"type": "string", "pattern": "^sb-[a-z0-9]{1,40}$"},
}
_RANGE = {
    "name": "Range",
    "in": "header",
    "required": False,
    "description": "One range of bytes, as `bytes=0-1023`; other units are ignored.",
    "schema": {"type": "string"},
}
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_FORM = {
    "schema": {
        "type": "object",
        "properties": {"file": {"type": "string", "format": "binary"}},
        "required": ["file"],
    }
}


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=schema)}}}


def _described(operation: _Operation) -> dict[str, Any]:
    route, download = operation.route, operation.route.answer is bytes
    content = _BYTES if download else _json(route.answer.__name__)
    responses: dict[str, Any] = {str(route.status): {"description": operation.answer, "content": content}}
    if download:
        responses["206"] = {"description": "The range asked for.", "content": content}
    for status in sorted({*operation.failures, *_EVERY}):
        responses[status] = {"description": _ERRORS[status], "content": _json("ErrorEnvelope")}
    found: dict[str, Any] = {
        "tags": [TAG],
        "summary": operation.summary,
        "description": f"{operation.about} Needs `{route.capability.value}`.",
    }
    if _in_body(route):
        found["requestBody"] = {"required": True, "content": _json(route.request.__name__)}
    else:
        found["parameters"] = [*_query(route.request), *([_RANGE] if download else ())]
    if route is routes.UPLOAD:
        found["requestBody"] = {"required": True, "content": {**_BYTES, "multipart/form-data": _FORM}}
    return found | {"responses": responses}


def describe(document: dict[str, Any]) -> None:
    """Add the dataplane to an OpenAPI document that has the envelope of errors."""
    components = document["components"]
    components["securitySchemes"] |= _SCHEMES
    own = _schemas()
    assert own.keys().isdisjoint(components["schemas"]), "two models of one name would be one to readers"
    components["schemas"] |= own
    document.setdefault("tags", []).append({"name": TAG, "description": _ABOUT})
    for operation in _OPERATIONS:
        described, method, path = _described(operation), operation.route.method.lower(), operation.route.path
        words = f"{path.replace('/', '_')}_{method}"
        plain = {**described, "operationId": words, "security": [{SCHEME: []}]}
        document["paths"].setdefault(f"/v1/{path}", {})[method] = plain
        missing = {"404": {"description": _ERRORS["404"], "content": _json("ErrorEnvelope")}}
        document["paths"].setdefault(f"/api/{{sandbox_id}}/{path}", {})[method] = {
            **plain,
            "operationId": f"sandbox_{words}",
            "parameters": [_SANDBOX, *described.get("parameters", ())],
            "responses": described["responses"] | missing,
        }
