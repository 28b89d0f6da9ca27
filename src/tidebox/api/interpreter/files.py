"""Files of sessions: upload them, look at them, get them back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any, Self
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tidebox.api.answers import each, example
from tidebox.api.interpreter.downloads import DOWNLOADED, Download, RangeHeader, answer_with
from tidebox.api.interpreter.git_request import GitRequest
from tidebox.api.interpreter.multipart import FormUpload
from tidebox.api.interpreter.requests import InlineFile
from tidebox.api.route_dependencies import CallerDep, ErrorEnvelope, ServicesDep, errors
from tidebox.broker.runs.planning import inline_files
from tidebox.broker.storage.uploads import IncomingUpload, UploadResult
from tidebox.broker.storage.workspace_store import KeptFile
from tidebox.errors import InvalidRequest, PayloadTooLarge
from tidebox.model.launch import WORKSPACE
from tidebox.model.timestamps import iso_time
from tidebox.protocols.documents import check_values
from tidebox.untrusted_files.content_types import HEAD_BYTES, content_type
from tidebox.untrusted_files.file_names import MAX_PATH_BYTES, split_name
from tidebox.untrusted_files.staging import ArchiveKind
from tidebox.untrusted_files.trees import MAX_DEPTH

router = APIRouter(tags=["files"])

MAX_LISTED = 10_000
SILENCE_SECONDS = 30.0
"""How long nothing of an upload may come before it is given up."""
_JSON = "application/json"
_FORM = "multipart/form-data"
ARCHIVES: dict[str, ArchiveKind] = {
    "application/x-tar": "tar",
    "application/tar": "tar",
    "application/x-gtar": "tar",
    "application/gzip": "tar",
    "application/x-gzip": "tar",
    "application/x-tgz": "tar",
    "application/x-bzip2": "tar",
    "application/x-xz": "tar",
    "application/zip": "zip",
    "application/x-zip-compressed": "zip",
}

SessionId = Annotated[str, Path(min_length=1, max_length=128, description="The session.")]


class FilesRequest(BaseModel):
    """Small files in the request itself, or a repository."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "oneOf": [
                {"required": ["files"], "properties": {"files": {"minItems": 1}, "git": {"type": "null"}}},
                {"required": ["git"], "properties": {"files": {"maxItems": 0}, "git": {"type": "object"}}},
            ]
        },
    )

    files: Annotated[list[InlineFile], Field(max_length=1000)] = Field(default_factory=list)
    git: GitRequest | None = None
    ignore: Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=200)] = Field(default_factory=list)


class UploadAnswer(BaseModel):
    """The result of an upload."""

    session_id: str
    id: str
    bytes_received: int
    file_count: int
    ignored_count: Annotated[int, Field(description="Files that were left out because of a pattern.")]
    workspace_bytes: Annotated[int, Field(description="What the workspace has in all.")]
    workspace_files: int
    commit: str | None = None

    @classmethod
    def of(cls, session_id: str, uploaded: UploadResult) -> Self:
        """Make the answer to an upload."""
        return cls(
            session_id=session_id,
            id=session_id,
            bytes_received=uploaded.bytes_received,
            file_count=uploaded.file_count,
            ignored_count=uploaded.ignored_count,
            workspace_bytes=uploaded.workspace_bytes,
            workspace_files=uploaded.workspace_files,
            commit=uploaded.commit,
        )


class WorkspaceFile(BaseModel):
    """A file of a workspace."""

    path: str
    size: int
    modified_at: str
    is_link: bool = False
    link_target: str | None = None
    download_url: str | None = None

    @classmethod
    def of(cls, file: KeptFile, base: str) -> Self:
        """``file``, whose content is found below ``base``."""
        path = _text(file.path)
        link = file.link_target
        # Of a name that is no text, and of a link, nothing can be asked for.
        reachable = path == file.path and link is None
        return cls(
            path=path,
            size=file.size,
            modified_at=iso_time(file.modified),
            is_link=link is not None,
            link_target=None if link is None else _text(link),
            download_url=base + quote(path) if reachable else None,
        )


def _text(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


class WorkspaceAnswer(BaseModel):
    """The files of a session between its runs."""

    session_id: str
    items: list[WorkspaceFile]
    total_bytes: int
    truncated: bool


_EXAMPLE = UploadAnswer.of(
    "ses-4k2m8x0q7c1v9b3n5z6a",
    UploadResult(bytes_received=29, file_count=1, ignored_count=0, workspace_bytes=29, workspace_files=1),
)


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without references: what is only described here has no place among the components."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return resolve(definitions[value["$ref"].rpartition("/")[2]])
            return {key: resolve(item) for key, item in value.items()}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    resolved: dict[str, Any] = resolve(schema)
    return resolved


_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            _FORM: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "files": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "Each with its path as its file name; archives are unpacked.",
                        },
                        "ignore": {"type": "string", "description": "Patterns of files to leave out, one a line."},
                    },
                    "required": ["files"],
                }
            },
            **{name: _BINARY for name in ARCHIVES},
            _JSON: {"schema": _inlined(FilesRequest.model_json_schema())},
        },
    }
}


@router.post(
    "/sessions/{session_id}/files",
    responses={
        200: example(_EXAMPLE),
        **errors(403, 404, 409, 413),
        408: {"model": ErrorEnvelope, "description": "Nothing of the body came for too long."},
        415: {"model": ErrorEnvelope, "description": "A body of a type that is no upload."},
        502: {"model": ErrorEnvelope, "description": "The repository could not be fetched."},
    },
    openapi_extra=_BODY,
    summary="Upload files",
)
async def upload_files(
    request: Request,
    session_id: SessionId,
    services: ServicesDep,
    caller: CallerDep,
    ignore: Annotated[
        list[Annotated[str, Query(max_length=512)]],
        Query(description="Patterns of files to leave out.", max_length=200),
    ] = [],  # noqa: B006 # FastAPI copies it
    expand: Annotated[bool, Query(description="Whether archives in a form are unpacked.")] = True,
) -> UploadAnswer:
    """Put files into the workspace of a session: a form with files and archives, an archive as the body, small files
    as JSON, or a git repository. All of them get there, or none.

    A file replaces the one that was there. What `.dockerignore` at the root of an archive names is left out, as are
    `.git`, `.hg` and `.svn`.
    """
    sessions, uploads = services.broker.sessions, services.files.uploads
    await sessions.here(caller, session_id)

    async def exists() -> object:
        return await sessions.here(caller, session_id)

    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    async with uploads.receiving(caller) as upload:
        upload.ignore += ignore
        if kind == _FORM:
            await _receive_form(request, content_type, upload, expand)
        elif kind in ARCHIVES:
            await _receive_archive(request, upload, ARCHIVES[kind])
        elif kind == _JSON:
            body = await _receive_json(request, services.settings.max_inline_body_bytes)
            if body.git is not None:
                if body.files:
                    raise InvalidRequest("files or a repository, not both", field="git")
                put = await uploads.put_repository(caller, session_id, body.git.source(), exists)
                return UploadAnswer.of(session_id, put)
            _take_inline(upload, body)
        else:
            raise HTTPException(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send {_FORM}, {_JSON} or one of {', '.join(ARCHIVES)}"
            )
        label = {_FORM: "multipart", _JSON: "json"}.get(kind) or ARCHIVES[kind]
        return UploadAnswer.of(session_id, await uploads.put(caller, session_id, upload, label, exists))


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    """The body as it arrives: a client that is gone without a word must not keep its place."""
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise HTTPException(
                HTTPStatus.REQUEST_TIMEOUT,
                f"nothing of the body came for {SILENCE_SECONDS:g} seconds",
                headers={"Connection": "close"},
            ) from None
        if chunk is None:
            return
        yield chunk


async def _receive_form(request: Request, content_type: str, upload: IncomingUpload, expand: bool) -> None:
    form = FormUpload(content_type, upload, expand=expand)
    async for chunk in _chunks(request):
        await form.feed(chunk)
    await form.finish()


async def _receive_archive(request: Request, upload: IncomingUpload, kind: ArchiveKind) -> None:
    part = upload.part("archive", kind)
    async for chunk in _chunks(request):
        await part.write(chunk)
    await part.close()


async def _receive_json(request: Request, limit: int) -> FilesRequest:
    body = bytearray()
    async for chunk in _chunks(request):
        body += chunk
        if len(body) > limit:
            raise PayloadTooLarge(f"a JSON body of more than {limit} bytes", limit=limit)
    check_values(body)
    try:
        return FilesRequest.model_validate_json(bytes(body))
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        if found[0]["type"] == "json_invalid":
            raise InvalidRequest("the body is not valid JSON", field="body") from None
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in found]) from None


def _take_inline(upload: IncomingUpload, body: FilesRequest) -> None:
    if not body.files:
        raise InvalidRequest("give files or a repository", field="files")
    upload.ignore += body.ignore
    files = inline_files((file.path, file.content_b64) for file in body.files)
    upload.files = {path.removeprefix(WORKSPACE + "/"): content for path, content in files.items()}
    upload.count(sum(map(len, files.values())))


@router.get("/sessions/{session_id}/files", responses=errors(404), summary="List the files of a session")
async def list_files(
    request: Request, session_id: SessionId, services: ServicesDep, caller: CallerDep
) -> WorkspaceAnswer:
    """The files of the workspace as they were after the last run that ended, or the last upload."""
    await services.broker.sessions.here(caller, session_id)
    found = await services.files.workspaces.store.listing(session_id, MAX_LISTED + 1)
    base = f"{request.url.path}/"
    return WorkspaceAnswer(
        session_id=session_id,
        items=await each(lambda file: WorkspaceFile.of(file, base), found[:MAX_LISTED]),
        total_bytes=sum(file.size for file in found),
        truncated=len(found) > MAX_LISTED,
    )


@router.head("/sessions/{session_id}/files/{path:path}", include_in_schema=False)
@router.get(
    "/sessions/{session_id}/files/{path:path}",
    response_class=Response,
    responses={**DOWNLOADED, **errors(404, 416)},
    summary="Download a file of a session",
)
async def download_file(
    request: Request,
    session_id: SessionId,
    path: Annotated[str, Path(max_length=MAX_PATH_BYTES, description="Relative to the workspace.")],
    services: ServicesDep,
    caller: CallerDep,
    range: RangeHeader = None,
) -> Response:
    """A file of the workspace, or one range of its bytes."""
    await services.broker.sessions.here(caller, session_id)
    parts = split_name(path, MAX_DEPTH)
    if not parts:
        raise InvalidRequest("not the name of a file", field="path")
    services.files.read(caller, session_id=session_id)
    descriptor = await services.files.workspaces.store.open(session_id, parts)
    return answer_with(request, await asyncio.to_thread(_described, descriptor, session_id, "/".join(parts)))


def _described(descriptor: int, session_id: str, path: str) -> Download:
    status = os.fstat(descriptor)
    return Download(
        descriptor=descriptor,
        path=path,
        size=status.st_size,
        content_type=content_type(path, os.pread(descriptor, HEAD_BYTES, 0)),
        modified=status.st_mtime,
        identity=f"{session_id}\0{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}",
    )
