"""The Fathom protocol on one connection, without any I/O: messages in, wake-ups for waiters, frames to send out."""

from __future__ import annotations

import abc
import itertools
import math
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypedDict

from msgspec import UnsetType

from tidebox.errors import TideboxError
from tidebox.model.limits import MIB, check_limit
from tidebox.model.limits import Limits as DefaultLimits
from tidebox.protocols.codec import ErrorBody, encode
from tidebox.protocols.fathom import Error, Execute, Limits, Load, Pong, Stderr, Stdout
from tidebox.sdk.accumulator import Accumulator
from tidebox.sdk.error_decoding import from_told
from tidebox.sdk.fathom_messages import decode, make_cancel, make_execute, make_ping
from tidebox.sdk.result import Output

DEFAULTS = DefaultLimits()

_prefix = f"exec_{secrets.token_hex(4)}"
_numbers = itertools.count(1)


class ExecuteOptions(TypedDict, total=False):
    """Options of an execution; sizes in bytes and times in seconds, as everywhere in Tidebox."""

    stdin: str | None
    env: Mapping[str, str] | None
    timeout: float
    memory: int
    cpu_shares: int | None
    output: int | None
    """How much it may print; more ends it."""


def make_request(
    code: str,
    language: str = "python",
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = DEFAULTS.timeout,
    memory: int = DEFAULTS.memory,
    cpu_shares: int | None = None,
    output: int | None = None,
) -> Execute:
    """The ``execute`` message for a program."""
    for name, value in (("timeout", timeout), ("memory", memory), ("cpu_shares", cpu_shares), ("output", output)):
        if value is not None:
            check_limit(name, value)
    return make_execute(
        id=f"{_prefix}{next(_numbers)}",
        language=language,
        code=code,
        stdin=stdin,
        env=env,
        limits=Limits(
            timeout_ms=math.ceil(timeout * 1000),
            memory_mb=math.ceil(memory / MIB),
            cpu_shares=cpu_shares,
            max_output_bytes=output,
        ),
    )


class Pending(abc.ABC):
    """A request that waits for answers; ``wake`` is called when one came."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = _nobody

    @abc.abstractmethod
    def fail(self, error: TideboxError) -> None:
        """End the wait with an error."""


def _nobody() -> None:
    """Do nothing: no task waits yet."""


class PendingExecution(Pending):
    """One execution: what is known of it, and the output that was not read yet."""

    def __init__(self, execution_id: str) -> None:
        super().__init__()
        self.known = Accumulator(execution_id)
        self.unread: deque[Output] = deque()

    def fail(self, error: TideboxError) -> None:
        self.known.failure = error
        self.wake()


class PendingPing(Pending):
    """A ping without its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = False
        self.load: Load | None = None
        self.failure: TideboxError | None = None

    def fail(self, error: TideboxError) -> None:
        self.failure = error
        self.wake()


class FathomSession:
    """The pending executions and pings of one connection."""

    def __init__(self) -> None:
        self._executions: dict[str, PendingExecution] = {}
        self._questions: deque[PendingPing] = deque()

    def execute(self, request: Execute) -> tuple[PendingExecution, bytes]:
        """A new execution, and the frame that asks for it."""
        frame = encode(request)
        progress = self._executions[request.id] = PendingExecution(request.id)
        return progress, frame

    def cancel(self, progress: PendingExecution) -> bytes | None:
        """The frame that cancels an execution, if it is still under way here."""
        if progress.known.execution_id not in self._executions:
            return None
        return encode(make_cancel(progress.known.execution_id))

    def forget(self, progress: PendingExecution) -> None:
        """Ignore further messages of this execution."""
        self._executions.pop(progress.known.execution_id, None)

    def ping(self) -> tuple[PendingPing, bytes]:
        """A pending ping, and its frame."""
        question = PendingPing()
        self._questions.append(question)
        return question, encode(make_ping())

    def receive(self, data: bytes | str) -> None:
        """Take a message of the server's; raises ``ServerProtocolError`` if it is none."""
        message = decode(data)
        if message is None:
            return
        if isinstance(message, Pong):
            if self._questions:
                question = self._questions.popleft()
                question.answered, question.load = True, message.load
                question.wake()
            return
        if isinstance(message.id, UnsetType):
            # Only a ping is sent without an id, so an error without one is about a ping.
            assert isinstance(message, Error)
            if self._questions:
                failure = from_told(ErrorBody(message.code, message.message, message.retryable))
                self._questions.popleft().fail(failure)
            return
        progress = self._executions.get(message.id)
        if progress is None:
            return  # of an execution that nobody wants to know of, or that was over before its cancel arrived
        progress.known.apply(message)
        if isinstance(message, Stdout):
            progress.unread.append(Output("stdout", message.data))
        elif isinstance(message, Stderr):
            progress.unread.append(Output("stderr", message.data))
        elif progress.known.is_over():
            del self._executions[message.id]
        progress.wake()

    def end(self, error: TideboxError) -> None:
        """Fail everything that waits on a connection that is gone."""
        waiting: list[Pending] = [*self._executions.values(), *self._questions]
        self._executions.clear()
        self._questions.clear()
        for each in waiting:
            # One error each: they are raised in different places, maybe at the same time.
            each.fail(type(error)(error.message, **error.details))
