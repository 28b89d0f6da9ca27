"""The sockets of programs: a program or a terminal, and one of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import time

import structlog

from tidebox.api.asgi import Scope, Send, context_of
from tidebox.api.dataplane.commands import DEFAULT_TERMINAL, make_command
from tidebox.api.dataplane.connection import (
    INTERNAL_ERROR,
    NORMAL,
    POLICY,
    ConnectionServices,
    DataplaneConnection,
    revoked,
)
from tidebox.api.dataplane.exec import seconds_of
from tidebox.api.dataplane.output_frames import OutputRenderer, shown_end
from tidebox.api.dataplane.paths import DataplaneTarget
from tidebox.broker.sandboxes.processes import ManagedProcess, OutputReader
from tidebox.broker.sandboxes.sandbox import SandboxAccess
from tidebox.errors import (
    BoxGone,
    Busy,
    CapabilityDenied,
    Conflict,
    ExecFailed,
    InvalidRequest,
    NotFound,
    TideboxError,
    Unauthorized,
)
from tidebox.model.sandbox import Capability
from tidebox.protocols.codec import text_of
from tidebox.protocols.dataplane.frames import InputTaken, Ready, Request, Resize, Signal, Start, Stdin

_log = structlog.get_logger("tidebox.api")

# A program that reads none of its full input for so long keeps its client from being heard.
STALL_SECONDS = 30.0
# For the rest of a character, which comes at once if it comes.
_TAIL_SECONDS = 0.05
# After these a socket for one program will not see it run.
_FINAL = (CapabilityDenied, ExecFailed, BoxGone)


class ProgramConnection(DataplaneConnection):
    """A socket on which programs are started."""

    def __init__(self, shared: ConnectionServices, scope: Scope, target: DataplaneTarget, send: Send) -> None:
        super().__init__(shared, scope, target, send)
        self._reader: OutputReader | None = None
        """Of the program that runs."""
        self._delivering: asyncio.Task[None] | None = None
        self._acknowledging: asyncio.Task[None] | None = None
        self._takes_input = False

    def _ends_with(self, error: TideboxError) -> int | None:
        if not self._target.operation or self._reader is not None or not isinstance(error, _FINAL):
            return None
        return POLICY if isinstance(error, CapabilityDenied) else NORMAL

    async def _handle(self, request: Request) -> None:
        if isinstance(request, Stdin):
            await self._feed(request)
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

    def _running(self) -> ManagedProcess | None:
        """The program that a frame is for; none if that was sent before its end was known to the client."""
        if self._reader is None and self._delivering is None:
            raise Conflict("no program was started on this connection")
        return self._reader.process if self._reader is not None else None

    async def _feed(self, request: Stdin) -> None:
        data = request.bytes()
        process = self._running()
        if process is None:
            return
        if not self._takes_input:
            raise Conflict("the program was started without input: start it with stdin")
        if not await process.feed(data, request.eof, STALL_SECONDS):
            await self._refuse(Busy(f"the program has read nothing of its input for {STALL_SECONDS:g} s"))

    # Programs

    async def _start(self, request: Start) -> None:
        if self._reader is not None:
            raise Conflict("a program runs on this connection already")
        access = self._access
        assert access is not None
        if access.expires_at <= time.time():
            raise Unauthorized("the token has expired; show a new one in an auth frame")
        if request.process_id is not None:
            process = self._find_process(access, request.process_id)
            reader = process.attach(request.offset)
            self._takes_input = True
            self._record_process(access, "sandbox.process.attached", "attached", process)
        else:
            reader = await self._start_process(access, request)
            process = reader.process
        self._reader = reader
        ready = Ready(process.pid, input_acks=request.input_acks)
        if process.detachable:
            ready.process_id, ready.offset = process.id, reader.offset
        await self._say(text_of(ready))
        if request.input_acks:
            acknowledging = self._acknowledge(process, process.input_taken)
            self._acknowledging = asyncio.get_running_loop().create_task(acknowledging, name="dataplane input")
        self._delivering = asyncio.get_running_loop().create_task(self._deliver(reader), name="dataplane")

    def _find_process(self, access: SandboxAccess, process_id: str) -> ManagedProcess:
        process = self._shared.processes.find(access.sandbox.id, process_id)
        if not process.detachable:
            raise NotFound("this sandbox has no program of that id", field="process_id")
        access.require(process.capability)
        return process

    async def _start_process(self, access: SandboxAccess, request: Start) -> OutputReader:
        given, env = request.words()
        if given is None and self._target.operation == "exec/ws":
            raise InvalidRequest("command: give one", field="command")
        as_shell = self._target.operation == "shell/ws" or given is None
        capability = Capability.SHELL if as_shell else Capability.EXEC
        access.require(capability)
        terminal = request.tty.size() if request.tty is not None else DEFAULT_TERMINAL if as_shell else None
        command = make_command(given, cwd=request.cwd, env=env, terminal=terminal)
        seconds = seconds_of(request.timeout_ms, self._shared.max_seconds)
        self._shared.audit.check()
        try:
            reader = await self._shared.processes.start(
                access.sandbox,
                command,
                capability=capability,
                detachable=request.on_disconnect == "detach",
                request_id=context_of(self._scope).request_id,
            )
        except TideboxError as error:
            self._record(access, "sandbox.process.refused", error.code)
            raise
        process = reader.process
        self._record_process(access, "sandbox.process.started", "started", process)
        if seconds is not None:
            process.end_after(seconds)
        self._takes_input = request.stdin or terminal is not None
        if not self._takes_input:
            process.put_input(b"", eof=True)
        return reader

    async def _deliver(self, reader: OutputReader) -> None:
        """Send what the program writes, and its end."""
        try:
            await self._deliver_all(reader)
        except (OSError, RuntimeError):
            pass  # as a server says that the connection is gone; the receiving side is told so as well
        except Exception as error:
            _log.error("unexpected_failure", request_id=context_of(self._scope).request_id, exc_info=error)
            await self._close(INTERNAL_ERROR)

    async def _deliver_all(self, reader: OutputReader) -> None:
        process = reader.process
        renderer = OutputRenderer(with_offsets=process.detachable)
        try:
            while (pieces := await reader.read(_TAIL_SECONDS if renderer.holds_back else None)) is not None:
                if not self._good:
                    raise revoked()
                made = [frame for piece in pieces for frame in renderer.feed(*piece)]
                await self._say(*(made if pieces else renderer.flush()))
            last = renderer.flush()
            if process.end is None:
                raise process.error or Conflict("the program has no end")
            await self._say(*last, text_of(shown_end(process.end)))
        except Unauthorized as error:
            await self._tell(error)
            return await self._close(POLICY)
        except TideboxError as error:
            await self._tell(error)
        if self._target.operation:
            await self._close(NORMAL)
        self._reader = None
        await reader.close()
        return None

    async def _acknowledge(self, process: ManagedProcess, before: int) -> None:
        """Tell how much input the program takes: a client who counts never has so much under way that it is in the
        way of other frames."""
        taken = before
        with contextlib.suppress(OSError, RuntimeError):  # the receiving side is told that the connection is gone
            while not process.over:
                if (taken := await process.input_changed(taken)) > before and not process.over:
                    await self._say(text_of(InputTaken(taken - before)))

    async def _leave(self) -> None:
        """The connection is over: its program is killed, or left running if that was asked for."""
        for task in (self._delivering, self._acknowledging):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task})
        if self._reader is not None:
            await self._reader.close()

    def _record_process(self, access: SandboxAccess, event: str, outcome: str, process: ManagedProcess) -> None:
        self._record(access, event, outcome, process_id=process.id, capability=process.capability.value)
