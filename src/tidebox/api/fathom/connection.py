"""One connection: its executions, each under the id that its client gave it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from errno import ENOENT

from tidebox.api.asgi import Message, Receive
from tidebox.api.fathom import answers
from tidebox.api.fathom.execute_order import make_order
from tidebox.api.fathom.outbox import MAX_DATA_BYTES, FathomOutbox
from tidebox.api.fathom.requests import MessageRefused, parse, refuse_oversized
from tidebox.api.fathom.text_stream import TextStream
from tidebox.api.rate_limit import RateLimiter
from tidebox.broker.broker import Broker
from tidebox.broker.runs.ephemeral import EphemeralExecution
from tidebox.errors import Busy, ExecFailed, InvalidRequest, TideboxError, UnknownLanguage
from tidebox.model.events import Event, OutputEvent, Started, StreamName
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest
from tidebox.model.languages import Languages
from tidebox.model.limits import MIB
from tidebox.model.principal import Caller
from tidebox.model.result import Outcome, Usage
from tidebox.protocols.fathom import Cancel, Code, Execute, FathomUsage, Ping, Request, Status

# However a program takes being cancelled, it is dead after this time.
_CANCEL_SECONDS = 3.0

_STATUS: dict[Outcome, Status] = {
    Outcome.SIGNALED: Status.FAILED,
    Outcome.TIMEOUT: Status.TIMEOUT,
    Outcome.OOM: Status.OOM,
    Outcome.OUTPUT_LIMIT: Status.FAILED,
    Outcome.CANCELLED: Status.CANCELLED,
    Outcome.COMPILE_FAILED: Status.FAILED,
    Outcome.COMPILE_TIMEOUT: Status.TIMEOUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FathomSettings:
    """Settings and limits of every connection."""

    languages: Mapping[str, str]
    known: Languages
    compile_timeout: float
    max_executions: int
    max_message_bytes: int
    buffer_frames: int
    orphan_grace: float


def error_code(error: TideboxError) -> Code:
    """Return the protocol's error code for an error of ours."""
    if isinstance(error, Busy):
        return "SANDBOX_OVERLOADED"
    # A box starts nothing but the language's interpreter by itself.
    if isinstance(error, UnknownLanguage) or (isinstance(error, ExecFailed) and error.details.get("errno") == ENOENT):
        return "LANGUAGE_NOT_SUPPORTED"
    return "INVALID_REQUEST" if isinstance(error, InvalidRequest) else "INTERNAL_ERROR"


class _ConnectedExecution:
    """One execution of a connection; also the receiver of its events."""

    __slots__ = ("id", "execution", "_outbox", "_order", "_streams", "_over_by")

    def __init__(self, id: str, order: ExecutionRequest, outbox: FathomOutbox) -> None:
        self.id = id
        self.execution: EphemeralExecution | None = None
        self._order = order
        self._outbox = outbox
        self._streams: dict[StreamName, TextStream] = {"stdout": TextStream(), "stderr": TextStream()}
        self._over_by = math.inf

    async def __call__(self, event: Event) -> None:
        """Send what happened, waiting while the client has too much to read already."""
        if self._outbox.closed:
            return
        if isinstance(event, OutputEvent):
            stream, data = event.stream, event.data
            for start in range(0, len(data), MAX_DATA_BYTES):
                piece = data[start : start + MAX_DATA_BYTES]
                text = self._streams[stream].feed(piece)
                if text:
                    self._outbox.put_output(self.id, stream, text, len(piece))
            if self._outbox.full:
                await self._wait_for_reader()
        elif isinstance(event, Started):
            self._expect_end(self._order.spec.limits.timeout)
            self._outbox.put(answers.status(self.id, Status.RUNNING))

    async def _wait_for_reader(self) -> None:
        """Apply back-pressure to the program, but not longer than it may run.

        What is left to send of a dead one is little, and its slot is wanted by others.
        """
        loop = asyncio.get_running_loop()
        while self._outbox.full and (seconds := self._over_by - loop.time()) > 0:
            await self._outbox.changed(seconds)

    def _expect_end(self, seconds: float) -> None:
        self._over_by = min(self._over_by, asyncio.get_running_loop().time() + seconds)

    def cancel(self) -> None:
        """Cancel the execution; output that it wrote before is still sent."""
        assert self.execution is not None
        self.execution.cancel()
        self._expect_end(_CANCEL_SECONDS)
        self._outbox.wake()

    def conclude(self) -> None:
        """Send how the execution ended: its status, result or error."""
        assert self.execution is not None
        ending = self.execution.ended
        if isinstance(ending, ExecutionOutcome) and ending.not_started is not None:
            line = ending.not_started.stderr
            self._outbox.put_output(self.id, "stderr", self._streams["stderr"].feed(line), len(line))
        self._flush()
        if isinstance(ending, TideboxError):
            self._outbox.put(answers.error(self.id, error_code(ending), ending.message))
            return
        if ending.outcome is Outcome.OUTPUT_LIMIT:
            message = f"Output exceeded max_output_bytes ({self._order.spec.limits.output})"
            self._outbox.put(answers.error(self.id, "OUTPUT_LIMIT", message))
        self._outbox.put(answers.status(self.id, _status(ending)))
        duration = round(ending.usage.wall_seconds * 1000)
        self._outbox.put(answers.result(self.id, ending.exit_code, duration, _resources(ending.usage)))

    def _flush(self) -> None:
        for name, stream in self._streams.items():
            text = stream.flush()
            if text:
                self._outbox.put_output(self.id, name, text, len(text))


def _status(ending: ExecutionOutcome) -> Status:
    if ending.outcome is Outcome.EXITED:
        return Status.COMPLETED if ending.exit_code == 0 else Status.FAILED
    return _STATUS[ending.outcome]


def _resources(usage: Usage) -> FathomUsage:
    memory, cpu = usage.memory_peak, usage.cpu_seconds
    return FathomUsage(
        None if memory is None else math.ceil(memory / MIB),
        None if cpu is None else round(cpu * 1000),
    )


class FathomConnection:
    """Serves one client until it is gone."""

    def __init__(
        self, outbox: FathomOutbox, caller: Caller, broker: Broker, rates: RateLimiter, terms: FathomSettings
    ) -> None:
        self._outbox = outbox
        self._caller = caller
        self._broker = broker
        self._rates = rates
        self._terms = terms
        self._runs: dict[str, _ConnectedExecution] = {}

    async def serve(self, receive: Receive) -> None:
        """Answer messages until the connection is gone."""
        try:
            while (message := await receive())["type"] == "websocket.receive":
                await self._handle(message)
        finally:
            self._leave()

    async def _handle(self, message: Message) -> None:
        while self._outbox.flooded:
            await self._outbox.changed()
        if self._outbox.closed:
            return
        try:
            await self._answer(self._parsed(message))
        except MessageRefused as refusal:
            self._outbox.put(answers.error(refusal.id, refusal.code, refusal.message))

    def _parsed(self, message: Message) -> Request:
        text = message.get("text")
        if text is None:
            raise MessageRefused("INVALID_REQUEST", "messages are text frames, not binary ones")
        limit = self._terms.max_message_bytes
        # A character is at most four bytes long.
        if len(text) * 4 > limit and len(text.encode()) > limit:
            refuse_oversized(text, limit)
        return parse(text)

    async def _answer(self, request: Request) -> None:
        if isinstance(request, Execute):
            await self._execute(request)
        elif isinstance(request, Cancel):
            self._cancel(request)
        elif isinstance(request, Ping):
            load = self._broker.load
            self._outbox.put(answers.pong(load.active, load.queued))

    async def _execute(self, request: Execute) -> None:
        # A client that does not read the output of its executions starts no more of them.
        while self._outbox.full:
            await self._outbox.changed()
        id = request.id
        if id in self._runs:
            raise MessageRefused("INVALID_REQUEST", "id: an execution with this id is under way on this connection", id)
        if len(self._runs) >= self._terms.max_executions:
            message = f"this connection may have no more than {self._terms.max_executions} executions under way"
            raise MessageRefused("SANDBOX_OVERLOADED", message, id)
        terms = self._terms
        order = make_order(request, terms.languages, terms.known, terms.compile_timeout)
        run = _ConnectedExecution(id, order, self._outbox)
        try:
            await self._rates.check(self._caller.principal)
            run.execution = self._broker.execute(self._caller, order, run)
        except TideboxError as error:
            raise MessageRefused(error_code(error), error.message, id) from None
        self._runs[id] = run
        self._outbox.put(answers.ack(id))
        run.execution.over.on_set(lambda: self._conclude(run))

    def _conclude(self, run: _ConnectedExecution) -> None:
        del self._runs[run.id]
        run.conclude()

    def _cancel(self, request: Cancel) -> None:
        run = self._runs.get(request.id)
        if run is None:
            message = "no execution with this id is under way on this connection"
            raise MessageRefused("UNKNOWN_EXECUTION", message, request.id)
        run.cancel()

    def _leave(self) -> None:
        """Leave the executions of a client that is gone to the orphan grace, without output."""
        self._outbox.close()
        if self._runs:
            asyncio.get_running_loop().call_later(self._terms.orphan_grace, self._cancel_orphans)

    def _cancel_orphans(self) -> None:
        for run in list(self._runs.values()):
            run.cancel()
