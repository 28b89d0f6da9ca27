"""Queries for runs: filters, sorting and pagination, and the page that answers one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidebox.model.run import Phase, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """The filters, order and page of a list of runs; None means any.

    Times are inclusive, upper bounds with the whole millisecond: what clients are shown is cut off there.
    """

    user: str | None = None
    session_id: str | None = None
    phase: Phase | None = None
    runtime: str | None = None
    base_image: str | None = None
    image_digest: str | None = None
    node_id: str | None = None
    """The node that works on them, or did so last."""
    text: str | None = None
    """Found in the beginning of the image's name or of the message, in any case of letters."""
    label: tuple[str, str] | None = None
    """One of their labels, with its value."""
    started_from: float | None = None
    started_to: float | None = None
    finished_from: float | None = None
    finished_to: float | None = None
    sort: Literal["created_at", "started_at", "finished_at"] = "created_at"
    descending: bool = True
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some of the runs a query found, and how many there are."""

    runs: tuple[Run, ...]
    total: int


# Databases have a limit on what they index.
_SEARCHED_IMAGE = 128
_SEARCHED_MESSAGE = 256


def searched(run: Run) -> str:
    """Return the text of a run that a search looks through, in lower case."""
    return f"{run.facts.base_image[:_SEARCHED_IMAGE]}\n{(run.message or '')[:_SEARCHED_MESSAGE]}".lower()
