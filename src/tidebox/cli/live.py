"""Activity of a server, gathered and shown."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec

from tidebox.cli.output import one_line, table_lines
from tidebox.cli.remote import Server
from tidebox.cli.wording import PHASE_COLORS, size_text, span, took
from tidebox.errors import Forbidden, TideboxError
from tidebox.model.run import Phase
from tidebox.sdk.interpreter.client import AsyncInterpreter
from tidebox.sdk.interpreter.results import AdminRun, Run, ServiceHealth, UserTotals

_RUNS = 30
_USERS = 10
_UNDER_WAY = (Phase.RUNNING, Phase.STARTING, Phase.QUEUED)
_CLEAR, _HIDE, _SHOW = "\x1b[H\x1b[J", "\x1b[?25l\x1b[?1049h", "\x1b[?1049l\x1b[?25h"


class SeenRun(msgspec.Struct, frozen=True):
    """A run that is not over, or was not long ago."""

    run_id: str
    phase: str
    image: str | None = None
    user_id: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    reason_code: str | None = None


class Seen(msgspec.Struct, frozen=True):
    """A server's activity at one moment."""

    url: str
    version: str | None
    status: str
    active: int
    queued: int
    cells: int | None
    """Cells in the pool; None where the user is no admin."""
    boxes: int | None
    sandboxes: int | None
    runs: list[SeenRun]
    users: list[UserTotals]


async def look(server: Server) -> Seen:
    """Look once."""
    async with server.interpreter() as client:
        return await _look(client, server.target().http_url)


async def _look(client: AsyncInterpreter, url: str) -> Seen:
    health = await client.health()
    try:
        metrics = await client.admin.metrics()
    except Forbidden:
        return _seen(url, health, [_own(run) for run in (await client.list_runs(limit=_RUNS)).items], [], {})
    runs: list[AdminRun] = []
    for phase in _UNDER_WAY:
        runs += (await client.admin.list_runs(phase=phase, limit=_RUNS)).items
    known = {run.id for run in runs}
    latest = (await client.admin.list_runs(limit=_RUNS)).items
    runs += [run for run in latest if run.id not in known]
    users = (await client.admin.summarize_usage(limit=_USERS)).top_users
    levels = {name: sum(each.value for each in series) for name, series in metrics.items()}
    return _seen(url, health, [_anybodys(run) for run in runs[:_RUNS]], list(users), levels)


def _seen(
    url: str, health: ServiceHealth, runs: list[SeenRun], users: list[UserTotals], levels: dict[str, float]
) -> Seen:
    def level(name: str) -> int | None:
        return int(levels[name]) if name in levels else None

    return Seen(
        url=url,
        version=health.version,
        status=health.status,
        active=health.load.active if health.load else 0,
        queued=health.load.queued if health.load else 0,
        cells=level("sandbox_pool_cells"),
        boxes=level("sandbox_boxes"),
        sandboxes=level("sandbox_bindings"),
        runs=runs,
        users=users,
    )


def _own(run: Run) -> SeenRun:
    return SeenRun(run.id, run.phase.value, run.base_image, None, run.started_at, run.finished_at, run.reason_code)


def _anybodys(run: AdminRun) -> SeenRun:
    return SeenRun(
        run.id, run.phase.value, run.base_image, run.user_id, run.started_at, run.finished_at, run.reason_code
    )


def show(seen: Seen) -> list[str]:
    """Return the lines that show the activity seen."""
    levels: dict[str, Any] = {
        "running": seen.active,
        "queued": seen.queued,
        "pool": seen.cells,
        "boxes": seen.boxes,
        "sandboxes": seen.sandboxes,
    }
    summary = "  ".join(f"{name} {value}" for name, value in levels.items() if value is not None)
    lines = [one_line(f"{seen.url}  Tidebox {seen.version}  {seen.status}"), summary, ""]
    runs = [
        (run.run_id, run.user_id or "", run.phase, run.image or "", took(run.started_at, run.finished_at),
         run.reason_code or "")
        for run in seen.runs
    ]  # fmt: skip
    columns = ("RUN", "USER", "PHASE", "IMAGE", "TOOK", "REASON")
    lines += table_lines(columns, runs, PHASE_COLORS, spare=("IMAGE", "REASON"))
    if seen.users:
        users = [
            (each.user_id, str(each.runs), str(each.failed), span(each.cpu_time_sec), size_text(each.log_bytes))
            for each in seen.users
        ]
        lines += ["", *table_lines(("USER (LAST DAY)", "RUNS", "FAILED", "CPU", "OUTPUT"), users)]
    return lines


async def watch(server: Server, interval: float) -> None:
    """Look again and again until q; what a server that is away says is shown in place of what it does."""
    url = server.target().http_url
    over = asyncio.Event()
    async with server.interpreter() as client:
        with _screen(over):
            lines: list[str] = []
            while not over.is_set():
                try:
                    lines = show(await _look(client, url))
                except TideboxError as error:
                    if not error.retryable:
                        raise
                    lines = [one_line(f"{url}  {error.message}"), *lines[1:]]
                _draw(lines)
                try:
                    await asyncio.wait_for(over.wait(), interval)
                except TimeoutError:
                    continue


def _draw(lines: list[str]) -> None:
    rows = shutil.get_terminal_size().lines
    sys.stdout.write(_CLEAR + "\r\n".join(lines[: rows - 1]))
    sys.stdout.flush()


@contextmanager
def _screen(over: asyncio.Event) -> Iterator[None]:
    """A screen of our own; q sets ``over``."""
    loop = asyncio.get_running_loop()
    before = termios.tcgetattr(0) if os.isatty(0) else None

    def typed() -> None:
        data = os.read(0, 64)
        if not data or b"q" in data:
            over.set()

    if before is not None:
        tty.setcbreak(0)
        loop.add_reader(0, typed)
    sys.stdout.write(_HIDE)
    try:
        yield
    finally:
        sys.stdout.write(_SHOW)
        sys.stdout.flush()
        if before is not None:
            loop.remove_reader(0)
            termios.tcsetattr(0, termios.TCSADRAIN, before)
