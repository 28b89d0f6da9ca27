"""How programs start: from a command or code in a language to the warm cell that runs it, and the program it gets.

A parked interpreter stands in for the plain one only where nothing that is read at an interpreter's start was asked
for. Every other command is executed by a parked process, which replaces itself by it, and is exactly what it would be
without a cell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tidebox.errors import InvalidRequest
from tidebox.model.languages import BUILT_IN, Cell, Language, Languages, filled
from tidebox.model.limits import MIB, Limits

Mode = Literal["exec", "code", "file", "script"]

WORKSPACE = "/workspace"
SCRATCH = "/scratch"
"""Where a compiler puts what it makes: a file system of the box's own, that other boxes do not have."""
_MEMORY = Limits().memory


@dataclass(frozen=True, slots=True)
class Program:
    """The program that a parked interpreter becomes.

    ``source`` is the code itself, or for ``script`` (and an ``exec`` with a path) what is written to ``path`` first;
    ``arguments`` is the whole command for ``exec``, else what follows the program.
    """

    mode: Mode
    cwd: str = WORKSPACE
    path: str = ""
    source: bytes = b""
    env: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """A command that is run in a box before its program is started, and must end with 0."""

    command: tuple[str, ...]
    file: str
    """The main file."""
    executes: bool
    """Whether its output is executed, and not only read."""
    diagnostic: str = ""
    """The pattern of a compiler message that names a file and line."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The cell that can run a program, the program, and the command that is the same without a cell.

    ``direct`` says that the command is to be started itself, and nothing in its place. ``language`` is that of code,
    and empty for a command.
    """

    cell: Cell
    program: Program
    command: tuple[str, ...]
    direct: bool = False
    language: str = ""
    arguments: tuple[str, ...] = ()
    """The program's own arguments within the command, where it is code in a language."""
    compilation: Compilation | None = None


_CELLS: dict[str, Cell] = {"python": "python", "python3": "python", "node": "node", "elixir": "elixir"}
_EVALUATE = {"python": ("-c",), "node": ("-e", "--eval"), "elixir": ("-e", "--eval")}

# Read once by an interpreter, its run-time library or the loader, when the process starts.
_READ_AT_START = re.compile(r"(PYTHON|NODE_|LD_|LC_|MALLOC_|ERL_|ELIXIR_).*|LANG|LANGUAGE|GLIBC_TUNABLES|HOME")


def inside_workspace(name: str) -> str:
    """The path of a file that is placed in the workspace under ``name``."""
    relative = name.removeprefix(WORKSPACE + "/")
    if "\0" in name or any(part in ("", ".", "..") for part in relative.split("/")):
        raise InvalidRequest(f"not a file name inside {WORKSPACE}: {name!r}", field="files")
    return f"{WORKSPACE}/{relative}"


def plan_code(
    language: str,
    code: str | bytes,
    *,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    memory: int = _MEMORY,
    languages: Languages = BUILT_IN,
) -> Launch:
    """Plan code in a language: it becomes the main file of the workspace, and the language's command runs it."""
    kind = languages.named(language)
    source = code if isinstance(code, bytes) else encode_text("code", code)
    path = f"{WORKSPACE}/{kind.file_for(source)}"
    command, variables = _filled(kind, path, arguments, env, memory)
    if kind.cell == "any" or not _can_be_parked(command[2:], variables):
        program = Program("exec", WORKSPACE, path, source, variables, command)
        return Launch("any", program, command, False, kind.name, tuple(arguments), _compilation(kind, path, memory))
    program = Program("script", WORKSPACE, path, source, variables, command[2:])
    return Launch(kind.cell, program, command, False, kind.name, tuple(arguments))


def plan_file(
    language: str,
    name: str,
    *,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    memory: int = _MEMORY,
    languages: Languages = BUILT_IN,
) -> Launch:
    """Plan a file of the workspace that is in a language."""
    kind = languages.named(language)
    try:
        path = inside_workspace(name)
    except InvalidRequest as error:
        reason = "not a file of the workspace"
        raise InvalidRequest(error.message, field="command", reason=reason) from None
    command, variables = _filled(kind, path, arguments, env, memory)
    if kind.cell != "any" and _can_be_parked(command[2:], variables):
        program = Program("file", WORKSPACE, path, b"", variables, command[2:])
        return Launch(kind.cell, program, command, False, kind.name, tuple(arguments))
    program = Program("exec", WORKSPACE, "", b"", variables, command)
    return Launch("any", program, command, False, kind.name, tuple(arguments), _compilation(kind, path, memory))


def _filled(
    kind: Language, path: str, arguments: Sequence[str], env: Mapping[str, str] | None, memory: int
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The command that runs a file, and its variables."""
    command = (*_filled_words(kind.run, path, memory), *arguments)
    if kind.env:
        own = {name: _filled_words((value,), path, memory)[0] for name, value in kind.env}
        env = {**own, **(env or {})}
    return command, _checked(command, env)


@lru_cache(maxsize=64)
def _filled_words(words: tuple[str, ...], path: str, memory: int) -> tuple[str, ...]:
    # Kept: most programs have the same main file and the same memory.
    return filled(words, _places(path, memory))


def _compilation(kind: Language, path: str, memory: int) -> Compilation | None:
    if not kind.compile:
        return None
    return Compilation(_filled_words(kind.compile, path, memory), path, kind.executes, kind.diagnostic)


def _places(path: str, memory: int) -> dict[str, str]:
    stem = path.rpartition("/")[2].partition(".")[0]
    return {"file": path, "stem": stem, "out": SCRATCH, "memory_mb": str(memory // MIB)}


def plan_command(
    command: Sequence[str],
    *,
    cwd: str = WORKSPACE,
    env: Mapping[str, str] | None = None,
) -> Launch:
    """Plan a command: in a parked interpreter where the command names one, else executed as it is."""
    argv = tuple(command)
    if not argv or not argv[0]:
        raise InvalidRequest("the command is empty", field="command")
    # What runs in boxes keeps such names for its own.
    if argv[0].startswith("tidebox:"):
        raise InvalidRequest("there is no such program", field="command")
    if not cwd.startswith("/") or "\0" in cwd:
        raise InvalidRequest("the working directory must be an absolute path", field="cwd")
    variables = _checked(argv, env)
    # A directory that is not there is told by what executes the command; one that is parked could only print it.
    cell = _CELLS.get(argv[0]) if cwd == WORKSPACE else None
    if cell is not None and len(argv) > 1:
        if argv[1] in _EVALUATE[cell] and len(argv) > 2:
            rest = argv[3:]
            # Only Python takes everything after the code for the program's; the others go on reading options.
            if _can_be_parked(rest, variables) and (cell == "python" or not rest or not rest[0].startswith("-")):
                source = encode_text("command", argv[2])
                return Launch(cell, Program("code", cwd, "", source, variables, rest), argv)
        elif argv[1] and not argv[1].startswith("-") and _can_be_parked(argv[2:], variables):
            return Launch(cell, Program("file", cwd, argv[1], b"", variables, argv[2:]), argv)
    return Launch("any", Program("exec", cwd, "", b"", variables, argv), argv)


def _can_be_parked(arguments: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> bool:
    # A single empty argument cannot be told from none in the block.
    return arguments != ("",) and not any(_READ_AT_START.fullmatch(name) for name, _ in env)


def _checked(command: tuple[str, ...], env: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if any("\0" in word for word in command):
        raise InvalidRequest("the command has a NUL character in it", field="command")
    for name, value in (env or {}).items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidRequest(f"no such environment variable can be set: {name!r}", field="env")
    return tuple((env or {}).items())


def encode_text(field: str, text: str) -> bytes:
    """The bytes of a text that a request has in ``field``; raises ``InvalidRequest`` where there are none."""
    try:
        # Bytes that are no UTF-8 travel as lone surrogates, as everywhere in Python.
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidRequest("text that cannot be encoded", field=field) from error
