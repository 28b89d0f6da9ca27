"""How several routes of the service show times and idempotency keys."""

from __future__ import annotations

from tidebox.model.idempotency import Answered
from tidebox.model.moments import iso_time


def moment(seconds: float | None) -> str | None:
    """A time as clients see it, where there is one."""
    return None if seconds is None else iso_time(seconds)


def idempotency(key: str | None, answered: Answered | None) -> dict[str, str]:
    """The details of an answer to a request that has an idempotency key."""
    if key is None:
        return {}
    return {"idempotency_key_echo": key, "idempotency_status": "created" if answered is None else "replayed"}
