"""The base of the dataplane's WebSocket connections: a token first, then frames, and an end that is told."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, NoReturn

from tidebox.api.asgi import Receive, Scope, Send, context_of
from tidebox.api.dataplane.auth import authenticate, caller
from tidebox.api.dataplane.dialect import problem_of
from tidebox.api.dataplane.paths import DataplaneTarget
from tidebox.api.fathom.outbox import MORE, WRITE_CHARACTERS
from tidebox.api.rate_limit import RateLimiter
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.sandboxes.processes import ProcessTable
from tidebox.broker.sandboxes.sandbox import Gate, SandboxAccess
from tidebox.errors import InvalidRequest, TideboxError, Unauthorized
from tidebox.model.sandbox import named
from tidebox.model.timestamps import iso_time
from tidebox.protocols.codec import ErrorBody, encodable, text_of
from tidebox.protocols.dataplane.frames import Auth, AuthOk, Close, Error, Ping, Pong, Request, decode_request

AUTH_SECONDS = 5.0
NORMAL, POLICY, INTERNAL_ERROR = 1000, 1008, 1011
_PONG = text_of(Pong())


class CloseConnection(Exception):
    """Raised to close the connection with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionServices:
    """Services and limits that all connections share."""

    gate: Gate
    audit: Audit
    rates: RateLimiter
    processes: ProcessTable
    max_seconds: float
    max_message_bytes: int


class DataplaneConnection(abc.ABC):
    """One WebSocket connection, from its upgrade to its end."""

    def __init__(self, shared: ConnectionServices, scope: Scope, target: DataplaneTarget, send: Send) -> None:
        self._shared = shared
        self._scope = scope
        self._target = target
        self._send = send
        self._access: SandboxAccess | None = None
        self._closing = False

    async def admit(self, token: str) -> None:
        """Authenticate with the token that came with the upgrade."""
        self._access = await authenticate(self._shared.gate, self._scope, self._target, token)
        await self._shared.rates.check(self._access.principal)

    async def serve(self, receive: Receive) -> None:
        """Take frames until the client is gone or has nothing more to do here."""
        try:
            if self._access is None:
                await self._authenticate_first_frame(receive)
            await self._begin()
            while (message := await receive())["type"] == "websocket.receive":
                if not self._closing:
                    await self._take(message.get("text"))
        except CloseConnection as over:
            await self._close(over.code)
        except (OSError, RuntimeError):
            return  # as a server says that the connection is gone, or is being closed
        finally:
            await self._leave()

    async def _begin(self) -> None:
        """Begin to serve the authenticated client; a hook for subclasses."""
        return

    @abc.abstractmethod
    async def _handle(self, request: Request) -> None:
        """Handle a frame of a type that not every socket takes."""

    @abc.abstractmethod
    async def _leave(self) -> None:
        """Release what the connection holds, at its end."""

    def _ends_with(self, error: TideboxError) -> int | None:
        """The code to close with after an error was told; None if the connection stays."""
        return None

    async def _authenticate_first_frame(self, receive: Receive) -> None:
        """Authenticate by the first frame, which must come soon."""
        try:
            async with asyncio.timeout(AUTH_SECONDS):
                message = await receive()
        except TimeoutError:
            await self._refuse(Unauthorized(f"no auth frame within {AUTH_SECONDS:g} s"))
        if message["type"] != "websocket.receive":
            raise CloseConnection(NORMAL)
        try:
            request = self._parse(message.get("text"))
            if not isinstance(request, Auth):
                raise Unauthorized("the first frame must be auth")
            await self._authenticate(request)
        except TideboxError as error:
            await self._refuse(error)

    @property
    def _good(self) -> bool:
        return self._access is not None and self._access.still_good()

    def _parse(self, text: str | None) -> Request:
        if text is not None and len(text) > self._shared.max_message_bytes:
            raise InvalidRequest(f"a frame of more than {self._shared.max_message_bytes} characters")
        return decode_request(text)

    async def _authenticate(self, request: Auth) -> None:
        access = await authenticate(self._shared.gate, self._scope, self._target, request.token)
        if self._access is None:
            await self._shared.rates.check(access.principal)
        elif access.sandbox.id != self._access.sandbox.id:
            raise Unauthorized("the token is for another sandbox than this connection's")
        self._access = access
        good = AuthOk(access.sandbox.id, named(access.capabilities), iso_time(access.expires_at))
        await self._say(text_of(good))

    async def _take(self, text: str | None) -> None:
        try:
            request = self._parse(text)
            if not (self._good or isinstance(request, Auth)):
                await self._refuse(revoked())
            if isinstance(request, Ping):
                await self._say(_PONG)
            elif isinstance(request, Auth):
                await self._authenticate(request)
            elif isinstance(request, Close):
                raise CloseConnection(NORMAL)
            else:
                await self._handle(request)
        except TideboxError as error:
            await self._tell(error)
            if (code := self._ends_with(error)) is not None:
                raise CloseConnection(code) from None

    # What is said

    async def _say(self, *texts: str) -> None:
        held_back = 0
        for position, text in enumerate(texts, start=1):
            held_back += len(text)
            more = position < len(texts) and held_back < WRITE_CHARACTERS
            await self._send({"type": "websocket.send", "text": text, MORE: more})
            if not more:
                held_back = 0

    async def _tell(self, error: TideboxError) -> None:
        problem = problem_of(error)
        told = ErrorBody(
            problem.code, encodable(problem.message), problem.retryable, context_of(self._scope).request_id
        )
        await self._say(text_of(Error(told)))

    async def _refuse(self, error: TideboxError) -> NoReturn:
        await self._tell(error)
        raise CloseConnection(POLICY)

    async def _close(self, code: int) -> None:
        if not self._closing:
            self._closing = True
            with contextlib.suppress(OSError, RuntimeError):
                await self._send({"type": "websocket.close", "code": code})

    def _record(self, access: SandboxAccess, event: str, outcome: str, **fields: Any) -> None:
        sandbox = access.sandbox
        who = caller(access, context_of(self._scope))
        self._shared.audit.record(event, who, outcome, sandbox_id=sandbox.id, binding_id=sandbox.binding_id, **fields)


def revoked() -> Unauthorized:
    """Return the error for a token that was revoked."""
    return Unauthorized("the token was revoked")
