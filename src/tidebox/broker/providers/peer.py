"""Another Tidebox server, over HTTP: what is asked of it, and the ways its failures show."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

import tidebox
from tidebox.errors import ProviderUnavailable, Unauthorized
from tidebox.model.limits import MIB

_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 15.0
# Well before the other side closes a connection that nobody uses: a request must not meet its end.
_IDLE_SECONDS = 20.0
# One that does not answer is asked last for a while.
_DOWN_SECONDS = 5.0
_MAX_ANSWER_BYTES = MIB
_MAX_FRAME_BYTES = 16 * MIB
# A program may be silent for as long as it runs, so it is the kernel that looks whether the other side is still there.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_NOT_THIS_SERVER = (401, 403, 408, 429)


class _Connect(connect):
    """Connects, and follows no redirect: a pass goes to no other host."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Unreached(ProviderUnavailable):
    """Nothing of a request has come there."""


class Refused(Exception):
    """The server answered, and would not do it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message


class Peer:
    """Connections to another server. Its key is sent there, and told to nobody."""

    def __init__(self, name: str, url: str, key: str, ca: Path | None = None) -> None:
        self.name = name
        self.url = url
        self._key = key
        self._tls = ssl.create_default_context(cafile=ca) if url.startswith("https:") else None
        self._down_until = 0.0
        self._failures: tuple[float, float] | None = None
        """When it did not answer first and last, since it last did."""
        transport = httpx2.AsyncHTTPTransport(
            verify=self._tls or False,
            # How many there are is bounded by how many are open to this server.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=_IDLE_SECONDS),
            socket_options=_KEEP_ALIVE,
            trust_env=False,
        )
        self._http = httpx2.AsyncClient(
            base_url=url,
            transport=transport,
            headers={"User-Agent": f"tidebox/{tidebox.__version__}"},
            trust_env=False,
        )

    @property
    def up(self) -> bool:
        """Whether it answered when it was last tried, or that is a while ago."""
        return time.monotonic() >= self._down_until

    @property
    def silent_for(self) -> float:
        """The time between the first and the last try since it answered; 0 where it did."""
        return 0.0 if self._failures is None else self._failures[1] - self._failures[0]

    def _answered(self) -> None:
        self._down_until, self._failures = 0.0, None

    async def ask(
        self, method: str, path: str, content: Any = None, *, seconds: float = _ANSWER_SECONDS
    ) -> dict[str, Any]:
        """The answer to a request that may be sent twice.

        Raises ``Refused``, ``Unreached``, or ``ProviderUnavailable`` where it is not known what came of it.
        """
        try:
            return await self._ask(method, path, content, seconds)
        except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError):
            pass  # a connection that was kept has met its end
        except httpx2.HTTPError as error:
            raise self._failed(error) from None
        try:
            return await self._ask(method, path, content, seconds)
        except httpx2.HTTPError as error:
            raise self._failed(error) from None

    async def _ask(self, method: str, path: str, content: Any, seconds: float) -> dict[str, Any]:
        body = msgspec.json.encode(content) if content is not None else None
        headers = {"Authorization": f"Bearer {self._key}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        timeout = httpx2.Timeout(seconds, connect=_CONNECT_SECONDS)
        async with self._http.stream(method, path, content=body, headers=headers, timeout=timeout) as answer:
            self._answered()
            found = await _content(answer)
        if answer.is_success:
            return found
        error = found.get("error")
        said = error if isinstance(error, dict) else {}
        code, message = str(said.get("code", "")), str(said.get("message", ""))[:500]
        if answer.status_code >= 500 or (answer.status_code in _NOT_THIS_SERVER and code != "CAPABILITY_DENIED"):
            raise ProviderUnavailable(
                f"the provider {self.name} answers {answer.status_code} {code}".rstrip(), provider=self.name
            )
        raise Refused(answer.status_code, code, message)

    @contextlib.asynccontextmanager
    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterator[bytes] | None,
        token: str,
        *,
        silence: float | None,
    ) -> AsyncIterator[httpx2.Response]:
        """The answer to a request with a pass, its body unread; both bodies go on as fast as both sides take them.

        ``silence`` is for how many seconds the other side may do nothing at all.
        """
        # Answers come as they are, or they would have to be packed again.
        shown = {"Accept-Encoding": "identity", **headers, "Authorization": f"Bearer {token}"}
        timeout = httpx2.Timeout(silence, connect=_CONNECT_SECONDS)
        try:
            async with self._http.stream(method, target, content=body, headers=shown, timeout=timeout) as answer:
                self._answered()
                yield answer
        except httpx2.HTTPError as error:
            raise self._failed(error) from None

    async def connect(self, target: str, token: str, request_id: str | None = None) -> ClientConnection:
        """A socket that was opened with a pass; raises ``Unauthorized`` where that is not good."""
        headers = {"Authorization": f"Bearer {token}"}
        if request_id is not None:
            headers["X-Request-ID"] = request_id
        try:
            socket = await _Connect(
                self.url.replace("http", "ws", 1) + target,
                additional_headers=headers,
                user_agent_header=f"tidebox/{tidebox.__version__}",
                compression=None,
                proxy=None,
                ssl=self._tls,
                open_timeout=_ANSWER_SECONDS,
                close_timeout=_CONNECT_SECONDS,
                max_size=_MAX_FRAME_BYTES,
            )
            self._answered()
            return socket
        except InvalidStatus as error:
            if error.response.status_code == 401:
                raise Unauthorized("the pass is not good any more") from None
            raise self._failed(error) from None
        except (OSError, TimeoutError, WebSocketException) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> ProviderUnavailable:
        """What to say; nothing of what the error holds, which may be a header."""
        message = f"the provider {self.name} does not answer"
        unreached = isinstance(error, (*_NOT_CONNECTED, OSError))
        if unreached or isinstance(error, httpx2.TimeoutException):
            now = time.monotonic()
            self._down_until = now + _DOWN_SECONDS
            self._failures = (now if self._failures is None else self._failures[0], now)
        return (Unreached if unreached else ProviderUnavailable)(message, provider=self.name)

    async def close(self) -> None:
        """Close every connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._http.aclose()


async def _content(answer: httpx2.Response) -> dict[str, Any]:
    content = bytearray()
    async for piece in answer.aiter_raw():
        content += piece
        if len(content) > _MAX_ANSWER_BYTES:
            raise httpx2.RemoteProtocolError("the answer is too long")
    try:
        return msgspec.json.decode(bytes(content), type=dict[str, Any]) if content else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
