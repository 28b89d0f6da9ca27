"""Requests to the service: with the credential, within their time, and again where that is safe and may help."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2

from tidebox.errors import Conflict, InvalidRequest, NotFound, PayloadTooLarge, ServerProtocolError, TideboxError
from tidebox.model.limits import GIB, MIB
from tidebox.model.principal import ClientSource
from tidebox.protocols.codec import decode
from tidebox.sdk.errors import ConnectionLost
from tidebox.sdk.http_client import HttpClient, read_whole
from tidebox.sdk.interpreter.requests import check_key
from tidebox.sdk.message_socket import MessageSocket
from tidebox.sdk.retries import RetryBudget
from tidebox.sdk.server_target import find_target

Answer = TypeVar("Answer")
Query = Mapping[str, str | list[str]]

PREFIX = "/api/v1/sandbox"
MAX_ANSWER_BYTES = 64 * MIB
"""The longest answer that is no file."""
MAX_FILE_BYTES = GIB
"""The longest file, where nothing else is said."""


def part(name: str) -> str:
    """A name as one part of a path."""
    if name in ("", ".", ".."):
        raise InvalidRequest(f"not the id of anything: {name!r}")
    return quote(name, safe="")


def below(path: str) -> str:
    """The path of a file as the rest of a path."""
    if not path or any(piece in ("", ".", "..") for piece in path.split("/")):
        raise InvalidRequest(f"not the path of a file: {path!r}", field="path")
    return quote(path)


class ServiceCalls:
    """Requests to the service of one server, with its credential, timeout and retries."""

    def __init__(
        self,
        url: str | None,
        api_key: str | None,
        *,
        connect_timeout: float,
        timeout: float,
        patience: float,
        source: ClientSource,
        http: HttpClient | None = None,
    ) -> None:
        self._target = find_target(url, api_key)
        self._http = http or HttpClient(connect_timeout, source)
        self._timeout = timeout
        self._patience = patience

    async def close(self) -> None:
        """End the connections."""
        await self._http.close()

    def patience(self) -> RetryBudget:
        """Make the retry budget of one call."""
        return RetryBudget(self._patience)

    async def ask(
        self,
        method: str,
        path: str,
        answer: type[Answer],
        content: Mapping[str, Any] | None = None,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        longer: float = 0.0,
    ) -> Answer:
        """The answer to a JSON request that can be repeated; ``longer`` is what the server takes on purpose."""
        body = await self.fetch(method, path, content, query=query, headers=headers, longer=longer)
        return decode(answer, body)

    async def ask_once(self, path: str, answer: type[Answer]) -> Answer:
        """The answer to a request for how things are now."""
        return decode(answer, await self._once("GET", path, None, None, None, self._timeout))

    async def create(
        self, path: str, answer: type[Answer], content: Mapping[str, Any], key: str | None = None
    ) -> Answer:
        """The answer to a request that makes something: once, however often it has to be sent."""
        key = secrets.token_hex(16) if key is None else check_key(key)
        return await self.ask("POST", path, answer, content, headers={"Idempotency-Key": key})

    async def fetch(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        longer: float = 0.0,
    ) -> bytes:
        """The body of the answer to a request that can be repeated."""
        return await self.persist(lambda: self._once(method, path, content, query, headers, self._timeout + longer))

    async def remove(self, path: str) -> None:
        """Delete something; what is gone when that has to be asked for again was deleted by the first request."""
        again = False

        async def attempt() -> bytes:
            nonlocal again
            try:
                return await self._once("DELETE", path, None, None, None, self._timeout)
            except NotFound:
                if not again:
                    raise
                return b""
            finally:
                again = True

        await self.persist(attempt)

    async def _once(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None,
        query: Query | None,
        headers: Mapping[str, str] | None,
        seconds: float,
    ) -> bytes:
        asking = self._http.ask(
            method,
            self._url(path),
            bearer=self._target.key,
            content=content,
            params=query,
            headers=headers,
            seconds=seconds,
            limit=MAX_ANSWER_BYTES,
        )
        try:
            async with asyncio.timeout(seconds):
                return await asking
        except TimeoutError:
            raise ConnectionLost(f"no whole answer came within {seconds:g} seconds") from None

    async def persist(
        self, attempt: Callable[[], Awaitable[bytes]], may_repeat: Callable[[], bool] = lambda: True
    ) -> bytes:
        """Retry ``attempt`` within the retry budget, and return its answer."""
        patience = self.patience()
        while True:
            try:
                return await attempt()
            except TideboxError as error:
                if not may_repeat():
                    raise
                await patience.overcome(error)

    async def send(
        self,
        path: str,
        body: bytes | AsyncIterator[bytes],
        content_type: str,
        *,
        query: Query | None = None,
        longer: float = 0.0,
    ) -> bytes:
        """The answer to a body that may take its time, as long as it moves."""
        exchange = self._http.exchange(
            "POST",
            self._url(path),
            bearer=self._target.key,
            body=body,
            params=query,
            headers={"Content-Type": content_type},
            seconds=self._timeout + longer,
        )
        async with exchange as response:
            try:
                async with asyncio.timeout(self._timeout):
                    return await read_whole(response, MAX_ANSWER_BYTES)
            except TimeoutError:
                raise ConnectionLost(f"no whole answer came within {self._timeout:g} seconds") from None

    async def connect(self, path: str) -> MessageSocket:
        """A socket of the service."""
        return await MessageSocket.open(self._http, self._target.ws_url + PREFIX + path, self._target.key)

    async def download(self, path: str, limit: int) -> AsyncGenerator[bytes]:
        """The bytes of a file; after a lost connection from where it was, if it still is the same file."""
        patience = self.patience()
        position, tag = 0, ""
        while True:
            headers = {"Range": f"bytes={position}-", "If-Range": tag} if position else {}
            try:
                exchange = self._http.exchange(
                    "GET", self._url(path), bearer=self._target.key, headers=headers, seconds=self._timeout
                )
                async with exchange as response:
                    _check_part(response, position)
                    tag = response.headers.get("etag", "")
                    async for piece in response.aiter_raw():
                        position += len(piece)
                        if position > limit:
                            raise PayloadTooLarge(f"the file has more than {limit} bytes", limit=limit)
                        patience.progress()
                        yield piece
                return
            except ConnectionLost as error:
                if position and (not tag or tag.startswith("W/")):
                    raise  # nobody could tell whether it is the same file
                await patience.overcome(error)
            except TideboxError as error:
                await patience.overcome(error)

    def _url(self, path: str) -> str:
        return self._target.http_url + PREFIX + path


def _check_part(response: httpx2.Response, position: int) -> None:
    """Check that an answer begins at the offset that was asked for."""
    if response.status_code == httpx2.codes.PARTIAL_CONTENT:
        if position and response.headers.get("content-range", "").startswith(f"bytes {position}-"):
            return
        raise ServerProtocolError("the server sent another part of the file than was asked for")
    if position:
        raise Conflict("the file became another one while it was downloaded")
