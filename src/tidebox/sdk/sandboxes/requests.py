"""Requests to run programs in a sandbox. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

from tidebox.errors import InvalidRequest
from tidebox.protocols.dataplane.frames import Start, Terminal, raw
from tidebox.protocols.dataplane.routes import DEFAULT_OUTPUT_BYTES, ExecRequest

# Of numbers of milliseconds, more cannot be told apart in JSON; there is no longer wait than some hundred years.
_TOO_LONG_SECONDS = 1e10

Command = Sequence[str] | str


class ExecOptions(TypedDict, total=False):
    """Options of a program that is waited for."""

    cwd: str | None
    """Where it runs: ``/workspace``, or below it if this is not absolute."""
    env: Mapping[str, str] | None
    stdin: str | None
    """Its input."""
    timeout: float | None
    """Seconds it may run; without it, the server's bound holds."""
    output: int | None
    """Bytes that are kept of what it prints; without it, the server's bound holds."""


class ShellOptions(TypedDict, total=False):
    """Options of a shell."""

    cwd: str | None
    env: Mapping[str, str] | None
    terminal: tuple[int, int] | None
    """Rows and columns."""
    detach: bool
    """Whether it goes on when it is closed or the connection breaks; ``attach`` finds it again."""


class ProcessOptions(ShellOptions, total=False):
    """Options of a program that is followed."""

    stdin: bool
    """Whether it can be given input; with a terminal it always can."""
    timeout: float | None
    """Seconds it may run; without it, it runs until it ends or the sandbox does."""


def make_exec(
    command: Command,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    output: int | None = None,
) -> ExecRequest:
    """The request for a program that is waited for."""
    bound = DEFAULT_OUTPUT_BYTES if output is None else output
    return ExecRequest(_words(command), cwd, dict(env or {}), stdin, _milliseconds(timeout), bound)


def make_start(
    command: Command | None = None,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bool = False,
    terminal: tuple[int, int] | None = None,
    timeout: float | None = None,
    detach: bool = False,
) -> Start:
    """The request for a program that is followed; without a command, for a login shell."""
    return Start(
        command=raw(None if command is None else _words(command)),
        cwd=cwd,
        env=raw(None if env is None else dict(env)),
        stdin=stdin,
        tty=None if terminal is None else Terminal(*terminal),
        timeout_ms=_milliseconds(timeout),
        on_disconnect="detach" if detach else "kill",
    )


def _words(command: Command) -> list[str] | str:
    return command if isinstance(command, str) else list(command)


def _milliseconds(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 0 < seconds < _TOO_LONG_SECONDS:
        raise InvalidRequest(
            f"timeout: give a number of seconds above 0 and below {_TOO_LONG_SECONDS:g}", field="timeout"
        )
    return math.ceil(seconds * 1000)
