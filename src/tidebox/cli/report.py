"""Reports of a run's end: an exit code, a line on standard error, or a JSON object."""

from __future__ import annotations

import base64
import json
import signal
from dataclasses import asdict
from typing import Any

import click

from tidebox.cli.output import FAILED, note, say
from tidebox.cli.running import Finished
from tidebox.model.limits import GIB, KIB, MIB
from tidebox.model.result import Outcome

TIMEOUT = 124
OUTPUT_LIMIT = 125
OUT_OF_MEMORY = 137


def tell(finished: Finished) -> int:
    """Say in a line why it ended, unless it just exited, and what could not be saved; the exit code."""
    if reason := _reason(finished):
        note(reason)
    captured = finished.ending.captured
    if captured is not None and captured.skipped:
        note(f"{captured.skipped} matching files were not copied: links, special files, or too large")
    refused = [artifact for artifact in finished.artifacts if artifact.refused]
    for artifact in refused:
        note(f"{artifact.path} was not saved: {artifact.refused}")
    return _exit_code(finished) or (FAILED if refused else 0)


def print_started(run_id: str, *, as_json: bool) -> None:
    """The run of a program that was left to a server."""
    say(json.dumps({"run_id": run_id}) if as_json else run_id)


def print_json(finished: Finished) -> None:
    """The whole result as one JSON object on standard output."""
    ending = finished.ending
    content: dict[str, Any] = {
        "outcome": ending.outcome.value,
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "reason": _reason(finished),
        "image": finished.image,
    }
    for name, data in finished.output.items():
        content[name], content[f"{name}_encoding"] = _encoded(data)
    content["usage"] = asdict(ending.usage)
    content["artifacts"] = [asdict(artifact) for artifact in finished.artifacts]
    content["skipped_artifacts"] = ending.captured.skipped if ending.captured else 0
    click.echo(json.dumps(content))


def _encoded(data: bytes) -> tuple[str, str]:
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _exit_code(finished: Finished) -> int:
    ending = finished.ending
    if ending.outcome is Outcome.EXITED:
        return ending.exit_code or 0
    if ending.outcome is Outcome.COMPILE_FAILED:
        # As every compiler ends; one that ended otherwise has not made a program either.
        return ending.exit_code or 1
    if ending.outcome is Outcome.SIGNALED:
        return 128 + (ending.signal or 0)
    if ending.outcome is Outcome.CANCELLED:
        return 128 + (finished.stopped_by or signal.SIGINT)
    return {
        Outcome.TIMEOUT: TIMEOUT,
        Outcome.COMPILE_TIMEOUT: TIMEOUT,
        Outcome.OOM: OUT_OF_MEMORY,
        Outcome.OUTPUT_LIMIT: OUTPUT_LIMIT,
    }[ending.outcome]


def _reason(finished: Finished) -> str | None:
    ending, limits = finished.ending, finished.limits
    if ending.outcome is Outcome.SIGNALED:
        return f"killed by signal {ending.signal} ({_signal_name(ending.signal)})"
    return {
        Outcome.TIMEOUT: f"timeout: stopped after {limits.timeout:g} s",
        Outcome.OOM: f"out of memory: it may use {_size_text(limits.memory)}",
        Outcome.OUTPUT_LIMIT: f"output limit: stopped after {_size_text(limits.output)}",
        Outcome.CANCELLED: "cancelled",
        Outcome.COMPILE_TIMEOUT: f"timeout: not compiled after {limits.compile_timeout:g} s",
    }.get(ending.outcome)


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return "unnamed"


def _size_text(size: float) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size:.0f} bytes"
