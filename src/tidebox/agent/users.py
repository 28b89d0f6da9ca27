"""Who a program runs as, and whose rights the agent uses for file operations."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A database larger than this belongs to no image that people use; reading is bounded because the image is hostile.
_DATABASE_BYTES = 1 << 20
_LARGEST_ID = 2**32 - 2  # the last one means "unchanged" to the kernel


class UnknownUser(Exception):
    """A user or group that the box does not have."""


class BoxUser:
    """Ids of a user, with what the box's database says about it."""

    __slots__ = ("uid", "gid", "home")

    def __init__(self, uid: int, gid: int, home: str | None) -> None:
        self.uid = uid
        self.gid = gid
        self.home = home


def resolve(text: str, default: BoxUser) -> BoxUser:
    """Read "user[:group]", names or numbers.

    The files are read here and not through the C library, which would load the image's name service modules into init.
    """
    name, _, group = text.partition(":")
    entry = _find("/etc/passwd", name, 7)
    uid = _number(name) if entry is None else _number(entry[2])
    if uid is None:
        raise UnknownUser(f'unknown user "{name}"')
    gid = default.gid if entry is None else _number(entry[3])
    if group:
        group_entry = _find("/etc/group", group, 3)
        gid = _number(group) if group_entry is None else _number(group_entry[2])
    if gid is None:
        raise UnknownUser(f'unknown group "{group}"')
    return BoxUser(uid, gid, entry[5] if entry is not None else None)


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > _LARGEST_ID:
        return None
    return int(text)


def _find(path: str, wanted: str, columns: int) -> list[str] | None:
    """The line whose name, or whose number, is the wanted one; names go first."""
    by_number = None
    for line in _read(path).split("\n"):
        fields = line.split(":")
        if len(fields) < columns:
            continue
        if fields[0] == wanted:
            return fields
        if by_number is None and fields[2] == wanted:
            by_number = fields
    return by_number


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.read(fd, _DATABASE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


class BorrowedIdentity:
    """File operations with a user's rights: what they make is the user's, what is closed to the user stays closed.

    Only the effective ids change, for the length of one operation. They decide about files; who may signal or trace the
    agent goes by the real and saved ids, which stay, so that user code gains nothing in that moment. The capabilities
    are out of effect meanwhile and come back with the effective id. There is one thread: nothing else runs meanwhile.
    """

    __slots__ = ("_uid", "_gid", "_own_uid", "_own_gid")

    def __init__(self, user: BoxUser) -> None:
        self._uid = user.uid
        self._gid = user.gid
        self._own_uid = os.getuid()
        self._own_gid = os.getgid()

    def __enter__(self) -> None:
        if self._gid != self._own_gid:
            os.setegid(self._gid)
        if self._uid != self._own_uid:
            try:
                os.seteuid(self._uid)
            except OSError:
                os.setegid(self._own_gid)
                raise

    def __exit__(self, *_exception: Any) -> None:
        if self._uid != self._own_uid:
            os.seteuid(self._own_uid)
        if self._gid != self._own_gid:
            os.setegid(self._own_gid)
