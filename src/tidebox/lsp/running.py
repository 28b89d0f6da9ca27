"""Start one run, stream its log to the editor, and report how it ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from tidebox.errors import TideboxError
from tidebox.lsp.run_output import RunOutput
from tidebox.model.events import StreamName
from tidebox.model.run import Reason
from tidebox.sdk.interpreter.client import AsyncInterpreter, abandon
from tidebox.sdk.interpreter.entries import LogChunk, LogGap, LogTruncated, Progress, RunEnd
from tidebox.sdk.interpreter.results import Run

_WORDS = {
    Reason.EXIT_ZERO: "it ended by itself",
    Reason.EXIT_NONZERO: "it ended with an error",
    Reason.SIGNALED: "it was killed by a signal",
    Reason.STARTUP_TIMEOUT: "the sandbox did not start in time",
    Reason.EXECUTION_TIMEOUT: "it ran out of time and was killed",
    Reason.CANCELED_BY_USER: "it was cancelled",
    Reason.OOM_KILLED: "it ran out of memory and was killed",
    Reason.PIDS_LIMIT_EXCEEDED: "it started more processes than it may",
    Reason.LOG_CAP_EXCEEDED: "it printed more than it may",
    Reason.QUEUE_TTL_EXPIRED: "the server was too busy to start it",
    Reason.COMPILE_FAILED: "it could not be compiled",
    Reason.COMPILE_TIMEOUT: "compiling it took too long",
    Reason.EXEC_FAILED: "it could not be started: is the command right?",
    Reason.POLICY_DENIED: "the policy does not allow it",
    Reason.RUNTIME_UNAVAILABLE: "the runtime is not there",
    Reason.SERVER_SHUTDOWN: "the server was stopped before it ended",
    Reason.SERVER_RESTARTED: "the server was restarted before it ended",
}


class View(Protocol):
    """Receives the events of a run for the editor."""

    async def started(self, run: Run) -> None:
        """Report that the run was created."""

    async def output(self, run_id: str, stream: StreamName, text: str) -> None:
        """Show a piece of output."""

    async def notice(self, run_id: str | None, text: str) -> None:
        """Show a notice to the user."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that is over."""

    run: Run
    end: RunEnd
    output: RunOutput
    dropped: bool
    """Whether the server did not keep all of its output."""


async def run_to_end(
    client: AsyncInterpreter, command: list[str], options: dict[str, Any], view: View, cancelled: asyncio.Event
) -> FinishedRun:
    """Run a command; ``cancelled`` kills it. Being cancelled oneself does that too."""
    # A task of its own: a caller that is cancelled over it must still learn which run there is to cancel.
    starting = asyncio.get_running_loop().create_task(client.start_run(command, **options))
    try:
        run = await asyncio.shield(starting)
        killing = asyncio.get_running_loop().create_task(_kill_when(cancelled, client, run.id), name="lsp cancel")
        try:
            return await _follow(client, run, view)
        finally:
            killing.cancel()
            await asyncio.wait({killing})
    except BaseException:
        await abandon(client, starting)
        raise


async def _kill_when(cancelled: asyncio.Event, client: AsyncInterpreter, run_id: str) -> None:
    await cancelled.wait()
    try:
        await client.cancel_run(run_id)
    except TideboxError:
        pass  # the reader of its log learns how it ended


async def _follow(client: AsyncInterpreter, run: Run, view: View) -> FinishedRun:
    output = RunOutput()
    dropped = False
    await view.started(run)

    async def show(stream: StreamName, text: str) -> None:
        await view.output(run.id, stream, text)

    async with await client.stream_log(run.id) as log, output.shown(show):
        while (entry := await log.read()) is not None:
            if isinstance(entry, LogChunk):
                output.add(entry.stream, entry.data)
            elif isinstance(entry, Progress):
                await view.notice(run.id, entry.message)
            elif isinstance(entry, LogTruncated | LogGap):
                dropped = True
        end = log.end
    assert end is not None
    return FinishedRun(run, end, output, dropped or end.log_truncated)


def summarize(end: RunEnd) -> str:
    """Describe in words how a run ended."""
    try:
        words = _WORDS.get(Reason(end.reason_code), "")
    except ValueError:
        words = ""
    words = words or (end.reason_code or end.phase.value).replace("_", " ")
    if end.signal is not None:
        words = f"{words} (signal {end.signal})"
    elif end.exit_code:
        words = f"{words} (exit code {end.exit_code})"
    if end.message and end.message not in (end.reason_code, words):
        words = f"{words}: {end.message}"
    return words
