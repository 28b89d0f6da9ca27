"""One connection to a socket of a server or of a sandbox."""

from __future__ import annotations

import contextlib
from typing import Self
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tidebox.errors import TideboxError
from tidebox.sdk.errors import ClientClosed
from tidebox.sdk.failures import Told, from_answer, from_told
from tidebox.sdk.http import KEEP_ALIVE, USER_AGENT, Http
from tidebox.sdk.target import Target, is_local
from tidebox.sdk.transport import OPENING_ERRORS, Connect, closing_error, opening_error

_NORMAL = 1000
_CLOSE_SECONDS = 2.0
_MAX_FRAME_BYTES = 16 * 1024 * 1024
# Frames that come before they are read; whoever is further ahead of its reader has to wait.
_UNREAD_FRAMES = 64


class Socket:
    """Messages there and back, until one side is done."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._failure: TideboxError | None = None
        self._closed = False

    @classmethod
    async def open(cls, http: Http, url: str, token: str | None) -> Self:
        """Connect with a token or a key; raises if it is not good."""
        http.check_open()
        credential = {} if token is None else {"Authorization": f"Bearer {token}"}
        target = Target(url, token, is_local(urlsplit(url).hostname or ""))
        try:
            connection = await Connect(
                url,
                additional_headers={**http.headers, **credential},
                user_agent_header=USER_AGENT,
                compression=None,
                proxy=None if target.local else True,
                open_timeout=http.connect_timeout,
                # Answers to pings are not seen while frames wait to be read; the kernel looks after the connection.
                ping_interval=None,
                close_timeout=_CLOSE_SECONDS,
                max_size=_MAX_FRAME_BYTES,
                max_queue=_UNREAD_FRAMES,
            )
        except InvalidStatus as error:
            response = error.response
            raise from_answer(response.status_code, response.headers, bytes(response.body or b"")) from error
        except OPENING_ERRORS as error:
            raise opening_error(target, error) from error
        http.look_after(connection)
        sock = connection.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # of one that is lost already; whoever receives is told
            for option in KEEP_ALIVE:
                sock.setsockopt(*option)
        return cls(connection)

    async def send(self, message: bytes) -> None:
        """Send a message. That the connection is gone is for whoever receives."""
        try:
            await self._connection.send(message, text=True)
        except ConnectionClosed:
            pass

    async def receive(self) -> bytes | None:
        """The next message; None when the other side has nothing more to say."""
        try:
            return await self._connection.recv(decode=False)
        except ConnectionClosed as error:
            if self._closed:
                raise ClientClosed("the connection was closed by this side") from None
            if self._failure is not None:
                raise type(self._failure)(self._failure.message, **self._failure.details) from None
            if error.rcvd is not None and error.rcvd.code == _NORMAL:
                return None
            raise closing_error(error) from None

    def failed(self, told: Told) -> TideboxError:
        """The error that the other side told of; if it closes the connection then, that was why."""
        self._failure = from_told(told)
        return self._failure

    async def close(self, *, at_once: bool = False) -> None:
        """End the connection; with ``at_once``, without a goodbye, which would come after all that was not read yet."""
        self._closed = True
        if at_once:
            self._connection.transport.abort()
        await self._connection.close()
