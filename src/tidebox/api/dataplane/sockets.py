"""The sockets: a program, or a terminal, and one client of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import NoReturn

import structlog

from tidebox.api.asgi import Receive, Scope, Send, context_of
from tidebox.api.dataplane import frames
from tidebox.api.dataplane.auth import caller, enter
from tidebox.api.dataplane.commands import DEFAULT_TERMINAL, make_command
from tidebox.api.dataplane.exec import seconds_of
from tidebox.api.dataplane.failures import problem_of
from tidebox.api.dataplane.frames import Auth, Close, Ping, Request, Resize, Signal, Start, Stdin
from tidebox.api.dataplane.paths import Target
from tidebox.api.dataplane.processes import Process, Processes, Reader, start
from tidebox.api.dataplane.rendering import Renderer
from tidebox.api.fathom.outbox import MORE, WRITE_CHARACTERS
from tidebox.api.rates import RateLimiter
from tidebox.broker.audit import Audit
from tidebox.broker.sandboxes import Access, Gate
from tidebox.errors import (
    BoxGone,
    Busy,
    CapabilityDenied,
    Conflict,
    ExecFailed,
    InvalidRequest,
    TideboxError,
    Unauthorized,
)
from tidebox.model.moments import iso_time
from tidebox.model.sandbox import Capability, named

_log = structlog.get_logger("tidebox.api")

AUTH_SECONDS = 5.0
# A program that reads none of its full input for so long keeps its client from being heard.
STALL_SECONDS = 30.0
# For the rest of a character, which comes at once if it comes.
_TAIL_SECONDS = 0.05
_NORMAL, _POLICY, _INTERNAL_ERROR = 1000, 1008, 1011
# After these a socket for one program will not see it run.
_FINAL = (CapabilityDenied, ExecFailed, BoxGone)


class _Over(Exception):
    """The connection ends."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What every connection works with."""

    gate: Gate
    audit: Audit
    rates: RateLimiter
    processes: Processes
    max_seconds: float
    max_message_bytes: int


class Connection:
    """One socket, from its upgrade to its end."""

    def __init__(self, desk: Desk, scope: Scope, target: Target, send: Send) -> None:
        self._desk = desk
        self._scope = scope
        self._target = target
        self._send = send
        self._access: Access | None = None
        self._process: Process | None = None
        self._reader: Reader | None = None
        self._delivering: asyncio.Task[None] | None = None
        self._takes_input = False
        self._closing = False

    async def admit(self, token: str) -> None:
        """Let a token in that came with the upgrade."""
        self._access = await enter(self._desk.gate, self._scope, self._target, token)
        await self._desk.rates.check(self._access.principal)

    async def serve(self, receive: Receive) -> None:
        """Take frames until the client is gone or has nothing more to do here."""
        try:
            if self._access is None:
                await self._introduce(receive)
            while (message := await receive())["type"] == "websocket.receive":
                if not self._closing:
                    await self._take(message.get("text"))
        except _Over as over:
            await self._close(over.code)
        except (OSError, RuntimeError):
            return  # as a server says that the connection is gone, or is being closed
        finally:
            await self._leave()

    async def _introduce(self, receive: Receive) -> None:
        """The first frame shows a token, and soon."""
        try:
            async with asyncio.timeout(AUTH_SECONDS):
                message = await receive()
        except TimeoutError:
            await self._refuse(Unauthorized(f"no auth frame within {AUTH_SECONDS:g} s"))
        if message["type"] != "websocket.receive":
            raise _Over(_NORMAL)
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
        if text is not None and len(text) > self._desk.max_message_bytes:
            raise InvalidRequest(f"a frame of more than {self._desk.max_message_bytes} characters")
        return frames.parse(text)

    async def _authenticate(self, request: Auth) -> None:
        access = await enter(self._desk.gate, self._scope, self._target, request.token)
        if self._access is None:
            await self._desk.rates.check(access.principal)
        elif access.sandbox.id != self._access.sandbox.id:
            raise Unauthorized("the token is for another sandbox than this connection's")
        self._access = access
        await self._say(frames.auth_ok(access.sandbox.id, named(access.capabilities), iso_time(access.expires_at)))

    async def _take(self, text: str | None) -> None:
        try:
            request = self._parse(text)
            if not (self._good or isinstance(request, Auth)):
                await self._refuse(_revoked())
            await self._handle(request)
        except TideboxError as error:
            await self._tell(error)
            if self._target.operation and self._process is None and isinstance(error, _FINAL):
                raise _Over(_POLICY if isinstance(error, CapabilityDenied) else _NORMAL) from None

    async def _handle(self, request: Request) -> None:
        if isinstance(request, Stdin):
            await self._feed(request)
        elif isinstance(request, Ping):
            await self._say(frames.PONG)
        elif isinstance(request, Resize):
            size = request.size()
            if (process := self._running()) is not None:
                if not process.terminal:
                    raise Conflict("the program has no terminal")
                await process.resize(*size)
        elif isinstance(request, Signal):
            number = request.number()
            if (process := self._running()) is not None:
                await process.signal(number)
        elif isinstance(request, Start):
            await self._start(request)
        elif isinstance(request, Auth):
            await self._authenticate(request)
        elif isinstance(request, Close):
            raise _Over(_NORMAL)

    def _running(self) -> Process | None:
        """The program that a frame is for; none if that was sent before its end was known to the client."""
        if self._process is None and self._delivering is None:
            raise Conflict("no program was started on this connection")
        return self._process

    async def _feed(self, request: Stdin) -> None:
        data = request.bytes()
        process = self._running()
        if process is None:
            return
        if not self._takes_input:
            raise Conflict("the program was started without input: start it with stdin")
        process.put_input(data, request.eof)
        if process.input_full and not await process.input_taken(STALL_SECONDS):
            await self._refuse(Busy(f"the program has read nothing of its input for {STALL_SECONDS:g} s"))

    # Programs

    async def _start(self, request: Start) -> None:
        if self._process is not None:
            raise Conflict("a program runs on this connection already")
        access = self._access
        assert access is not None
        if access.expires_at <= time.time():
            raise Unauthorized("the token has expired; show a new one in an auth frame")
        if request.process_id is not None:
            process = self._attached(access, request.process_id)
            reader = process.attach(request.offset)
            self._takes_input = True
            self._record(access, "sandbox.process.attached", "attached", process)
        else:
            process = await self._started(access, request)
            reader = process.attach()
        self._process, self._reader = process, reader
        process_id = process.id if process.detachable else None
        await self._say(frames.ready(process.pid, process_id, reader.position))
        self._delivering = asyncio.get_running_loop().create_task(self._deliver(process, reader), name="dataplane")

    def _attached(self, access: Access, process_id: str) -> Process:
        process = self._desk.processes.find(access.sandbox.id, process_id)
        access.require(process.capability)
        return process

    async def _started(self, access: Access, request: Start) -> Process:
        if request.command is None and self._target.operation == "exec/ws":
            raise InvalidRequest("command: give one", field="command")
        as_shell = self._target.operation == "shell/ws" or request.command is None
        capability = Capability.SHELL if as_shell else Capability.EXEC
        access.require(capability)
        terminal = request.tty.size() if request.tty is not None else DEFAULT_TERMINAL if as_shell else None
        command = make_command(request.command, cwd=request.cwd, env=request.env, terminal=terminal)
        seconds = seconds_of(request.timeout_ms, self._desk.max_seconds)
        detachable = request.on_disconnect == "detach"
        if detachable:
            self._desk.processes.check_room(access.sandbox.id)
        self._desk.audit.check()
        try:
            process = await start(access.sandbox, command, capability=capability, detachable=detachable)
        except TideboxError as error:
            self._record(access, "sandbox.process.refused", error.code)
            raise
        self._record(access, "sandbox.process.started", "started", process)
        if seconds is not None:
            process.end_after(seconds)
        if detachable:
            self._desk.processes.keep(access.sandbox.id, process)
        self._takes_input = request.stdin or terminal is not None
        if not self._takes_input:
            process.put_input(b"", eof=True)
        return process

    async def _deliver(self, process: Process, reader: Reader) -> None:
        """Send what the program writes, and its end."""
        try:
            await self._deliver_all(process, reader)
        except (OSError, RuntimeError):
            pass  # as a server says that the connection is gone; whoever receives is told so as well
        except Exception as error:
            _log.error("unexpected_failure", request_id=context_of(self._scope).request_id, exc_info=error)
            await self._close(_INTERNAL_ERROR)

    async def _deliver_all(self, process: Process, reader: Reader) -> None:
        renderer = Renderer(with_offsets=process.detachable)
        try:
            while (pieces := await reader.read(_TAIL_SECONDS if renderer.holds_back else None)) is not None:
                if not self._good:
                    raise _revoked()
                made = [frame for piece in pieces for frame in renderer.feed(*piece)]
                await self._say(*(made if pieces else renderer.flush()))
            last = renderer.flush()
            if process.ending is None:
                raise process.error or Conflict("the program has no end")
            await self._say(*last, frames.ended(process.ending))
        except Unauthorized as error:
            await self._tell(error)
            return await self._close(_POLICY)
        except TideboxError as error:
            await self._tell(error)
        if self._target.operation:
            await self._close(_NORMAL)
        self._process = self._reader = None
        return None

    async def _leave(self) -> None:
        """The connection is over: its program is killed, or left running if that was asked for."""
        delivering = self._delivering
        if delivering is not None and not delivering.done():
            delivering.cancel()
            await asyncio.wait({delivering})
        if self._process is not None and self._reader is not None:
            await self._process.detach(self._reader)

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
        await self._say(frames.error(problem_of(error), context_of(self._scope).request_id))

    async def _refuse(self, error: TideboxError) -> NoReturn:
        await self._tell(error)
        raise _Over(_POLICY)

    async def _close(self, code: int) -> None:
        if not self._closing:
            self._closing = True
            with contextlib.suppress(OSError, RuntimeError):
                await self._send({"type": "websocket.close", "code": code})

    def _record(self, access: Access, event: str, outcome: str, process: Process | None = None) -> None:
        fields = {"sandbox_id": access.sandbox.id, "binding_id": access.sandbox.binding_id}
        if process is not None:
            fields |= {"process_id": process.id, "capability": process.capability.value}
        self._desk.audit.record(event, caller(access, context_of(self._scope)), outcome, **fields)


def _revoked() -> Unauthorized:
    return Unauthorized("the token was revoked")
