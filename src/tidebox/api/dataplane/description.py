"""The dataplane in the OpenAPI document: what its routes take and answer, as tables; its sockets only in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tidebox.api.dataplane.exec import ExecRequest

TAG = "dataplane"
SCHEME = "sandboxToken"

_ABOUT = (
    "Programs, terminals and files of a live sandbox, for whoever holds a token for it. The same routes are below "
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
_FILE = ("404", "409", "422", "507")

_TEXT = {"type": "string"}
_PATH = {"type": "string", "minLength": 1, "maxLength": 4096, "pattern": r"^[^\u0000]+$"}
_NUMBER = {"type": "integer", "minimum": 0}
_UPLOAD_ID = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}


def _object(properties: Mapping[str, Any], *optional: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
    }


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_ENTRY = {
    "path": _TEXT,
    "name": _TEXT,
    "type": {"enum": ["file", "directory", "symlink", "other"]},
    "size": _NUMBER,
    "mode": {"type": "string", "pattern": "^[0-7]{4}$"},
    "modified_at": _or_null({"type": "string", "format": "date-time"}),
}
_SCHEMAS = {
    "ExecAnswer": _object(
        {
            "exit_code": _or_null({"type": "integer"}),
            "signal": _or_null(_TEXT),
            "stdout": _TEXT,
            "stderr": _TEXT,
            "encoding": {"enum": ["utf8", "base64"]},
            "truncated": {"type": "boolean"},
            "timed_out": {"type": "boolean"},
            "duration_ms": _NUMBER,
            "resource_usage": _object(
                {"cpu_time_ms": _NUMBER, "peak_memory_mb": _NUMBER, "oom_kills": _NUMBER},
                "cpu_time_ms",
                "peak_memory_mb",
                "oom_kills",
            ),
        }
    ),
    "FileEntry": _object(_ENTRY),
    "FileListing": _object(
        {"path": _TEXT, "entries": {"type": "array", "items": {"$ref": "#/components/schemas/FileEntry"}}}
    ),
    "UploadAnswer": _object(
        {"path": _TEXT, "size": _NUMBER, "upload_id": _TEXT, "complete": {"type": "boolean"}, "offset": _NUMBER},
        "upload_id",
        "complete",
        "offset",
    ),
    "PathAnswer": _object({"path": _TEXT}),
    "MoveAnswer": _object({"source": _TEXT, "target": _TEXT}),
    "PathRequest": _object({"path": _PATH}),
    "RemoveRequest": _object({"path": _PATH, "recursive": {"type": "boolean", "default": False}}, "recursive"),
    "MoveRequest": _object({"source": _PATH, "target": _PATH}),
}


def _query(name: str, about: str, schema: Mapping[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "description": about, "schema": schema}


_WHERE = _query("path", "Below `/workspace` if it is not absolute.", _PATH, required=True)
_PART = _query("upload_id", "The client's own name for an upload in several requests.", _UPLOAD_ID)
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
_FORM = {"schema": _object({"file": {"type": "string", "format": "binary"}})}


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _operation(
    summary: str,
    description: str,
    answers: Mapping[str, tuple[str, Mapping[str, Any]]],
    *failures: str,
    parameters: tuple[Mapping[str, Any], ...] = (),
    body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {
        status: {"description": about, "content": content} for status, (about, content) in answers.items()
    }
    for status in sorted({*failures, *_EVERY}):
        responses[status] = {"description": _ERRORS[status], "content": _json("ErrorEnvelope")}
    found: dict[str, Any] = {"tags": [TAG], "summary": summary, "description": description}
    if parameters:
        found["parameters"] = list(parameters)
    if body is not None:
        found["requestBody"] = {"required": True, "content": body}
    return found | {"responses": responses}


def _downloads() -> Iterator[tuple[str, dict[str, Any]]]:
    for method, about in (("get", "The content of a file."), ("head", "What a download would be answered with.")):
        answers = {"200": ("All of it.", _BYTES), "206": ("The range asked for.", _BYTES)}
        failures = ("404", "409", "416", "422")
        yield method, _operation("Download a file", about, answers, *failures, parameters=(_WHERE, _RANGE))


def _short(summary: str, description: str, request: str, status: str, answer: str) -> dict[str, Any]:
    about = f"{description} The fields may be in the query instead. Needs `fs_write`."
    return {"post": _operation(summary, about, {status: ("It is done.", _json(answer))}, *_FILE, body=_json(request))}


_OPERATIONS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "exec": {
        "post": _operation(
            "Run a program",
            "A program with all its output in one answer; it is killed when the client leaves. Needs `exec`.",
            {"200": ("The program is over.", _json("ExecAnswer"))},
            "413",
            "422",
            body=_json("ExecRequest"),
        )
    },
    "files/upload": {
        "post": _operation(
            "Upload a file",
            "Appears as a whole or not at all; with `upload_id` it may come in several requests. Needs `fs_write`.",
            {"200": ("It is there, or so much of it.", _json("UploadAnswer"))},
            *_FILE,
            parameters=(
                _WHERE,
                _query("mode", "Permissions in octal digits.", {"type": "string", "pattern": "^[0-7]{3,4}$"}),
                _PART,
                _query("offset", "How much of it has come before.", _NUMBER),
                _query("complete", "Whether this is the end of it.", {"type": "boolean", "default": True}),
            ),
            body={**_BYTES, "multipart/form-data": _FORM},
        ),
        "get": _operation(
            "How much has come",
            "How much of an upload in several requests is there. Needs `fs_write`.",
            {"200": ("So much.", _json("UploadAnswer"))},
            *_FILE,
            parameters=(_WHERE, {**_PART, "required": True}),
        ),
        "delete": _operation(
            "Give an upload up",
            "Remove what has come of an upload in several requests. Needs `fs_write`.",
            {"200": ("It is gone.", _json("UploadAnswer"))},
            *_FILE,
            parameters=(_WHERE, {**_PART, "required": True}),
        ),
    },
    "files/download": dict(_downloads()),
    "files/list": {
        "get": _operation(
            "List a directory",
            "Its entries by name; `/workspace` where no path is given. Needs `fs_read`.",
            {"200": ("The entries.", _json("FileListing"))},
            *_FILE,
            parameters=(
                _query("path", "Below `/workspace` if it is not absolute.", {"type": "string", "maxLength": 4096}),
            ),
        )
    },
    "files/stat": {
        "get": _operation(
            "Look at a file",
            "What is at a path; a link itself and not what it leads to. Needs `fs_read`.",
            {"200": ("What is there.", _json("FileEntry"))},
            *_FILE,
            parameters=(_WHERE,),
        )
    },
    "files/mkdir": _short("Make a directory", "Parents are made too.", "PathRequest", "201", "PathAnswer"),
    "files/remove": _short(
        "Remove a file", "Or a directory, with `recursive` and what is in it.", "RemoveRequest", "200", "PathAnswer"
    ),
    "files/move": _short("Move a file", "A file at the target is replaced.", "MoveRequest", "200", "MoveAnswer"),
}


def describe(document: dict[str, Any]) -> None:
    """Add the dataplane to an OpenAPI document that has the envelope of errors."""
    components = document["components"]
    components["securitySchemes"] |= _SCHEMES
    _, shared = msgspec.json.schema_components([ExecRequest], ref_template="#/components/schemas/{name}")
    components["schemas"] |= _SCHEMAS | shared
    document.setdefault("tags", []).append({"name": TAG, "description": _ABOUT})
    for name, operations in _OPERATIONS.items():
        for method, operation in operations.items():
            words = name.replace("/", "_")
            plain = {**operation, "operationId": f"{words}_{method}", "security": [{SCHEME: []}]}
            document["paths"].setdefault(f"/v1/{name}", {})[method] = plain
            answers = {
                **operation["responses"],
                "404": {"description": _ERRORS["404"], "content": _json("ErrorEnvelope")},
            }
            below = {
                **plain,
                "operationId": f"sandbox_{words}_{method}",
                "parameters": [_SANDBOX, *operation.get("parameters", ())],
                "responses": answers,
            }
            document["paths"].setdefault(f"/api/{{sandbox_id}}/{name}", {})[method] = below
