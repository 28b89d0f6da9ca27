"""Parsing of the dataplane's paths."""

from __future__ import annotations

import re
from typing import NamedTuple

_SANDBOX_PATH = re.compile(r"/(?P<kind>api|ws)/(?P<id>sb-[a-z0-9]{1,40})(?:/(?P<rest>.*))?", re.DOTALL)
_OWN_PATHS = ("exec", "exec/ws", "shell/ws")
EXEC_PATH = re.compile(r"/v1/exec|/api/sb-[a-z0-9]+/exec")
UPLOAD_PATH = re.compile(r"/v1/files/upload|/api/sb-[a-z0-9]+/files/upload")


class DataplaneTarget(NamedTuple):
    """The operation, and maybe the sandbox, that a path names."""

    operation: str
    """The path below ``/v1``; empty for the socket of a sandbox, where any program may be started."""
    sandbox_id: str | None
    """Given in the path; otherwise the token says which."""


def target_of(path: str) -> DataplaneTarget | None:
    """Parse a path; None if it belongs to another surface."""
    if path.startswith("/v1/"):
        rest = path[len("/v1/") :]
        return DataplaneTarget(rest, None) if rest in _OWN_PATHS or rest.startswith("files/") else None
    match = _SANDBOX_PATH.fullmatch(path)
    if match is None:
        return None
    rest = match["rest"] or ""
    if (match["kind"] == "ws") != (not rest):
        return None
    return DataplaneTarget(rest, match["id"])
