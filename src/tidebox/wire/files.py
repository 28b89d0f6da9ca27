"""The filesystem part of the protocol: operations, attributes, entries and their three messages."""

from __future__ import annotations

from tidebox.wire.bulk import BulkOffer
from tidebox.wire.fields import (
    BOOL,
    I32,
    I64,
    TEXT,
    TO_GUEST,
    TO_HOST,
    U32,
    U64,
    DataMessage,
    ListOf,
    Message,
    Nested,
    Newtype,
    OneOf,
    Struct,
    field,
)
from tidebox.wire.frames import FLAG_SESSION_START, FLAG_TERMINAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Union

# A chunk of a streamed read or write; the rest of the frame cap is room for the envelope.
MAX_DATA_SIZE = 3 * 1024 * 1024
# Entries of one ReadDir answer when the request names no limit.
DEFAULT_READ_DIR_LIMIT = 128

KIND_FILE = "file"
KIND_DIR = "dir"
KIND_SYMLINK = "symlink"
KIND_OTHER = "other"


class Attributes(Struct):
    """The attributes that SetStat and FSetStat change; None leaves as is. Times are whole seconds."""

    mode: int | None = field(U32, default=None)
    uid: int | None = field(U32, default=None)
    gid: int | None = field(U32, default=None)
    size: int | None = field(U64, default=None)
    atime: int | None = field(I64, default=None)
    mtime: int | None = field(I64, default=None)


class Entry(Struct):
    """One file as stat or a listing shows it; ``mode`` is the full st_mode."""

    path: str = field(TEXT)
    kind: str = field(TEXT)
    size: int = field(U64)
    mode: int = field(U32)
    modified: int | None = field(I64, default=None)
    uid: int = field(U32, default=0)
    gid: int = field(U32, default=0)
    atime: int | None = field(I64, default=None)
    mtime: int | None = field(I64, default=None)


class OpenOptions(Struct):
    """How OpenFile opens."""

    read: bool = field(BOOL, default=False)
    write: bool = field(BOOL, default=False)
    append: bool = field(BOOL, default=False)
    create: bool = field(BOOL, default=False)
    truncate: bool = field(BOOL, default=False)
    create_new: bool = field(BOOL, default=False)
    mode: int | None = field(U32, default=None)
    user: str | None = field(TEXT, default=None, omit=True)


class RealPath(Struct):
    """Resolve links; a missing leaf resolves its parent. Answer: Path."""

    path: str = field(TEXT)


class Stat(Struct):
    """Answer: Stat."""

    path: str = field(TEXT)
    follow_symlink: bool = field(BOOL)


class SetStat(Struct):
    """Change attributes by path."""

    path: str = field(TEXT)
    follow_symlink: bool = field(BOOL)
    attrs: Attributes = field(Nested(Attributes))


class List(Struct):
    """All entries of a directory. Answer: List."""

    path: str = field(TEXT)


class ReadLink(Struct):
    """Answer: Path."""

    path: str = field(TEXT)


class Symlink(Struct):
    """Make a symbolic link."""

    target: str = field(TEXT)
    link_path: str = field(TEXT)
    user: str | None = field(TEXT, default=None, omit=True)


class Mkdir(Struct):
    """Make a directory and its parents."""

    path: str = field(TEXT)
    mode: int | None = field(U32, default=None)
    user: str | None = field(TEXT, default=None, omit=True)


class Remove(Struct):
    """Remove a file."""

    path: str = field(TEXT)


class RemoveDir(Struct):
    """Remove a directory."""

    path: str = field(TEXT)
    recursive: bool = field(BOOL)


class Copy(Struct):
    """Copy one file."""

    src: str = field(TEXT)
    dst: str = field(TEXT)


class Rename(Struct):
    """Rename or move."""

    src: str = field(TEXT)
    dst: str = field(TEXT)


class OpenFile(Struct):
    """Answer: Handle."""

    path: str = field(TEXT)
    options: OpenOptions = field(Nested(OpenOptions))


class OpenDir(Struct):
    """Answer: Handle."""

    path: str = field(TEXT)


class CloseHandle(Struct):
    """Close a file or directory handle."""

    handle: int = field(U64)


class Read(Struct):
    """Stream from an open file; ``len`` None reads to the end."""

    handle: int = field(U64)
    offset: int = field(U64)
    len: int | None = field(U64, default=None)


class Write(Struct):
    """Stream into an open file; a ``len`` that is not met is an error."""

    handle: int = field(U64)
    offset: int = field(U64)
    len: int | None = field(U64, default=None)


class ReadDir(Struct):
    """The next entries of an open directory; an empty answer is the end."""

    handle: int = field(U64)
    limit: int | None = field(U32, default=None)


class FStat(Struct):
    """Answer: Stat."""

    handle: int = field(U64)


class FSetStat(Struct):
    """Change attributes by handle."""

    handle: int = field(U64)
    attrs: Attributes = field(Nested(Attributes))


OPERATIONS = OneOf(
    RealPath,
    Stat,
    SetStat,
    List,
    ReadLink,
    Symlink,
    Mkdir,
    Remove,
    RemoveDir,
    Copy,
    Rename,
    OpenFile,
    OpenDir,
    CloseHandle,
    Read,
    Write,
    ReadDir,
    FStat,
    FSetStat,
)


class StatData(Newtype):
    """The answer to Stat and FStat."""

    TAG = "Stat"
    entry: Entry = field(Nested(Entry))


class ListData(Newtype):
    """The answer to List and ReadDir."""

    TAG = "List"
    entries: Sequence[Entry] = field(ListOf(Nested(Entry)))


class HandleData(Newtype):
    """The answer to OpenFile and OpenDir."""

    TAG = "Handle"
    handle: int = field(U64)


class PathData(Newtype):
    """The answer to RealPath and ReadLink."""

    TAG = "Path"
    path: str = field(TEXT)


if TYPE_CHECKING:
    Operation = Union[
        RealPath,
        Stat,
        SetStat,
        List,
        ReadLink,
        Symlink,
        Mkdir,
        Remove,
        RemoveDir,
        Copy,
        Rename,
        OpenFile,
        OpenDir,
        CloseHandle,
        Read,
        Write,
        ReadDir,
        FStat,
        FSetStat,
    ]
    ResponseData = Union[StatData, ListData, HandleData, PathData]


class FsRequest(Message):
    """One filesystem operation."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.fs.request", 2, TO_GUEST, FLAG_SESSION_START
    op: Operation = field(OPERATIONS)
    bulk: BulkOffer | None = field(Nested(BulkOffer), default=None, omit=True)


class FsResponse(Message):
    """The end of a filesystem operation; ``errno`` is why the kernel refused it, where the agent tells."""

    WIRE, GENERATION, DIRECTION, FLAGS = "core.fs.response", 2, TO_HOST, FLAG_TERMINAL
    ok: bool = field(BOOL)
    error: str | None = field(TEXT, default=None)
    data: ResponseData | None = field(OneOf(StatData, ListData, HandleData, PathData), default=None)
    errno: int | None = field(I32, default=None, omit=True)


class FsData(DataMessage):
    """A chunk of a streamed read or write; empty ends a write."""

    WIRE, GENERATION, DIRECTION = "core.fs.data", 2, TO_GUEST | TO_HOST
