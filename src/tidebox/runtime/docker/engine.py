"""A client of the Engine API: every call has its time, its size and its error."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from tidebox.errors import BoxGone, ProvisionFailed, RuntimeUnavailable, StartupTimeout, TideboxError
from tidebox.runtime.docker.connection import MOST_HEAD, Connection, Lost, Malformed
from tidebox.runtime.docker.endpoint import Endpoint
from tidebox.runtime.link.stream import Connect

# Of the oldest engine that has all that is asked for: Docker 20.10, and Podman 4 says as much.
API = "v1.41"
CALL_SECONDS = 30.0
_MOST_BODY = 16 << 20
_MOST_LINE = 1 << 20
_MOST_CALLS = 64
_MOST_MESSAGE = 500
_SWITCHED, _OK, _MISSING = 101, 200, 404


class EngineRefused(ProvisionFailed):
    """The engine answered that it will not."""

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message, **details)
        self.status: int = details["status"]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    bodiless: bool = False


class DockerEngine:
    """The engine at an address."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._slots = asyncio.Semaphore(_MOST_CALLS)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        seconds: float = CALL_SECONDS,
    ) -> Any:
        """One call; its answer as JSON has it, None where there is none.

        ``body`` is JSON, or a tar archive where it is bytes. Raises ``RuntimeUnavailable`` where no engine answers,
        ``EngineRefused`` where it will not, ``StartupTimeout`` after ``seconds``, ``BoxGone`` where it ends meanwhile.
        """
        async with self._within(seconds, method, path), self._slots:
            async with self._request(method, path, query, body) as (connection, answer):
                data = bytearray()
                async with aclosing(_body(connection, answer)) as pieces:
                    async for piece in pieces:
                        data += piece
                        if len(data) > _MOST_BODY:
                            raise Malformed("an answer that is too long")
                return json.loads(data) if data else None

    async def lines(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The answer of a call that takes long, line by line; who asks sees to the time."""
        with self._translated(method, path):
            async with self._request(method, path, query, None) as (connection, answer):
                line = b""
                async with aclosing(_body(connection, answer)) as pieces:
                    async for piece in pieces:
                        *whole, line = (line + piece).split(b"\n")
                        if len(line) > _MOST_LINE:
                            raise Malformed("a line that is too long")
                        for one in whole:
                            if one.strip():
                                yield json.loads(one)
                if line.strip():
                    yield json.loads(line)

    async def attach(self, container: str, *, seconds: float = CALL_SECONDS) -> Connect:
        """The standard streams of a container, from now on."""
        path = f"/containers/{quote(container)}/attach"
        query = dict.fromkeys(("stream", "stdin", "stdout", "stderr"), "1")
        async with self._within(seconds, "POST", path):
            connection = await Connection.open(self.endpoint)
            try:
                _send(connection, "POST", path, query, None, {"Connection": "Upgrade", "Upgrade": "tcp"})
                answer = await _head(connection)
                # An engine may also just go on with the streams, as the first ones did.
                if answer.status not in (_SWITCHED, _OK):
                    raise await _refusal(connection, answer, path)
            except BaseException:
                connection.close()
                raise
        return connection.hand_over

    async def stat(self, container: str, path: str) -> dict[str, Any] | None:
        """Return the metadata of a path in a container, with its ``linkTarget``; None where there is nothing."""
        place = f"/containers/{quote(container)}/archive"
        async with self._within(CALL_SECONDS, "HEAD", place), self._slots:
            try:
                async with self._request("HEAD", place, {"path": path}, None) as (_, answer):
                    told = answer.headers.get("x-docker-container-path-stat", "")
            except EngineRefused as error:
                if error.status != _MISSING:
                    raise
                return None
        with self.understood("a file"):
            return dict(json.loads(base64.b64decode(told)))

    @contextmanager
    def understood(self, what: str) -> Iterator[None]:
        """Read an answer: one whose form is not the agreed one is like one that is no JSON."""
        try:
            yield
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            reason = f"{what} is not told as agreed ({type(error).__name__})"
            raise _no_sense(self.endpoint.name, reason) from None

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any
    ) -> AsyncIterator[tuple[Connection, _Answer]]:
        connection = await Connection.open(self.endpoint)
        try:
            _send(connection, method, path, query, body, {"Connection": "close"})
            answer = await _head(connection, bodiless=method == "HEAD")
            if answer.status >= 300 and answer.status != 304:  # which says that it is so already
                raise await _refusal(connection, answer, path)
            yield connection, answer
        finally:
            connection.close()

    @asynccontextmanager
    async def _within(self, seconds: float, method: str, path: str) -> AsyncIterator[None]:
        limit = asyncio.timeout(seconds)
        try:
            with self._translated(method, path):
                async with limit:
                    yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise StartupTimeout(
                f"the Docker engine did not answer within {seconds:g} s ({method} {path})", step="engine"
            ) from None

    def _translated(self, method: str, path: str) -> _Translated:
        return _Translated(self.endpoint, f"{method} {path}")


class _Translated:
    """Translates failures of a connection into the errors that callers who run programs know."""

    def __init__(self, endpoint: Endpoint, what: str) -> None:
        self._endpoint = endpoint
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TimeoutError | TideboxError):
            return
        name = self._endpoint.name
        if isinstance(error, Lost | ConnectionResetError | BrokenPipeError):
            raise BoxGone(f"the Docker engine at {name} ended while it was asked ({self._what})") from None
        if isinstance(error, ssl.SSLError):
            raise RuntimeUnavailable(f"no Docker engine is trusted at {name}: {error}") from None
        if isinstance(error, OSError):
            # Names that cannot be looked up have numbers of their own.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            hint = "; this user may not use it" if error.errno in (errno.EACCES, errno.EPERM) else ""
            raise RuntimeUnavailable(f"no Docker engine answers at {name}: {reason}{hint}") from None
        if isinstance(error, Malformed | ValueError | RecursionError):
            raise _no_sense(name, str(error)) from None


def _no_sense(name: str, reason: str) -> ProvisionFailed:
    return ProvisionFailed(f"the Docker engine at {name} gave no sensible answer: {reason}", step="engine")


def _send(
    connection: Connection,
    method: str,
    path: str,
    query: Mapping[str, str] | None,
    body: Any,
    headers: Mapping[str, str],
) -> None:
    target = f"/{API}{path}" + (f"?{urlencode(query)}" if query else "")
    fields = {"Host": "docker", "User-Agent": "tidebox", **headers}
    content = b""
    if isinstance(body, bytes):
        content = body
        fields["Content-Type"] = "application/x-tar"
    elif body is not None:
        content = json.dumps(body).encode()
        fields["Content-Type"] = "application/json"
    if method != "GET":
        fields["Content-Length"] = str(len(content))
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    connection.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("ascii") + content)


async def _head(connection: Connection, bodiless: bool = False) -> _Answer:
    words = (await connection.line()).split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise Malformed("no HTTP")
    headers: dict[str, str] = {}
    size = 0
    while line := await connection.line():
        size += len(line)
        if size > MOST_HEAD:
            raise Malformed("too many headers")
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return _Answer(int(words[1]), headers, bodiless)


async def _body(connection: Connection, answer: _Answer) -> AsyncGenerator[bytes, None]:
    if answer.bodiless or answer.status in (204, 304):
        return
    if answer.headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await connection.line()).split(b";")[0], 16):
            async for piece in connection.exactly(size):
                yield piece
            await connection.line()
    elif "content-length" in answer.headers:
        async for piece in connection.exactly(int(answer.headers["content-length"])):
            yield piece
    else:
        async for piece in connection.rest():
            yield piece


async def _refusal(connection: Connection, answer: _Answer, path: str) -> EngineRefused:
    data = b""
    async with aclosing(_body(connection, answer)) as pieces:
        async for piece in pieces:
            data += piece
            if len(data) > MOST_HEAD:
                break
    try:
        message = str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = data.decode("utf-8", "replace")
    return EngineRefused(
        f"the Docker engine refused it: {message[:_MOST_MESSAGE].strip()}", status=answer.status, step=path
    )
