"""Results of MCP tools: the same as structured content and as text, of a bounded size, with pictures as images."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent

from tidebox.errors import (
    CapabilityDenied,
    Conflict,
    Expired,
    Forbidden,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    QuotaExceeded,
    RateLimited,
    RuntimeUnavailable,
    TideboxError,
    Unauthorized,
)
from tidebox.model.limits import KIB, MIB
from tidebox.sdk.errors import ConnectionLost, SandboxRecreated, ServerUnreachable

MAX_ANSWER_BYTES = MIB
"""Of one answer as JSON, pictures included."""
_ENVELOPE_BYTES = 4 * KIB
KEPT_BYTES = 400 * KIB
"""Bytes of the end of each stream that are kept until the result is made."""
_SMALLEST_BYTES = KIB
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


class Tail:
    """The end of a stream, and how long all of it was."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._pieces: deque[bytes] = deque()
        self._kept = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        """Note what came next; what is too long ago is forgotten."""
        self._pieces.append(data)
        self._kept += len(data)
        self.total += len(data)
        while self._kept - len(self._pieces[0]) >= self._limit:
            self._kept -= len(self._pieces.popleft())

    def last(self, most: int) -> bytes:
        """The last bytes, at most so many."""
        return b"".join(self._pieces)[-most:] if most else b""


class ShownStream(NamedTuple):
    """A stream as an answer shows it."""

    fields: dict[str, str]
    cut: bool


def show(name: str, tail: Tail, most: int) -> ShownStream:
    """The end of a stream: as text, or as base64 where it is none."""
    data = tail.last(most)
    cut = len(data) < tail.total
    if cut:
        # The first character may be half of one.
        data = data.lstrip(bytes(range(0x80, 0xC0))) if len(data) > 4 else data
    try:
        return ShownStream({name: data.decode()}, cut)
    except UnicodeDecodeError:
        return ShownStream({f"{name}_b64": base64.b64encode(data).decode("ascii")}, cut)


def show_both(stdout: Tail, stderr: Tail, most: int) -> tuple[dict[str, str], bool]:
    """Both streams within so many bytes; the one that needs less leaves the rest to the other."""
    half = most // 2
    of_stderr = min(stderr.total, max(half, most - stdout.total))
    out, err = show("stdout", stdout, most - of_stderr), show("stderr", stderr, of_stderr)
    return {**out.fields, **err.fields}, out.cut or err.cut


def fitted(make: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """The longest answer of those that ``make`` makes for a number of bytes of output that is short enough."""
    most = KEPT_BYTES
    while True:
        made = make(most)
        if most <= _SMALLEST_BYTES or _size(made) + _ENVELOPE_BYTES <= MAX_ANSWER_BYTES:
            return made
        most //= 2


def _text_of(structured: dict[str, Any]) -> str:
    return json.dumps(structured, ensure_ascii=False, indent=None)


def _size(structured: dict[str, Any]) -> int:
    """As it travels at worst: everything that is not ASCII escaped."""
    return len(json.dumps(structured)) + len(json.dumps(_text_of(structured)))


def answer(structured: dict[str, Any], pictures: list[bytes] | None = None, *, failed: bool = False) -> CallToolResult:
    """An answer, with those pictures that fit."""
    content: list[ContentBlock] = [TextContent(type="text", text=_text_of(structured))]
    room = MAX_ANSWER_BYTES - _ENVELOPE_BYTES - _size(structured)
    for picture in pictures or ():
        kind = picture_type(picture)
        encoded = base64.b64encode(picture).decode("ascii")
        if kind is not None and len(encoded) <= room:
            room -= len(encoded)
            content.append(ImageContent(type="image", data=encoded, mime_type=kind))
    return CallToolResult(content=content, structured_content=structured, is_error=failed)


def largest_picture(structured: dict[str, Any]) -> int:
    """Return the bytes of the largest picture that fits into the same result."""
    return max(0, MAX_ANSWER_BYTES - _ENVELOPE_BYTES - _size(structured)) * 3 // 4


def picture_type(data: bytes) -> str | None:
    """Return the media type of a picture by its first bytes: a wrong one makes models refuse the whole result."""
    for magic, kind in _MAGIC.items():
        if data.startswith(magic):
            return kind
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def explain(error: TideboxError, *, about: str | None = None) -> str:
    """An error in words that tell a model what to do next.

    ``about`` is what was asked for by its id: whether it does not exist or is somebody else's is not told.
    """
    if about is not None and (
        isinstance(error, NotFound) or (isinstance(error, Forbidden) and not isinstance(error, CapabilityDenied))
    ):
        return f"not found: {about}"
    advice = next((words for kind, words in _ADVICE if isinstance(error, kind)), None)
    if advice is None and error.retryable:
        pause = error.details.get("retry_after")
        advice = f"Try again in {pause:g} seconds." if isinstance(pause, int | float) else "Try again in a moment."
    message = error.message.rstrip(".")
    return f"{message}. {advice}" if advice else message


# The first class that fits counts, so those below come before those above them in the tree.
_ADVICE: tuple[tuple[type[TideboxError], str], ...] = (
    (PayloadTooLarge, "Send less, or write it to a file piece by piece with environment_exec."),
    (InvalidRequest, "Correct the arguments and call again."),
    (Unauthorized, "The user has to give this MCP server a valid key (TIDEBOX_API_KEY)."),
    (CapabilityDenied, "Do it without this tool."),
    (QuotaExceeded, "Release what is not needed any more, or wait."),
    (RateLimited, "Wait a moment; release sandboxes that are not needed any more."),
    (SandboxRecreated, "Write the files again, then repeat the call."),
    (Expired, "Call environment_acquire again; the files are gone."),
    (RuntimeUnavailable, "Call again without runtime; if that fails too, the user has to see to the server."),
    (Conflict, "Look at the state it is in, then decide."),
    (ServerUnreachable, "The Tidebox server has to be started, or its address corrected, by the user."),
    (ConnectionLost, "The program may have been ended by that. Call again."),
)


def refused(error: TideboxError, *, about: str | None = None) -> CallToolResult:
    """The answer of a tool that could not do what was asked."""
    text = explain(error, about=about)
    hidden = text.startswith("not found:")
    code = NotFound.code if hidden else error.code
    structured = {"error": {"code": code, "message": text, "retryable": error.retryable and not hidden}}
    content: list[ContentBlock] = [TextContent(type="text", text=text)]
    return CallToolResult(content=content, structured_content=structured, is_error=True)
