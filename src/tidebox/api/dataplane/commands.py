"""Commands of clients, checked and in the form that a box takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidebox.errors import InvalidRequest
from tidebox.model.box import Command
from tidebox.model.command_size import check_command_size
from tidebox.model.launch import WORKSPACE
from tidebox.protocols.dataplane.routes import MAX_PATH_BYTES

MAX_ARGUMENTS = 4096
DEFAULT_TERMINAL = (24, 80)
_SHELL = "/bin/sh"
# Whatever the image has; a login shell, as on any machine one logs in to.
_LOGIN = [_SHELL, "-c", "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi"]
_TERMINAL_ENV = {"TERM": "xterm-256color"}


def make_command(
    command: Sequence[str] | str | None,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    terminal: tuple[int, int] | None = None,
) -> Command:
    """Make the command of a list (program and arguments), a text (a line for the shell) or None (a login shell)."""
    if command is None:
        argv: Sequence[str] = _LOGIN
    elif isinstance(command, str):
        argv = [_SHELL, "-c", command]
    else:
        argv = command
    if not argv or not argv[0]:
        raise InvalidRequest("command: names no program", field="command")
    # The agent keeps such names for its own.
    if argv[0].startswith("tidebox:"):
        raise InvalidRequest("command: there is no such program", field="command")
    env = env or {}
    for name in env:
        if not name or "=" in name:
            raise InvalidRequest("env: a name is not empty and has no '='", field="env")
    if len(argv) > MAX_ARGUMENTS:
        raise InvalidRequest(f"command: more than {MAX_ARGUMENTS} words", field="command")
    for word in argv:
        _size(word, "command")
    for name, value in env.items():
        _size(name, "env")
        _size(value, "env")
    check_command_size(argv, env)
    return Command(
        argv=argv,
        env={**_TERMINAL_ENV, **env} if terminal is not None else env,
        cwd=WORKSPACE if cwd is None else box_path(cwd, "cwd"),
        tty=terminal,
    )


def box_path(path: str, field: str = "path") -> str:
    """A path in the box; one that is not absolute is below the workspace."""
    if not path:
        raise InvalidRequest(f"{field}: give a path", field=field)
    if _size(path, field) > MAX_PATH_BYTES:
        raise InvalidRequest(f"{field}: longer than {MAX_PATH_BYTES} bytes", field=field)
    return path if path.startswith("/") else f"{WORKSPACE}/{path}"


def _size(text: str, field: str) -> int:
    if "\0" in text:
        raise InvalidRequest(f"{field}: has a zero byte", field=field)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field}: has half a surrogate pair", field=field) from None
