"""The codec against cbor2, and against hostile input."""

from __future__ import annotations

import math
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.wire import cbor
from tidebox.wire.errors import CborError

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.floats(allow_nan=False)
)
items = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(items)
def test_what_we_write_cbor2_reads(item: Any) -> None:
    assert cbor2.loads(cbor.encode(item)) == item


@given(items)
def test_what_cbor2_writes_we_read(item: Any) -> None:
    assert cbor.decode(cbor2.dumps(item)) == item


@given(st.recursive(st.integers(-(2**64), 2**64 - 1) | st.text("abc") | st.binary(), st.lists, max_leaves=20))
def test_output_is_the_canonical_one(item: Any) -> None:
    assert cbor.encode(item) == cbor2.dumps(item, canonical=True)


@given(st.lists(st.integers(0, 100)) | st.dictionaries(st.text("ab"), st.integers(0, 100)))
def test_indefinite_containers_are_read(item: Any) -> None:
    assert cbor.decode(cbor2.dumps(item, indefinite_containers=True)) == item


@given(st.binary(max_size=200))
def test_garbage_gives_an_item_or_a_cbor_error(garbage: bytes) -> None:
    try:
        cbor.decode(garbage)
    except CborError:
        pass


@given(items, st.data())
def test_truncated_input_is_an_error(item: Any, data: st.DataObject) -> None:
    encoded = cbor.encode(item)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CborError):
        cbor.decode(encoded[:cut])


@pytest.mark.parametrize(
    ("encoded", "item"),
    [
        ("1800", 0),
        ("1900ff", 255),
        ("1b0000000000000001", 1),
        ("3900ff", -256),
        ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
        ("7f657374726561646d696e67ff", "streaming"),
        ("9f01ff", [1]),
        ("bf6161f5ff", {"a": True}),
        ("d8404101", b"\x01"),
        ("c001", 1),
        ("f7", None),
        ("f93c00", 1.0),
        ("fa47c35000", 100000.0),
    ],
)
def test_liberal_input(encoded: str, item: Any) -> None:
    assert cbor.decode(bytes.fromhex(encoded)) == item


def test_nan_is_read() -> None:
    assert math.isnan(cbor.decode(bytes.fromhex("f97e00")))


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "5b7fffffffffffffff",  # a byte string of 8 exabytes
        "9b7fffffffffffffff",  # an array of as many members
        "bb7fffffffffffffff",
        "9f",
        "bf",
        "5f",
        "5f01ff",
        "5f5f4101ffff",
        "ff",
        "1c",
        "f800",
        "62c328",  # not UTF-8
        "a1810102",  # an array as a key
        "a1a0a0",
        "d84001",  # tag 64 around an integer
        "0000",  # bytes after the item
        "81" * 40 + "00",
        "c1" * 40 + "00",
    ],
)
def test_hostile_input(encoded: str) -> None:
    with pytest.raises(CborError):
        cbor.decode(bytes.fromhex(encoded))


@pytest.mark.parametrize("opening", [b"\x9a\x00\x3f\xff\x00", b"\x9f", b"\xba\x00\x1f\xff\x80", b"\xbf"])
def test_a_frame_full_of_tiny_members_is_refused(opening: bytes) -> None:
    with pytest.raises(CborError, match="too many members"):
        cbor.decode(opening + b"\x00" * 0x3FFF00)


def test_a_string_of_empty_chunks_is_refused() -> None:
    with pytest.raises(CborError, match="too many members"):
        cbor.decode(b"\x5f" + b"\x40" * 2_000_000)


def test_many_small_arguments_pass() -> None:
    arguments = ["a"] * 200_000
    assert cbor.decode(cbor.encode(arguments)) == arguments


def test_a_view_is_sliced_not_copied() -> None:
    encoded = bytearray(cbor.encode({"data": b"x" * 100}))
    data = cbor.decode(memoryview(encoded))["data"]
    encoded[-1] = ord("y")
    assert isinstance(data, memoryview)
    assert data[-1] == ord("y")


@pytest.mark.parametrize("name", ["caf\udce9", "\ud800x"])
def test_undecodable_names_stay_valid_text(name: str) -> None:
    assert "\ufffd" in cbor2.loads(cbor.encode(name))


@pytest.mark.parametrize("item", [object(), 2**64, -(2**64) - 1, {1, 2}])
def test_what_cannot_be_encoded(item: Any) -> None:
    with pytest.raises(CborError):
        cbor.encode(item)


def test_encoding_is_capped_in_depth() -> None:
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    with pytest.raises(CborError):
        cbor.encode(nested)
