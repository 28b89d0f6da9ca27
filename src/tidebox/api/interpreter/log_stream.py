"""``WS /runs/{run_id}/stream``: the log of a run as it is made, and the input of an interactive one.

Frames are pulled from the log as fast as the client takes them, so a slow client holds up nobody: what it falls behind
is bounded by what the run keeps in memory, and then it is told how much it missed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Literal

import msgspec
import structlog

from tidebox.api.asgi import Message, Receive, Scope, Send, context_of, query_of
from tidebox.api.fathom.outbox import MORE, WRITE_CHARACTERS
from tidebox.api.interpreter import stream_frames
from tidebox.api.interpreter.paths import run_of_stream
from tidebox.api.services import Services
from tidebox.broker.runs.log_hub import LogReader
from tidebox.broker.storage.log_frames import LogFrame
from tidebox.errors import InvalidRequest, ShuttingDown, TideboxError, Unauthorized
from tidebox.model.log import Ended, Heartbeat
from tidebox.model.principal import ADMIN_ROLE, Caller, Principal

_log = structlog.get_logger("tidebox.api")

COMPONENT = "ws"
SURFACE = "interpreter"
_MAX_SEQ = 2**53
_NORMAL, _GOING_AWAY, _INTERNAL_ERROR = 1000, 1001, 1011
# May look up whose a run is; what is then done is done in that user's name.
_CLERK = Principal("signed-url", frozenset({ADMIN_ROLE}))


class _Stdin(msgspec.Struct, tag="stdin"):
    data: str
    encoding: Literal["utf8", "base64"] = "utf8"

    def bytes(self) -> bytes:
        """Decode the input for the program."""
        if self.encoding == "utf8":
            return self.data.encode()
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest("not valid base64", field="data") from None


class _StdinClose(msgspec.Struct, tag="stdin_close"):
    pass


_decode = msgspec.json.Decoder(_Stdin | _StdinClose).decode


class LogStreamSurface:
    """Serves WebSocket upgrades; who asks is known by a credential, or by a signed URL."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, from the upgrade to its end."""
        run_id = run_of_stream(scope["path"])
        assert run_id is not None
        query = query_of(scope)
        caller = await self._caller(scope, run_id, query)
        await self._services.rate_limiter.check(caller.principal)
        seq, tail = _start_position(query)
        with self._services.log_followers.following(caller.principal.user):
            reader = await self._services.broker.runs.read_log(caller, run_id, seq, tail=tail)
            try:
                await self._serve(
                    scope, receive, send, _LogStreamConnection(self._services, caller, run_id, reader, send)
                )
            finally:
                await reader.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send, stream: _LogStreamConnection) -> None:
        await receive()
        try:
            await send({"type": "websocket.accept"})
        except OSError:
            return  # gone before it was let in
        context_of(scope).status = HTTPStatus.SWITCHING_PROTOCOLS
        with self._services.metrics.connection(COMPONENT):
            await stream.serve(receive)

    async def _caller(self, scope: Scope, run_id: str, query: Mapping[str, str]) -> Caller:
        context = context_of(scope)
        principal = None
        if "token" in query:
            try:
                self._services.signer.verify(run_id, query)
            except Unauthorized:
                if not _has_credential(scope):
                    raise
            else:
                clerk = Caller(_CLERK, context.address, context.request_id, SURFACE)
                run = await self._services.broker.runs.get(clerk, run_id)
                principal = Principal(run.user)
        if principal is None:
            principal = self._services.authenticator.authenticate(scope["headers"])
        context.caller = context.caller_as(principal, SURFACE)
        return context.caller


def _has_credential(scope: Scope) -> bool:
    return any(name.lower() in (b"authorization", b"x-api-key") for name, _ in scope["headers"])


def _start_position(query: Mapping[str, str]) -> tuple[int | None, bool]:
    """Return the first entry to send, by number or as the tail of the log."""
    tail = {"": True, "1": True, "true": True, "0": False, "false": False}.get(query.get("tail", "0").lower())
    if tail is None:
        raise InvalidRequest("give true or false", field="tail")
    text = query.get("from_seq")
    if text is None:
        return None, tail
    if tail:
        raise InvalidRequest("give from_seq or tail, not both", field="tail")
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= _MAX_SEQ):
        raise InvalidRequest("give a whole number that is not negative", field="from_seq")
    return int(text), tail


class _LogStreamConnection:
    """One client of one log."""

    def __init__(self, services: Services, caller: Caller, run_id: str, reader: LogReader, send: Send) -> None:
        self._services = services
        self._runs = services.broker.runs
        self._caller = caller
        self._run_id = run_id
        self._reader = reader
        self._send = send
        self._seq = 0
        self._input_bytes = 0

    async def serve(self, receive: Receive) -> None:
        """Deliver the log, and take input, until the log is over or the client is gone."""
        delivering = asyncio.get_running_loop().create_task(self._deliver(), name="log-stream")
        try:
            while (message := await receive())["type"] == "websocket.receive":
                await self._handle(message)
        finally:
            delivering.cancel()
            await asyncio.wait({delivering})
            if self._input_bytes:
                self._runs.note_input(self._caller, self._run_id, self._input_bytes)

    async def _deliver(self) -> None:
        try:
            code = await self._deliver_all()
        except (OSError, RuntimeError):
            return  # as a server says that the connection is gone, or is being closed; the reader is told so as well
        except Exception as error:
            _log.error("unexpected_failure", request_id=self._caller.request_id, exc_info=error)
            code = _INTERNAL_ERROR
        with contextlib.suppress(OSError, RuntimeError):
            await self._send({"type": "websocket.close", "code": code})

    async def _deliver_all(self) -> int:
        """Send every entry; the code to close the connection with."""
        ended = False
        while batch := await self._reader.read():
            held_back = 0
            for position, item in enumerate(batch, start=1):
                text = stream_frames.render(item).decode()
                held_back += len(text)
                more = position < len(batch) and held_back < WRITE_CHARACTERS
                await self._send({"type": "websocket.send", "text": text, MORE: more})
                if not more:
                    held_back = 0
                if isinstance(item, LogFrame):
                    self._seq = item.seq
                    ended = isinstance(item.entry, Ended)
                    if isinstance(item.entry, Heartbeat):
                        self._services.metrics.heartbeat_sent(COMPONENT)
        if ended:
            return _NORMAL
        await self._tell(ShuttingDown("this server will not see the end of the run; connect again later"))
        return _GOING_AWAY

    async def _handle(self, message: Message) -> None:
        try:
            await self._take(message.get("text"))
        except TideboxError as error:
            with contextlib.suppress(OSError, RuntimeError):
                await self._tell(error)

    async def _tell(self, error: TideboxError) -> None:
        await self._send({"type": "websocket.send", "text": stream_frames.error(error, self._seq).decode()})

    async def _take(self, text: str | None) -> None:
        if text is None:
            raise InvalidRequest("messages are text frames, not binary ones")
        try:
            request = _decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidRequest(f"not a message of this protocol: {error}") from None
        if isinstance(request, _StdinClose):
            await self._runs.close_stdin(self._caller, self._run_id)
            return
        data = request.bytes()
        await self._runs.write_stdin(self._caller, self._run_id, data)
        self._input_bytes += len(data)
