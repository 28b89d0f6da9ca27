"""Strategies for messages: any value that a struct's types allow."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def structs(module: types.ModuleType) -> list[type[msgspec.Struct]]:
    """The structs that a module defines."""
    return [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
    ]


def instances(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Messages of one kind."""
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in msgspec.structs.fields(kind)})


def json_like(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """JSON that has the names of a message's fields and any values."""
    tag = kind.__struct_config__.tag
    fields = [field.encode_name for field in msgspec.structs.fields(kind)]
    return st.fixed_dictionaries({} if tag is None else {"type": st.just(tag)}, optional=dict.fromkeys(fields, JSON))


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as messages have them."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _bounded(*arguments)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([values(each) for each in arguments])
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if kind is msgspec.Raw:
        return (st.lists(TEXT, max_size=3) | st.none()).map(lambda value: msgspec.Raw(msgspec.json.encode(value)))
    if kind is msgspec.UnsetType:
        return st.just(msgspec.UNSET)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return instances(kind)
    return {
        str: TEXT,
        int: st.integers(-(2**53), 2**53),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
        Any: JSON,
    }[kind]


def _bounded(kind: Any, *notes: Any) -> st.SearchStrategy[Any]:
    found = values(kind)
    for note in notes:
        if note.pattern is not None:
            found = st.from_regex(note.pattern, fullmatch=True, alphabet=st.characters(exclude_categories=["Cs"]))
        elif note.ge is not None:
            top = 2**53 if note.le is None else note.le
            found = st.floats(note.ge, top) if kind is float else st.integers(note.ge, top)
        if note.min_length is not None or note.max_length is not None:
            found = _sized(found, note.min_length or 0, note.max_length or 10**9)
    return found


def _sized(texts: st.SearchStrategy[Any], low: int, high: int) -> st.SearchStrategy[Any]:
    return texts.filter(lambda text: low <= len(text) <= high)
