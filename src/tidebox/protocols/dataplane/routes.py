"""Routes of the dataplane: what is asked for by one request, and what is answered, in both directions.

A server reads with ``decode_exec`` and ``codec.from_fields``, which raise InvalidRequest; a client with
``codec.decode``, which raises ServerProtocolError. Fields of a peer that are not here are ignored.
"""

from __future__ import annotations

import errno
from datetime import datetime
from typing import Annotated, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tidebox.errors import LimitOutOfRange, ServerProtocolError
from tidebox.model.limits import MIB
from tidebox.model.sandbox import Capability
from tidebox.protocols.codec import request_reader
from tidebox.protocols.dataplane.frames import Count, Encoding, Ending, plain
from tidebox.protocols.documents import check_values

MAX_PATH_BYTES = 4096
MAX_OFFSET = 2**53
DEFAULT_OUTPUT_BYTES = 8 * MIB
MAX_OUTPUT_BYTES = 64 * MIB

FILE_ERRORS: Final = {
    "FILE_NOT_FOUND": (errno.ENOENT,),
    "FILE_ACCESS_DENIED": (errno.EACCES, errno.EPERM, errno.EROFS),
    "FILE_CONFLICT": (
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.EBUSY,
        errno.EXDEV,
        errno.ETXTBSY,
    ),
    "NO_SPACE": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "INVALID_REQUEST": (errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG),
}
"""How errors of files are spelled, and what the kernel says where one is meant, the plainest first."""

_Asked = TypeVar("_Asked", bound=msgspec.Struct)
_Answer = TypeVar("_Answer")
FileType = Literal["file", "directory", "symlink", "other"]
Path = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_PATH_BYTES,
        pattern=r"^[^\u0000]+$",
        description="Below `/workspace` if it is not absolute.",
    ),
]
Directory = Annotated[
    str, Meta(max_length=MAX_PATH_BYTES, description="Below `/workspace` if it is not absolute; `/workspace` itself.")
]
Mode = Annotated[str, Meta(pattern=r"^[0-7]{3,4}$(?!\n)", description="Permissions in octal digits.")]
UploadId = Annotated[
    str,
    # In Python "$" also matches before a last line feed.
    Meta(
        pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)", description="The client's own name for an upload in several requests."
    ),
]
Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET, description="How much of it has come before.")]

# Requests


class ExecRequest(msgspec.Struct, omit_defaults=True):
    """A command to run to its end."""

    command: list[str] | str
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    stdin: str | None = None
    timeout_ms: int | None = None
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES


class ListRequest(msgspec.Struct):
    """Which directory to list."""

    path: Directory = "."


class WatchRequest(ListRequest):
    """Which directory to watch, and whether those below it too."""

    recursive: bool = False


class PathRequest(msgspec.Struct):
    """The path of a file operation."""

    path: Path


class RemoveRequest(PathRequest):
    """The file or directory to remove."""

    recursive: bool = False


class MoveRequest(msgspec.Struct):
    """From where to where."""

    source: Path
    target: Path


class PartRequest(PathRequest):
    """An upload in several requests."""

    upload_id: UploadId


class UploadRequest(PathRequest, omit_defaults=True):
    """Where a file goes, or the next part of one."""

    mode: Mode | None = None
    upload_id: UploadId | None = None
    offset: Offset = 0
    complete: Annotated[bool, Meta(description="Whether this is the end of it.")] = True


# Answers


class ExecAnswer(Ending, kw_only=True):
    """How a program ended, and all that it printed."""

    timed_out: bool = False
    encoding: Encoding = "utf8"
    truncated: bool = False
    stdout: str = ""
    stderr: str = ""

    def output(self) -> tuple[bytes, bytes]:
        """The bytes it wrote to both streams."""
        try:
            return plain(self.stdout, self.encoding), plain(self.stderr, self.encoding)
        except ValueError:
            raise ServerProtocolError("the sandbox sent output that is not base64") from None


class FileEntry(msgspec.Struct):
    """A file, a directory or something else that has a path."""

    path: str
    name: str
    type: FileType
    size: Count
    mode: Annotated[str, Meta(pattern=r"^[0-7]{3,4}$(?!\n)")]
    modified_at: Annotated[str, Meta(extra_json_schema={"format": "date-time"})] | None
    """None for a time that no calendar has."""

    def modified(self) -> datetime | None:
        """When it was last changed."""
        try:
            return None if self.modified_at is None else datetime.fromisoformat(self.modified_at)
        except ValueError:
            raise ServerProtocolError("the sandbox sent a time that is none") from None


class FileListing(msgspec.Struct):
    """The entries of a directory, by name."""

    entries: list[FileEntry]
    path: str = ""


class PathAnswer(msgspec.Struct):
    """The path that was made or removed."""

    path: str


class MoveAnswer(msgspec.Struct):
    """The path that was moved, and its new path."""

    source: str
    target: str


class FileUploadAnswer(msgspec.Struct):
    """A file that is there, or so much of it."""

    path: str
    size: Count
    upload_id: str | UnsetType = UNSET
    complete: bool | UnsetType = UNSET
    offset: Count | UnsetType = UNSET


# Routes


class Route(NamedTuple, Generic[_Asked, _Answer]):
    """A route of the dataplane: its method, path, request, answer and bounds."""

    method: str
    path: str
    """Below ``/v1``, or below ``/api/`` and the id of the sandbox."""
    capability: Capability
    request: type[_Asked]
    answer: type[_Answer]
    """Bytes are the content of a file."""
    status: int = 200


EXEC = Route("POST", "exec", Capability.EXEC, ExecRequest, ExecAnswer)
UPLOAD = Route("POST", "files/upload", Capability.FS_WRITE, UploadRequest, FileUploadAnswer)
UPLOADED = Route("GET", "files/upload", Capability.FS_WRITE, PartRequest, FileUploadAnswer)
DISCARD = Route("DELETE", "files/upload", Capability.FS_WRITE, PartRequest, FileUploadAnswer)
DOWNLOAD = Route("GET", "files/download", Capability.FS_READ, PathRequest, bytes)
DOWNLOAD_HEAD = Route("HEAD", "files/download", Capability.FS_READ, PathRequest, bytes)
LIST = Route("GET", "files/list", Capability.FS_READ, ListRequest, FileListing)
STAT = Route("GET", "files/stat", Capability.FS_READ, PathRequest, FileEntry)
MKDIR = Route("POST", "files/mkdir", Capability.FS_WRITE, PathRequest, PathAnswer, 201)
REMOVE = Route("POST", "files/remove", Capability.FS_WRITE, RemoveRequest, PathAnswer)
MOVE = Route("POST", "files/move", Capability.FS_WRITE, MoveRequest, MoveAnswer)

_decode_exec = request_reader(ExecRequest, "the body is not a request")


def decode_exec(body: bytes) -> ExecRequest:
    """The request in a body; raises InvalidRequest."""
    check_values(body)
    request: ExecRequest = _decode_exec(body)
    if not 0 <= request.max_output_bytes <= MAX_OUTPUT_BYTES:
        raise LimitOutOfRange(
            f"max_output_bytes: give a number between 0 and {MAX_OUTPUT_BYTES}", field="max_output_bytes"
        )
    return request
