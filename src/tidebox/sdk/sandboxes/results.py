"""How programs in a sandbox end, and what its files are like."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from tidebox.model.events import StreamName
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome, Usage, conclude
from tidebox.sdk.errors import ServerProtocolError

Encoding = Literal["utf8", "base64"]
FileType = Literal["file", "directory", "symlink", "other"]


class Chunk(NamedTuple):
    """A piece of output, byte by byte as the program wrote it."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a program ended."""

    outcome: Outcome
    exit_code: int | None
    """None if a signal ended it."""
    signal: str | None
    """``KILL``, say."""
    usage: Usage

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.outcome is Outcome.EXITED and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult(Ending):
    """How a program ended, and all it printed."""

    stdout: bytes
    stderr: bytes
    truncated: bool
    """Whether output beyond the bound was dropped."""

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file, a directory or something else that has a path."""

    path: str
    name: str
    type: FileType
    size: int
    mode: int
    """Its permissions."""
    modified_at: datetime | None
    """None for a time that no calendar has."""


class ResourceUsage(msgspec.Struct):
    """What a program used, as far as the server knows."""

    cpu_time_ms: float | None = None
    peak_memory_mb: float | None = None
    oom_kills: int = 0


class Exit(msgspec.Struct, tag="exit"):
    """The end of a program; as a frame of its own, and the beginning of the answer to ``exec``."""

    exit_code: int | None
    signal: str | None
    duration_ms: float
    resource_usage: ResourceUsage
    timed_out: bool = False

    def fields(self) -> dict[str, Any]:
        """The fields of an ``Ending``."""
        used = self.resource_usage
        outcome = Outcome.TIMEOUT
        if not self.timed_out:
            # Which signal does not matter to it.
            signal = None if self.signal is None else 0
            outcome = conclude(exit_code=self.exit_code, signal=signal, oom_kills=used.oom_kills)
        return {
            "outcome": outcome,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "usage": Usage(
                wall_seconds=self.duration_ms / 1000,
                cpu_seconds=None if used.cpu_time_ms is None else used.cpu_time_ms / 1000,
                memory_peak=None if used.peak_memory_mb is None else round(used.peak_memory_mb * MIB),
                oom_kills=used.oom_kills,
            ),
        }


class _Executed(Exit, tag=None):
    stdout: str = ""
    stderr: str = ""
    encoding: Encoding = "utf8"
    truncated: bool = False


class _File(msgspec.Struct):
    path: str
    name: str
    type: FileType
    size: int
    mode: str
    modified_at: datetime | None

    def info(self) -> FileInfo:
        return FileInfo(
            path=self.path,
            name=self.name,
            type=self.type,
            size=self.size,
            mode=int(self.mode, 8),
            modified_at=self.modified_at,
        )


class _Listing(msgspec.Struct):
    entries: list[_File]


class _Uploaded(msgspec.Struct):
    size: int


class _UploadOffset(msgspec.Struct):
    offset: int


def plain(data: str, encoding: Encoding) -> bytes:
    """The bytes that were sent as text."""
    return data.encode() if encoding == "utf8" else base64.b64decode(data, validate=True)


def executed(body: bytes) -> ExecResult:
    """The result in an answer to ``exec``."""
    try:
        said = msgspec.json.decode(body, type=_Executed)
        stdout, stderr = plain(said.stdout, said.encoding), plain(said.stderr, said.encoding)
    except (msgspec.DecodeError, binascii.Error) as error:
        raise _broken(error) from None
    return ExecResult(**said.fields(), stdout=stdout, stderr=stderr, truncated=said.truncated)


def file_info(body: bytes) -> FileInfo:
    """The file in an answer to ``files/stat``."""
    try:
        return msgspec.json.decode(body, type=_File).info()
    except (msgspec.DecodeError, ValueError) as error:
        raise _broken(error) from None


def listing(body: bytes) -> list[FileInfo]:
    """The files in an answer to ``files/list``."""
    try:
        return [entry.info() for entry in msgspec.json.decode(body, type=_Listing).entries]
    except (msgspec.DecodeError, ValueError) as error:
        raise _broken(error) from None


def uploaded(body: bytes) -> int:
    """The size in an answer to ``files/upload``."""
    try:
        return msgspec.json.decode(body, type=_Uploaded).size
    except msgspec.DecodeError as error:
        raise _broken(error) from None


def upload_offset(body: bytes) -> int:
    """How much of an upload has come, in an answer to ``files/upload``."""
    try:
        return msgspec.json.decode(body, type=_UploadOffset).offset
    except msgspec.DecodeError as error:
        raise _broken(error) from None


def _broken(error: Exception) -> ServerProtocolError:
    return ServerProtocolError(f"the sandbox's answer is not one of this protocol: {error}")
