"""The part of answers that tells of the idempotency key."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel

from tidebox.model.idempotency import Answered


class Details(BaseModel):
    """The idempotency key, and whether the request was replayed, where one was given."""

    idempotency_key_echo: str | None = None
    idempotency_status: Literal["created", "replayed"] | None = None

    @classmethod
    def of(cls, key: str | None, answered: Answered | None) -> Self:
        """The details of an answer to a request, which may have been ``answered`` before."""
        if key is None:
            return cls()
        return cls(idempotency_key_echo=key, idempotency_status="created" if answered is None else "replayed")


NO_DETAILS = Details()
