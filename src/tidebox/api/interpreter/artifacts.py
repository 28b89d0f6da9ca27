"""Artifacts of runs: list, download one, download all, delete."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import time
import zipfile
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Self
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from tidebox.api.answers import each, example
from tidebox.api.asgi import Receive, Scope, Send
from tidebox.api.interpreter.downloads import (
    CHUNK_BYTES,
    DOWNLOADED,
    Download,
    RangeHeader,
    answer_with,
    attachment,
)
from tidebox.api.interpreter.runs import RunId
from tidebox.api.route_dependencies import CallerDep, ServicesDep, errors
from tidebox.api.services import Services
from tidebox.broker.storage.artifacts import RunArtifacts
from tidebox.errors import InvalidRequest, NotFound
from tidebox.model.artifact import Artifact
from tidebox.model.run import Run
from tidebox.model.timestamps import iso_time

router = APIRouter(tags=["artifacts"])

ArtifactPath = Annotated[str, Path(max_length=8192, description="As the list has it.")]


# All artifacts of a run are of one moment.
_time = functools.lru_cache(maxsize=16)(iso_time)


class ArtifactAnswer(BaseModel):
    """A file that a run left."""

    path: str
    size: int
    content_type: str
    created_at: str
    expires_at: str
    is_link: bool
    link_target: str | None
    download_url: str | None

    @classmethod
    def of(cls, artifact: Artifact, base: str) -> Self:
        """``artifact``, whose content is found below ``base``."""
        return cls(
            path=artifact.path,
            size=artifact.size,
            content_type=artifact.content_type,
            created_at=_time(artifact.created_at),
            expires_at=_time(artifact.expires_at),
            is_link=artifact.is_link,
            link_target=artifact.link_target,
            download_url=None if artifact.is_link else base + quote(artifact.path),
        )


class ArtifactList(BaseModel):
    """The artifacts of a run, by path."""

    run_id: str
    items: list[ArtifactAnswer]
    total: int
    total_bytes: int


class ArtifactsDeleted(BaseModel):
    """The deletion of a run's artifacts."""

    run_id: str
    deleted: bool
    freed_bytes: int


_ARTIFACT = Artifact(
    run_id="run-4k2m8x0q7c1v9b3n5z6a",
    path="results.json",
    size=42,
    content_type="application/json; charset=utf-8",
    created_at=1767614401.0,
    expires_at=1767700801.0,
)
_EXAMPLE = ArtifactList(
    run_id=_ARTIFACT.run_id,
    items=[ArtifactAnswer.of(_ARTIFACT, f"/api/v1/sandbox/runs/{_ARTIFACT.run_id}/artifacts/")],
    total=1,
    total_bytes=42,
)


@router.get(
    "/runs/{run_id}/artifacts",
    responses={200: example(_EXAMPLE), **errors(404)},
    summary="List the artifacts of a run",
)
async def list_artifacts(request: Request, run_id: RunId, services: ServicesDep, caller: CallerDep) -> ArtifactList:
    """The files of the run that its `capture_patterns` match. Symbolic links are listed and have no content."""
    await services.broker.runs.get(caller, run_id)
    found = await services.files.artifacts.of_run(run_id)
    base = f"{request.url.path}/"
    return ArtifactList(
        run_id=run_id,
        items=await each(lambda artifact: ArtifactAnswer.of(artifact, base), found),
        total=len(found),
        total_bytes=sum(artifact.size for artifact in found),
    )


@router.delete(
    "/runs/{run_id}/artifacts",
    responses=errors(404),
    summary="Delete the artifacts of a run",
)
async def delete_artifacts(run_id: RunId, services: ServicesDep, caller: CallerDep) -> ArtifactsDeleted:
    """Remove them before their time is over, which makes room for others of the same user."""
    await services.broker.runs.get(caller, run_id)
    freed = await services.files.artifacts.delete(run_id)
    return ArtifactsDeleted(run_id=run_id, deleted=True, freed_bytes=freed)


@router.get(
    "/runs/{run_id}/artifacts.zip",
    response_class=Response,
    responses={
        200: {
            "description": "A zip archive.",
            "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
        },
        **errors(404, 409, 410),
    },
    summary="Download all artifacts of a run",
)
async def download_all(run_id: RunId, services: ServicesDep, caller: CallerDep) -> Response:
    """All of them in one zip archive, made while it is sent."""
    run = await services.broker.runs.get(caller, run_id)
    found = await services.files.artifacts.of_run(run_id)
    await _require_here(services, run, found)
    services.files.read(caller, run_id=run_id)
    headers = {**attachment(f"{run_id}.zip"), "cache-control": "no-store"}
    return _ZipResponse(_zipped(services.files.artifacts, found), headers)


@router.head("/runs/{run_id}/artifacts/{path:path}", include_in_schema=False)
@router.get(
    "/runs/{run_id}/artifacts/{path:path}",
    response_class=Response,
    responses={**DOWNLOADED, **errors(404, 409, 410, 416)},
    summary="Download an artifact",
)
async def download_artifact(
    request: Request,
    run_id: RunId,
    path: ArtifactPath,
    services: ServicesDep,
    caller: CallerDep,
    range: RangeHeader = None,
) -> Response:
    """The file, or one range of its bytes; text is compressed for clients that accept it."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise InvalidRequest("not the path of an artifact", field="path")
    run = await services.broker.runs.get(caller, run_id)
    services.files.read(caller, run_id=run_id)
    try:
        artifact, descriptor = await services.files.artifacts.open(
            run_id, "/".join(part for part in parts if part not in ("", "."))
        )
    except NotFound as error:
        raise await services.broker.runs.elsewhere(run) or error from None
    download = Download(
        descriptor=descriptor,
        path=artifact.path,
        size=artifact.size,
        content_type=artifact.content_type,
        modified=artifact.created_at,
        identity=f"{run_id}\0{artifact.path}\0{artifact.size}\0{artifact.created_at}",
    )
    return answer_with(request, download)


async def _require_here(services: Services, run: Run, found: Sequence[Artifact]) -> None:
    """Refuse files that another server has; the list of them is everybody's."""
    first = next((artifact for artifact in found if not artifact.is_link), None)
    if first is None:
        return
    try:
        _, descriptor = await services.files.artifacts.open(run.id, first.path)
    except NotFound:
        if (elsewhere := await services.broker.runs.elsewhere(run)) is not None:
            raise elsewhere from None
    else:
        os.close(descriptor)


class _ZipSink(io.RawIOBase):
    """The output file of ``zipfile``: a stream without seeking."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


class _ZipResponse(StreamingResponse):
    """An archive that is made while it is sent, and let go of where the client leaves in the middle of it."""

    def __init__(self, pieces: AsyncGenerator[bytes], headers: dict[str, str]) -> None:
        super().__init__(pieces, headers=headers, media_type="application/zip")
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._pieces):
            await super().__call__(scope, receive, send)


async def _zipped(artifacts: RunArtifacts, found: list[Artifact]) -> AsyncGenerator[bytes]:
    sink = _ZipSink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for artifact in found:
            if artifact.is_link:
                continue
            try:
                _, descriptor = await artifacts.open(artifact.run_id, artifact.path)
            except NotFound:
                continue  # its time was over while the others were sent
            info = zipfile.ZipInfo(_entry_name(artifact.path), time.gmtime(artifact.created_at)[:6])
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            position = 0
            try:
                with archive.open(info, "w") as entry:
                    # At a position: a thread that is late must not read on in what has this number after us.
                    while piece := await asyncio.to_thread(os.pread, descriptor, CHUNK_BYTES, position):
                        position += len(piece)
                        await asyncio.to_thread(entry.write, piece)
                        if packed := sink.take():
                            yield packed
            finally:
                os.close(descriptor)
    yield sink.take()


def _entry_name(path: str) -> str:
    # Where a backslash separates directories, a name with one could lead out of the place it is unpacked in.
    return "".join("_" if character == "\\" or ord(character) < 0x20 else character for character in path)
