"""Parts that the answers of several REST routes share.

An answer is a model with a constructor ``of`` from the domain. It is what a route returns, its schema in the OpenAPI
document, and, made from domain values, the example there. Fields that an answer leaves out are not set: such routes say
``response_model_exclude_unset``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, WithJsonSchema

Item = TypeVar("Item")
Source = TypeVar("Source")

_AT_ONCE = 100


def _whole(number: float) -> float:
    return int(number) if float(number).is_integer() else round(number, 6)


Quantity = Annotated[int | float, BeforeValidator(_whole), WithJsonSchema({"type": "number"})]
"""A number with at most six decimal places, written without any where it is whole."""


class Slice(BaseModel, Generic[Item]):
    """A part of a list whose length is not counted."""

    items: list[Item]
    limit: int
    offset: int


class Page(BaseModel, Generic[Item]):
    """A part of a list."""

    items: list[Item]
    total: int
    limit: int
    offset: int
    has_more: bool

    @classmethod
    def of(cls, items: list[Item], *, total: int, limit: int, offset: int) -> Self:
        """These items of ``total``."""
        return cls(items=items, total=total, limit=limit, offset=offset, has_more=offset + len(items) < total)


async def each(make: Callable[[Source], Item], sources: Iterable[Source]) -> list[Item]:
    """The items of a long list, made some at a time: other requests have their turn in between."""
    made = []
    for source in sources:
        made.append(make(source))
        if len(made) % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return made


def example(answer: BaseModel) -> dict[str, Any]:
    """The description of a response with ``answer`` as its example."""
    shown = answer.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {"content": {"application/json": {"example": shown}}}
