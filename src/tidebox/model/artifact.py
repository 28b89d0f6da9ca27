"""An artifact: a file that a run left and that is kept for a while after it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """The record of one captured file; the blob store has its bytes. Times are seconds since the epoch."""

    run_id: str
    path: str
    """Relative to the workspace, with ``/`` between its parts."""
    size: int
    content_type: str
    created_at: float
    expires_at: float
    is_link: bool = False
    """A symbolic link is only remembered as one, never followed: its size is 0."""
    link_target: str | None = None
