"""Serves the built files of the web UI, and its one document for every other path below ``/webui/``."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from tidebox.api.asgi import Headers, Receive, Scope, Send, header
from tidebox.errors import NotFound

PREFIX = "/webui/"
BUILT = Path(__file__).parent / "built"

_ASSETS = "assets/"
_DOCUMENT = "index.html"
_NONCE = b"__CSP_NONCE__"
# Of the built files; what has another name is not served.
_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}
_SECURITY: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


def content_security_policy(nonce: str) -> str:
    """Return the Content-Security-Policy: our own files and server, and frames of artifacts that may do nothing."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            # The editor and the terminal make style elements while they run.
            f"style-src 'self' 'nonce-{nonce}'",
            "img-src 'self' blob: data:",
            "font-src 'self'",
            "connect-src 'self'",
            "frame-src blob:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def is_page(path: str) -> bool:
    """Whether a path is one of the web UI."""
    return path == PREFIX.rstrip("/") or path.startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class _BuiltFile:
    content: bytes
    compressed: bytes
    type: bytes
    tag: bytes


class Pages:
    """The files, read when the first of them is asked for; they are few and small."""

    def __init__(self) -> None:
        self._loading: asyncio.Task[dict[str, _BuiltFile]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if not path.startswith(PREFIX):
            return await _answer(scope, send, HTTPStatus.PERMANENT_REDIRECT, [(b"location", PREFIX.encode())], b"")
        files = await self._files()
        name = path.removeprefix(PREFIX)
        found = files.get(name)
        if found is None and name.startswith(_ASSETS):
            raise NotFound("no such file of the web UI")
        if found is None or name == _DOCUMENT:
            return await self._document(scope, send, files[_DOCUMENT])
        # What is in the directory of assets has a digest of its content in its name.
        kept = b"public, max-age=31536000, immutable" if name.startswith(_ASSETS) else b"no-cache"
        headers = [(b"content-type", found.type), (b"cache-control", kept), (b"etag", found.tag)]
        if header(scope, b"if-none-match") == found.tag:
            return await _answer(scope, send, HTTPStatus.NOT_MODIFIED, headers, b"")
        headers.append((b"vary", b"accept-encoding"))
        if b"gzip" in (header(scope, b"accept-encoding") or b""):
            headers.append((b"content-encoding", b"gzip"))
            return await _answer(scope, send, HTTPStatus.OK, headers, found.compressed)
        return await _answer(scope, send, HTTPStatus.OK, headers, found.content)

    async def _document(self, scope: Scope, send: Send, document: _BuiltFile) -> None:
        nonce = secrets.token_urlsafe(16)
        headers = [
            (b"content-type", document.type),
            (b"cache-control", b"no-cache"),
            (b"content-security-policy", content_security_policy(nonce).encode()),
        ]
        await _answer(scope, send, HTTPStatus.OK, headers, document.content.replace(_NONCE, nonce.encode()))

    async def _files(self) -> Mapping[str, _BuiltFile]:
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(_read, BUILT))
        # Shielded: a client that leaves must not cancel it for the others.
        return await asyncio.shield(self._loading)


def _read(directory: Path) -> dict[str, _BuiltFile]:
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.relative_to(directory).as_posix()] = _BuiltFile(
                content,
                gzip.compress(content, mtime=0),
                _TYPES[path.suffix],
                b'"%s"' % hashlib.sha256(content).hexdigest()[:32].encode(),
            )
    return found


async def _answer(scope: Scope, send: Send, status: HTTPStatus, headers: Headers, body: bytes) -> None:
    length = [] if status == HTTPStatus.NOT_MODIFIED else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *_SECURITY, *length]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
