"""Validation of untrusted file names: which may become a path in a workspace, and which may not."""

from __future__ import annotations

import re

from tidebox.errors import InvalidRequest, PayloadTooLarge

MAX_NAME_BYTES = 255
"""NAME_MAX of every file system in use."""
MAX_PATH_BYTES = 1024
"""Far below PATH_MAX, so that the workspace's own path fits before it."""

_DRIVE = re.compile(r"[A-Za-z]:")
_SHOWN = 200


def shown(name: bytes | str) -> str:
    """A name as it may appear in an answer or on a terminal."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    text = ascii(text)[1:-1] if not text.isprintable() or not text.isascii() else text
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def refuse(name: bytes | str, reason: str) -> InvalidRequest:
    """The error that names a member that must not be taken."""
    return InvalidRequest(f"{shown(name)}: {reason}", member=shown(name), reason=reason)


def too_much(name: bytes | str | None, what: str, limit: int) -> PayloadTooLarge:
    """The error for more than may be taken, with the member that was one too many."""
    if name is None:
        return PayloadTooLarge(what, limit=limit)
    return PayloadTooLarge(f"{shown(name)}: {what}", member=shown(name), limit=limit)


def split_name(name: bytes | str, max_depth: int) -> tuple[str, ...]:
    """The parts of a relative path below the workspace; empty for the workspace itself.

    Nothing is repaired but what means the same everywhere (``./a//b`` is ``a/b``): a name that could mean something
    else to somebody is refused.
    """
    try:
        text = name.decode() if isinstance(name, bytes) else name
        encoded = text.encode()
    except UnicodeError:
        raise refuse(name, "a name that is not UTF-8") from None
    if "\\" in text:
        raise refuse(name, "a backslash in a name")
    if text.startswith("/") or _DRIVE.match(text):
        raise refuse(name, "an absolute path")
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in text):
        raise refuse(name, "a control character in a name")
    parts = tuple(part for part in text.split("/") if part not in ("", "."))
    if ".." in parts:
        raise refuse(name, "a path that leads out of the workspace")
    if len(encoded) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise refuse(name, "a name that is too long")
    if len(parts) > max_depth + 1:
        raise too_much(name, f"nested more than {max_depth} directories deep", max_depth)
    return parts
