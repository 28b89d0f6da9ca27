"""Where the files of a workspace may come from, besides an upload."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """A git repository, as it is at one commit."""

    url: str
    ref: str | None = None
    """A branch, a tag or a whole commit id; by default what the repository calls HEAD."""
    depth: int = 1
    patch: str | None = None
    """A unified diff to apply to it."""
