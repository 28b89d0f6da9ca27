"""Results of the Fathom clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidebox.model.events import StreamName
from tidebox.model.result import Outcome, Usage
from tidebox.protocols.fathom import Load, Status


class Output(NamedTuple):
    """A piece of output, as the program wrote it."""

    stream: StreamName
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one execution with all it printed.

    Like the result of ``tidebox.run``, except that output is text, because the protocol carries text; and that the
    number of a signal is not known.
    """

    id: str
    status: Status
    outcome: Outcome
    exit_code: int | None
    stdout: str
    stderr: str
    usage: Usage

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.outcome is Outcome.EXITED and self.exit_code == 0

    @property
    def truncated(self) -> bool:
        """Whether output was cut at the limit."""
        return self.outcome is Outcome.OUTPUT_LIMIT

    @property
    def text(self) -> str:
        """Standard output."""
        return self.stdout


class Health(NamedTuple):
    """A server's answer to a ping."""

    round_trip: float
    """Seconds from the question to the answer."""
    load: Load | None
    """How much the server has to do, where it says so."""
