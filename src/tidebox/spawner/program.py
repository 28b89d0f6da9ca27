"""The program block: the first bytes on the stdin of a parked interpreter, which say what it is to become.

``u32 total`` then seven fields, each ``u32 length`` and bytes, all big-endian: mode, cwd, path, source, cpu seconds,
environment (NUL-joined ``K=V``), arguments (NUL-joined). The modes: ``exec`` replaces the process by the arguments,
after writing the source to the path if there is one; ``code`` runs the source; ``file`` runs the file at the path, as
the command named it; ``script`` writes the source to the path and runs that.

All that follows the block is the program's own stdin, so not one byte more may be read.
"""

from __future__ import annotations

import os

MODES = ("exec", "code", "file", "script")
FIELDS = 7
# The server caps a program far below; this only keeps a damaged length from reserving memory for what never comes.
MAX_BLOCK = 1 << 28


class BadProgram(ValueError):
    """The bytes on stdin are not a program block."""


class ProgramBlock:
    """A program to run, as the bytes that came."""

    __slots__ = ("mode", "cwd", "path", "source", "cpu_seconds", "environment", "arguments")

    def __init__(
        self,
        mode: str,
        cwd: bytes,
        path: bytes,
        source: bytes,
        cpu_seconds: int,
        environment: list[tuple[bytes, bytes]],
        arguments: list[bytes],
    ) -> None:
        self.mode = mode
        self.cwd = cwd
        self.path = path
        self.source = source
        self.cpu_seconds = cpu_seconds
        self.environment = environment
        self.arguments = arguments


def decode(body: bytes) -> ProgramBlock:
    """Parse what follows the total length."""
    fields = []
    offset = 0
    for _ in range(FIELDS):
        start = offset + 4
        offset = start + int.from_bytes(body[offset:start], "big")
        if start > len(body) or offset > len(body):
            raise BadProgram("a field reaches beyond the block")
        fields.append(body[start:offset])
    if offset != len(body):
        raise BadProgram("bytes after the last field")
    mode = fields[0].decode("ascii", "replace")
    if mode not in MODES:
        raise BadProgram("unknown mode")
    # isdigit() of bytes is ASCII only; more than nine digits is no number of seconds anybody means.
    if not fields[4].isdigit() or len(fields[4]) > 9:
        raise BadProgram("cpu seconds are not a number")
    arguments = fields[6].split(b"\0") if fields[6] else []
    if mode == "exec" and not arguments:
        raise BadProgram("nothing to execute")
    if mode in ("file", "script") and (not fields[2] or b"\0" in fields[2]):
        raise BadProgram("no path of a file")
    if b"\0" in fields[1]:
        raise BadProgram("a NUL in the working directory")
    environment = []
    for item in fields[5].split(b"\0") if fields[5] else []:
        name, equals, value = item.partition(b"=")
        if not name or not equals:
            raise BadProgram("an environment entry without a name")
        environment.append((name, value))
    return ProgramBlock(mode, fields[1], fields[2], fields[3], int(fields[4]), environment, arguments)


def read(fd: int) -> ProgramBlock | None:
    """Block until a whole program came; None when the other end went away before its first byte."""
    header = _read_exactly(fd, 4)
    if not header:
        return None
    total = int.from_bytes(header, "big")
    if len(header) < 4 or total > MAX_BLOCK:
        raise BadProgram("no usable length")
    body = _read_exactly(fd, total)
    if len(body) < total:
        raise BadProgram("the block is cut off")
    return decode(body)


def _read_exactly(fd: int, size: int) -> bytes:
    chunk = os.read(fd, size)
    if len(chunk) == size or not chunk:
        return chunk
    chunks = [chunk]
    missing = size - len(chunk)
    while missing:
        chunk = os.read(fd, min(missing, 1 << 20))
        if not chunk:
            break
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)
