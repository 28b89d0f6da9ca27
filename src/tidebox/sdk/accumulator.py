"""Result of one Fathom execution, accumulated from its messages."""

from __future__ import annotations

from tidebox.errors import TideboxError
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome, Usage
from tidebox.protocols import fathom
from tidebox.protocols.codec import ErrorBody
from tidebox.protocols.fathom import Ack, Error, FathomUsage, Status, StatusChange, Stderr, Stdout
from tidebox.sdk.error_decoding import from_told
from tidebox.sdk.errors import ServerProtocolError
from tidebox.sdk.result import Result

# The one error that is about the program and not instead of an ending: its status and its result still follow.
OUTPUT_LIMIT = "OUTPUT_LIMIT"

_OUTCOMES = {
    Status.COMPLETED: Outcome.EXITED,
    Status.FAILED: Outcome.EXITED,
    Status.CANCELLED: Outcome.CANCELLED,
    Status.TIMEOUT: Outcome.TIMEOUT,
    Status.OOM: Outcome.OOM,
}


class Accumulator:
    """The state, output and result of one execution, as far as its messages tell."""

    def __init__(self, execution_id: str) -> None:
        self.execution_id = execution_id
        self.accepted = False
        self.status: Status | None = None
        self.exit_code: int | None = None
        self.duration_ms: float | None = None
        self.resource_usage: FathomUsage | None = None
        self.truncated = False
        self.failure: TideboxError | None = None
        """Why there will be no result."""
        # Joined when asked for: adding to one string would copy all of it for each piece.
        self._stdout: list[str] = []
        self._stderr: list[str] = []

    @property
    def stdout(self) -> str:
        """All of standard output so far."""
        return "".join(self._stdout)

    @property
    def stderr(self) -> str:
        """All of standard error so far."""
        return "".join(self._stderr)

    def apply(self, event: Ack | StatusChange | Stdout | Stderr | fathom.Result | Error) -> None:
        """Take the next message of this execution into account."""
        if isinstance(event, Stdout):
            self._stdout.append(event.data)
        elif isinstance(event, Stderr):
            self._stderr.append(event.data)
        elif isinstance(event, StatusChange):
            self.status = event.status
        elif isinstance(event, fathom.Result):
            self.exit_code = event.exit_code
            self.duration_ms = event.duration_ms
            self.resource_usage = event.resource_usage
            if not self.is_terminal():
                self.failure = ServerProtocolError("the server sent a result without saying how the execution ended")
        elif isinstance(event, Ack):
            self.accepted = True
        elif event.code == OUTPUT_LIMIT and self.accepted:
            self.truncated = True
        else:
            self.failure = from_told(ErrorBody(event.code, event.message, event.retryable))

    def is_terminal(self) -> bool:
        """Whether the server has said how the execution ended."""
        return self.status is not None and self.status.terminal

    def is_over(self) -> bool:
        """Whether nothing more can come."""
        return self.failure is not None or self.duration_ms is not None

    def result(self) -> Result:
        """The result of an execution that is over, or the error that it has instead."""
        if self.failure is not None:
            raise self.failure
        assert self.status is not None
        assert self.duration_ms is not None
        outcome = Outcome.OUTPUT_LIMIT if self.truncated else _OUTCOMES[self.status]
        if outcome is Outcome.EXITED and self.exit_code is None:
            outcome = Outcome.SIGNALED
        used = self.resource_usage or FathomUsage()
        return Result(
            id=self.execution_id,
            status=self.status,
            outcome=outcome,
            exit_code=self.exit_code,
            stdout=self.stdout,
            stderr=self.stderr,
            usage=Usage(
                wall_seconds=self.duration_ms / 1000,
                cpu_seconds=None if used.cpu_time_ms is None else used.cpu_time_ms / 1000,
                memory_peak=None if used.peak_memory_mb is None else round(used.peak_memory_mb * MIB),
            ),
        )
