"""How many values a document of a client has, told before it is read."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import Any

import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st

from tidebox.api import access, interpreter
from tidebox.api.route_dependencies import DocumentRoute
from tidebox.errors import PayloadTooLarge
from tidebox.protocols.documents import MAX_VALUES, check_values, count_values

_MANY = MAX_VALUES + 1


def _size(value: Any) -> int:
    """How many values there are within a value."""
    if isinstance(value, list):
        return sum(1 + _size(item) for item in value)
    return sum(1 + _size(item) for item in value.values()) if isinstance(value, dict) else 0


@pytest.mark.parametrize(
    "document",
    [
        b"[" + b"[]," * _MANY + b"[]]",
        b"[" + b"{}," * _MANY + b"{}]",
        b"[" * _MANY,
        b'{"a":' * _MANY,
        b"[" + b'"",' * 3 * _MANY + b'""]',
        b"[" + b"1e-300," * _MANY + b"0]",
        json.dumps(dict.fromkeys(map(str, range(2 * _MANY)), 0)).encode(),
        json.dumps({"command": [0] * _MANY}).encode(),
        json.dumps({"env": {str(number): '\\"' for number in range(2 * _MANY)}}).encode(),
        b"[" + rb'"\\",' * 3 * _MANY + b"0]",
    ],
)
def test_too_many_values_are_refused(document: bytes) -> None:
    with pytest.raises(PayloadTooLarge, match="values"):
        check_values(document)


@pytest.mark.parametrize("text", [",[{" * 100_000, '","' * 100_000, "\\" * 100_001, '\\",' * 100_000])
def test_what_is_within_strings_does_not_count(text: str) -> None:
    check_values(json.dumps({"command": ["python", "-c", text], "files": [{"path": text}]}).encode())


@given(
    st.recursive(
        st.integers() | st.text(alphabet='a,[{"\\}]', max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a,[{"\\', max_size=3), inner),
    )
)
def test_no_value_is_overlooked(value: Any) -> None:
    assert count_values(json.dumps(value).encode()) >= _size(value)


def test_every_route_with_a_document_looks_at_it() -> None:
    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}")
        for package in (interpreter, access)
        for found in pkgutil.iter_modules(package.__path__)
    ]
    routes = [route for module in modules if hasattr(module, "router") for route in module.router.routes]
    with_body = [route for route in routes if isinstance(route, APIRoute) and route.body_field is not None]
    assert len(with_body) >= 6
    assert [route.path for route in with_body if not isinstance(route, DocumentRoute)] == []
