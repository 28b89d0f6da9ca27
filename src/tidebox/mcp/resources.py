"""MCP resources: logs and artifacts of runs."""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote

from mcp_types import (
    BlobResourceContents,
    ReadResourceResult,
    ResourceTemplate,
    TextResourceContents,
)

from tidebox.errors import NotFound, PayloadTooLarge
from tidebox.mcp.tool_results import picture_type
from tidebox.model.limits import MIB
from tidebox.sdk.interpreter.client import AsyncInterpreter

MAX_BYTES = 4 * MIB
"""Of one resource. The server does nothing else while it writes one down as JSON."""

TEMPLATES = [
    ResourceTemplate(
        name="run-log",
        title="Log of a run",
        uri_template="tidebox://runs/{id}/log",
        description="All that a run printed, both streams in the order in which it came.",
        mime_type="text/plain",
    ),
    ResourceTemplate(
        name="run-artifact",
        title="Artifact of a run",
        uri_template="tidebox://runs/{id}/artifacts/{+path}",
        description="A file that a run left.",
    ),
]
_URI = re.compile(r"tidebox://runs/([^/?#]{1,128})/(?:(log)|artifacts/([^?#]{1,4096}))")


async def read(client: AsyncInterpreter, uri: str) -> ReadResourceResult:
    """A resource; raises ``NotFound`` where there is none, or none for this caller."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise NotFound("there are tidebox://runs/{id}/log and tidebox://runs/{id}/artifacts/{path}")
    run_id, path = unquote(match[1]), match[3]
    if path is None:
        return ReadResourceResult(contents=[contents(uri, _end_of(await client.read_log(run_id)), "text/plain")])
    try:
        data = await client.download_artifact(run_id, unquote(path), max_bytes=MAX_BYTES)
    except PayloadTooLarge:
        where = f"/api/v1/sandbox/runs/{run_id}/artifacts/{path}"
        raise PayloadTooLarge(f"it has more than {MAX_BYTES} bytes; download it from the server at {where}") from None
    return ReadResourceResult(contents=[contents(uri, data, picture_type(data))])


def _end_of(log: bytes) -> bytes:
    """The end of a log, with a line that says so where it is not all of it."""
    if len(log) <= MAX_BYTES:
        return log
    kept = log[-MAX_BYTES:].lstrip(bytes(range(0x80, 0xC0)))  # without half a character
    return b"[... %d bytes before this are left out ...]\n" % (len(log) - len(kept)) + kept


def contents(uri: str, data: bytes, kind: str | None) -> TextResourceContents | BlobResourceContents:
    """Return a resource's content as text or bytes. A picture is no text, even where its bytes would be."""
    if kind is None or kind.startswith("text/"):
        try:
            return TextResourceContents(uri=uri, text=data.decode(), mime_type=kind or "text/plain")
        except UnicodeDecodeError:
            kind = None
    encoded = base64.b64encode(data).decode("ascii")
    return BlobResourceContents(uri=uri, blob=encoded, mime_type=kind or "application/octet-stream")
