"""What to run in a sandbox, as its dataplane is told. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from tidebox.errors import InvalidRequest

Command = Sequence[str] | str


class ExecOptions(TypedDict, total=False):
    """What else can be said of a program that is waited for."""

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
    """What else can be said of a shell."""

    cwd: str | None
    env: Mapping[str, str] | None
    terminal: tuple[int, int] | None
    """Rows and columns."""
    detach: bool
    """Whether it goes on when it is closed or the connection breaks; ``attach`` finds it again."""


class StartOptions(ShellOptions, total=False):
    """What else can be said of a program that is followed."""

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
) -> dict[str, Any]:
    """The request for a program that is waited for."""
    return _said(
        command=_words(command),
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=stdin,
        timeout_ms=_milliseconds(timeout),
        max_output_bytes=output,
    )


def make_start(
    command: Command,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bool = False,
    terminal: tuple[int, int] | None = None,
    timeout: float | None = None,
    detach: bool = False,
) -> dict[str, Any]:
    """The request for a program that is followed."""
    told = make_shell(cwd=cwd, env=env, terminal=terminal, detach=detach)
    return told | _said(command=_words(command), stdin=stdin, timeout_ms=_milliseconds(timeout))


def make_shell(
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    terminal: tuple[int, int] | None = None,
    detach: bool = False,
) -> dict[str, Any]:
    """The request for a login shell."""
    return _said(
        cwd=cwd,
        env=None if env is None else dict(env),
        tty=None if terminal is None else {"rows": terminal[0], "cols": terminal[1]},
        on_disconnect="detach" if detach else "kill",
    )


def _said(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _words(command: Command) -> list[str] | str:
    return command if isinstance(command, str) else list(command)


def _milliseconds(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 0 < seconds < math.inf:
        raise InvalidRequest("timeout: give a number of seconds above 0", field="timeout")
    return math.ceil(seconds * 1000)
