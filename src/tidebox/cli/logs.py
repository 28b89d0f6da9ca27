"""The log of a run, copied to our own streams byte by byte."""

from __future__ import annotations

import base64
import json
from typing import Any

from tidebox.cli.output import note
from tidebox.cli.remote import Server
from tidebox.cli.streams import BlockingCalls, write_all
from tidebox.sdk.interpreter.entries import (
    LogChunk,
    LogEntry,
    LogGap,
    LogTruncated,
    PhaseChange,
    ProgramStart,
    Progress,
    Reached,
    RunEnd,
)

_DESCRIPTORS = {"stdout": 1, "stderr": 2}


async def show(server: Server, run_id: str, *, follow: bool, stream: str | None, as_json: bool) -> int:
    """Print a log: all of it, or what there is so far."""
    writer = BlockingCalls()

    async def put(entry: LogEntry) -> None:
        if isinstance(entry, LogChunk) and stream not in (None, entry.stream):
            return
        if as_json:
            await writer.call(write_all, 1, json.dumps(_fields(entry)).encode() + b"\n")
        elif isinstance(entry, LogChunk):
            await writer.call(write_all, _DESCRIPTORS[entry.stream], entry.data)
        elif isinstance(entry, LogGap):
            note(f"{entry.lost} entries are not in the server's log any more")
        elif isinstance(entry, LogTruncated):
            note(f"the log was cut here: {entry.reason}")

    async with server.interpreter() as client:
        run = await client.get_run(run_id)
        if not follow and not run.phase.terminal:
            for entry in await client.read_log_entries(run_id):
                await put(entry)
            return 0
        async with await client.stream_log(run_id) as log:
            async for entry in log:
                await put(entry)
    return 0


def _fields(entry: LogEntry) -> dict[str, Any]:
    """An entry as an object of JSON."""
    if isinstance(entry, LogChunk):
        try:
            return {"type": entry.stream, "seq": entry.seq, "encoding": "utf8", "data": entry.data.decode()}
        except UnicodeDecodeError:
            data = base64.b64encode(entry.data).decode()
            return {"type": entry.stream, "seq": entry.seq, "encoding": "base64", "data": data}
    if isinstance(entry, PhaseChange):
        return {"type": "phase", "seq": entry.seq, "phase": entry.phase.value}
    if isinstance(entry, ProgramStart):
        return {"type": "start", "seq": entry.seq, "at": entry.at.isoformat() if entry.at else None}
    if isinstance(entry, LogGap):
        return {"type": "gap", "seq": entry.seq, "lost": entry.lost}
    if isinstance(entry, RunEnd):
        end = {"phase": entry.phase.value, "exit_code": entry.exit_code, "reason_code": entry.reason_code}
        return {"type": "end", "seq": entry.seq, **end}
    if isinstance(entry, Progress):
        return {"type": "progress", "seq": entry.seq, "message": entry.message}
    if isinstance(entry, Reached):
        kind = "egress_allowed" if entry.seen.allowed else "egress_denied"
        return {"type": kind, "seq": entry.seq, **entry.seen.shown()}
    kind = "truncated" if isinstance(entry, LogTruncated) else "stdin_closed"
    return {"type": kind, "seq": entry.seq, "reason": entry.reason}
