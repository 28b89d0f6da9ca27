"""One connection to a socket of a server or of a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, cast

from websockets.exceptions import ConnectionClosed

from tidebox.errors import TideboxError
from tidebox.protocols.codec import ErrorBody
from tidebox.sdk.error_decoding import from_told
from tidebox.sdk.errors import ClientClosed
from tidebox.sdk.http_client import HttpClient, WebSocketConnection
from tidebox.sdk.transport import closing_error

_NORMAL = 1000


class MessageSocket:
    """Messages there and back, until one side is done."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection
        self._failure: TideboxError | None = None
        self._closed = False

    @classmethod
    async def open(
        cls, http: HttpClient, url: str, token: str | None, headers: Mapping[str, str] | None = None
    ) -> Self:
        """Connect with a token or a key; raises if it is not good."""
        return cls(await http.dial(url, token, headers))

    async def send(self, message: bytes) -> None:
        """Send a message. That the connection is lost is raised by ``receive``."""
        try:
            await self._connection.send(message, text=True)
        except ConnectionClosed:
            pass

    async def answered(self) -> bool:
        """Whether the other side has received all that was sent, asked by a ping; False if it is gone.

        One who reads receives the answer: it comes behind what was not read yet.
        """
        try:
            await (await self._connection.ping())
        except ConnectionClosed:
            return False
        return True

    async def receive(self) -> bytes | None:
        """The next message; None when the other side has nothing more to say."""
        try:
            return cast(bytes, await self._connection.recv(decode=False))
        except ConnectionClosed as error:
            if self._closed:
                raise ClientClosed("the connection was closed by this side") from None
            if self._failure is not None:
                raise type(self._failure)(self._failure.message, **self._failure.details) from None
            if error.rcvd is not None and error.rcvd.code == _NORMAL:
                return None
            raise closing_error(error) from None

    def failed(self, told: ErrorBody) -> TideboxError:
        """The error that the other side told of; if it closes the connection then, that was why."""
        self._failure = from_told(told)
        return self._failure

    async def close(self, *, at_once: bool = False) -> None:
        """End the connection; with ``at_once``, without a goodbye, which would come after all that was not read yet."""
        self._closed = True
        if at_once:
            self._connection.transport.abort()
        await self._connection.close()
