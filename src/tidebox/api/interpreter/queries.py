"""Query parameters that several routes take."""

from __future__ import annotations

import datetime
from typing import Annotated

from fastapi import Query
from pydantic import BeforeValidator

from tidebox.errors import InvalidRequest

Text = Annotated[str | None, Query(max_length=256)]
Found = Annotated[str | None, Query(max_length=256, description="Found in the image's name or the message.")]
Label = Annotated[
    str | None,
    Query(max_length=400, pattern=r"^[^=]+=", description="A label that runs have, as `name=value`."),
]


def _iso_only(given: object) -> object:
    """No numbers: whether those are seconds or milliseconds would be a guess."""
    return datetime.datetime.fromisoformat(given) if isinstance(given, str) else given


IsoTime = Annotated[datetime.datetime, BeforeValidator(_iso_only)]
Moment = Annotated[IsoTime | None, Query(description="ISO 8601; UTC where it does not say.")]


def seconds_of(given: datetime.datetime | None) -> float | None:
    """A time that a query may have, in seconds since the epoch."""
    return None if given is None else timestamp(given)


def timestamp(given: datetime.datetime) -> float:
    """A time of a query in seconds since the epoch."""
    if given.tzinfo is None:
        given = given.replace(tzinfo=datetime.UTC)
    try:
        return given.timestamp()
    except (OverflowError, ValueError):
        raise InvalidRequest("a time that is out of range") from None


def label_of(given: str | None) -> tuple[str, str] | None:
    """The name and the value of a label."""
    if given is None:
        return None
    name, _, value = given.partition("=")
    return name, value
