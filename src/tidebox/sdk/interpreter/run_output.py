"""Collection of a run's output from its log, while its input is sent."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tidebox.errors import Conflict, PayloadTooLarge
from tidebox.sdk.interpreter.entries import InputClosed, LogChunk, LogGap
from tidebox.sdk.interpreter.run_log import AsyncRunLog


class CollectedOutput(NamedTuple):
    """The collected output of a run."""

    stdout: bytes
    stderr: bytes
    lost: int
    """Entries that are missing."""


async def collect(log: AsyncRunLog, stdin: bytes | str | None, limit: int) -> CollectedOutput:
    """Read a log to its end."""
    if stdin is None:
        return await _read(log, limit)
    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(_read(log, limit))
            group.create_task(_feed(log, stdin))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return reading.result()


async def _feed(log: AsyncRunLog, stdin: bytes | str) -> None:
    await log.write(stdin)
    await log.end_input()


async def _read(log: AsyncRunLog, limit: int) -> CollectedOutput:
    parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    size = lost = 0
    refused: Conflict | None = None
    closed = False
    while True:
        try:
            entry = await log.read()
        except Conflict as error:
            # A program that ends before it has read its input is not at fault; one whose input broke a rule is.
            refused = refused or error
            continue
        if entry is None:
            break
        if isinstance(entry, LogChunk):
            parts[entry.stream].append(entry.data)
            size += len(entry.data)
            if size > limit:
                raise PayloadTooLarge(f"the run printed more than {limit} bytes", limit=limit)
        elif isinstance(entry, LogGap):
            lost += entry.lost
        elif isinstance(entry, InputClosed):
            closed = True
    if closed and refused is not None:
        raise refused
    return CollectedOutput(b"".join(parts["stdout"]), b"".join(parts["stderr"]), lost)
