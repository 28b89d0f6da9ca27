"""The paths of the interpreter service."""

from __future__ import annotations

import re

PREFIX = "/api/v1/sandbox"
PUBLIC_HEALTH = f"{PREFIX}/health/public"
_ADMIN = f"{PREFIX}/admin/"
STREAM = PREFIX + "/runs/{run_id}/stream"
RUNS_PATH = re.compile(f"{PREFIX}/runs")
UPLOAD_PATH = re.compile(f"{PREFIX}/sessions/[^/]+/files")

_STREAM_PATH = re.compile(f"{PREFIX}/runs/([^/]+)/stream")


def is_service(path: str) -> bool:
    """Whether a path may be one of the service."""
    return path.startswith("/api/")


def is_admin(path: str) -> bool:
    """Whether a path may be one of those for admins."""
    return path.startswith(_ADMIN)


def run_of_stream(path: str) -> str | None:
    """The run whose log stream a path is; None for another path."""
    match = _STREAM_PATH.fullmatch(path)
    return match[1] if match else None
