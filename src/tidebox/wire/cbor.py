"""A small CBOR codec (RFC 8949): strict on output, liberal and hostile-safe on input.

Output is definite and shortest-form. Input may be indefinite, may use longer heads than needed and may wrap byte
strings in tag 64 (RFC 8746, sent by the TypeScript client). Every length is checked against the bytes that are there
before anything is allocated, and nesting is capped. Decoding a memoryview gives byte strings as slices of it, so that
large payloads are not copied.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from tidebox.wire.errors import CborError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

    Buffer = Union[bytes, bytearray, memoryview]

# Members of containers in one item: decoding takes about a microsecond for each, so a frame full of one-byte members
# would block its reader for seconds. A listing, the densest large payload there is, has one member in four bytes.
MAX_MEMBERS = 262_144
_BYTES_PER_MEMBER = 4

# Deep enough for every payload of the protocol (bootstrap is 5 deep), shallow enough for any stack.
MAX_DEPTH = 16

_TAG_UINT8_ARRAY = 64
_BREAK = 0xFF
_U16 = Struct(">H")
_U32 = Struct(">I")
_U64 = Struct(">Q")
_HEAD16 = Struct(">BH")
_HEAD32 = Struct(">BI")
_HEAD64 = Struct(">BQ")
_FLOAT16 = Struct(">e")
_FLOAT32 = Struct(">f")
_FLOAT64 = Struct(">d")
_HEAD_FLOAT64 = Struct(">Bd")
_ARGUMENT = {24: (1, Struct(">B")), 25: (2, _U16), 26: (4, _U32), 27: (8, _U64)}
_FLOATS = {25: (2, _FLOAT16), 26: (4, _FLOAT32), 27: (8, _FLOAT64)}
_SIMPLE = {20: False, 21: True, 22: None, 23: None}


def head(major: int, value: int) -> bytes:
    """The shortest head of a major type with its argument."""
    first = major << 5
    if value < 24:
        return bytes((first | value,))
    if value < 0x100:
        return bytes((first | 24, value))
    if value < 0x10000:
        return _HEAD16.pack(first | 25, value)
    if value < 0x1_0000_0000:
        return _HEAD32.pack(first | 26, value)
    if value < 0x1_0000_0000_0000_0000:
        return _HEAD64.pack(first | 27, value)
    raise CborError("integer out of range")


def text_bytes(text: str) -> bytes:
    """UTF-8 of a text; undecodable bytes that Python smuggled into it become U+FFFD: CBOR text must be valid."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "replace").encode()


def encode(item: Any) -> bytes:
    """Encode None, bool, int, float, str, bytes-like, list, tuple or dict."""
    out: list[Buffer] = []
    _encode(item, out, 0)
    return b"".join(out)


def _encode(item: Any, out: list[Buffer], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise CborError("nested too deeply")
    if item is None:
        out.append(b"\xf6")
    elif item is True:
        out.append(b"\xf5")
    elif item is False:
        out.append(b"\xf4")
    elif isinstance(item, int):
        out.append(head(0, item) if item >= 0 else head(1, -1 - item))
    elif isinstance(item, str):
        encoded = text_bytes(item)
        out.append(head(3, len(encoded)))
        out.append(encoded)
    elif isinstance(item, (bytes, bytearray, memoryview)):
        out.append(head(2, item.nbytes if isinstance(item, memoryview) else len(item)))
        out.append(item)
    elif isinstance(item, (list, tuple)):
        out.append(head(4, len(item)))
        for member in item:
            _encode(member, out, depth + 1)
    elif isinstance(item, dict):
        out.append(head(5, len(item)))
        for key, value in item.items():
            _encode(key, out, depth + 1)
            _encode(value, out, depth + 1)
    elif isinstance(item, float):
        out.append(_HEAD_FLOAT64.pack(0xFB, item))
    else:
        raise CborError(f"cannot encode {type(item).__name__}")


def decode(buffer: Buffer, start: int = 0, end: int | None = None) -> Any:
    """Decode the one item that fills ``buffer[start:end]``."""
    stop = len(buffer) if end is None else end
    item, position = decode_at(buffer, start, stop)
    if position != stop:
        raise CborError("bytes after the item")
    return item


def decode_at(buffer: Buffer, start: int, end: int) -> tuple[Any, int]:
    """Decode one item from ``start`` on; the item and the position after it."""
    try:
        return _decode(buffer, start, end, 0, [max(MAX_MEMBERS, (end - start) // _BYTES_PER_MEMBER)])
    except (StructError, IndexError):
        raise CborError("truncated") from None
    except UnicodeDecodeError:
        raise CborError("text is not UTF-8") from None


def read_head(buffer: Buffer, position: int, end: int) -> tuple[int, int, int | None, int]:
    """Major type, additional information, argument (None: indefinite or simple) and the position after the head."""
    if position >= end:
        raise CborError("truncated")
    first = buffer[position]
    position += 1
    info = first & 0x1F
    if info < 24:
        return first >> 5, info, info, position
    if info in _ARGUMENT:
        size, form = _ARGUMENT[info]
        if position + size > end:
            raise CborError("truncated")
        return first >> 5, info, form.unpack_from(buffer, position)[0], position + size
    if info == 31:
        return first >> 5, info, None, position
    raise CborError("reserved additional information")


def _spend(budget: list[int], members: int) -> None:
    budget[0] -= members
    if budget[0] < 0:
        raise CborError("too many members")


def _decode(buffer: Buffer, position: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise CborError("nested too deeply")
    start = position
    major, info, argument, position = read_head(buffer, position, end)
    if major == 0 and argument is not None:
        return argument, position
    if major == 1 and argument is not None:
        return -1 - argument, position
    if major in (2, 3):
        if argument is None:
            return _decode_chunks(buffer, position, end, major, budget)
        stop = position + argument
        if stop > end:
            raise CborError("truncated")
        piece = buffer[position:stop]
        return (piece if major == 2 else str(piece, "utf-8")), stop
    if major == 4:
        return _decode_array(buffer, position, end, depth, argument, budget)
    if major == 5:
        return _decode_map(buffer, position, end, depth, argument, budget)
    if major == 6 and argument is not None:
        value, position = _decode(buffer, position, end, depth + 1, budget)
        if argument == _TAG_UINT8_ARRAY and not isinstance(value, (bytes, bytearray, memoryview)):
            raise CborError("tag 64 around something else than a byte string")
        return value, position
    if major == 7:
        return _decode_simple(buffer, start, info, end)
    raise CborError("indefinite length where none is allowed")


def _decode_simple(buffer: Buffer, start: int, info: int, end: int) -> tuple[Any, int]:
    if info in _SIMPLE:
        return _SIMPLE[info], start + 1
    if info in _FLOATS:
        size, form = _FLOATS[info]
        return form.unpack_from(buffer, start + 1)[0], start + 1 + size
    raise CborError("unexpected break" if info == 31 else "unknown simple value")


def _decode_chunks(buffer: Buffer, position: int, end: int, major: int, budget: list[int]) -> tuple[Any, int]:
    chunks: list[Buffer] = []
    while True:
        if position < end and buffer[position] == _BREAK:
            position += 1
            break
        _spend(budget, 1)
        chunk_major, _, argument, position = read_head(buffer, position, end)
        if chunk_major != major or argument is None:
            raise CborError("wrong chunk in an indefinite string")
        stop = position + argument
        if stop > end:
            raise CborError("truncated")
        chunks.append(buffer[position:stop])
        position = stop
    if major == 2:
        return b"".join(chunks), position
    return "".join([str(chunk, "utf-8") for chunk in chunks]), position


def _decode_array(
    buffer: Buffer, position: int, end: int, depth: int, count: int | None, budget: list[int]
) -> tuple[list[Any], int]:
    items: list[Any] = []
    if count is None:
        while not (position < end and buffer[position] == _BREAK):
            _spend(budget, 1)
            item, position = _decode(buffer, position, end, depth + 1, budget)
            items.append(item)
        return items, position + 1
    if count > end - position:  # an item takes at least one byte
        raise CborError("truncated")
    _spend(budget, count)
    for _ in range(count):
        item, position = _decode(buffer, position, end, depth + 1, budget)
        items.append(item)
    return items, position


def _decode_map(
    buffer: Buffer, position: int, end: int, depth: int, count: int | None, budget: list[int]
) -> tuple[dict[Any, Any], int]:
    items: dict[Any, Any] = {}
    if count is not None:
        if count * 2 > end - position:
            raise CborError("truncated")
        _spend(budget, count * 2)
    while count is None or count > 0:
        if count is None:
            if position < end and buffer[position] == _BREAK:
                return items, position + 1
            _spend(budget, 2)
        else:
            count -= 1
        key, position = _decode(buffer, position, end, depth + 1, budget)
        value, position = _decode(buffer, position, end, depth + 1, budget)
        if isinstance(key, (bytes, bytearray, memoryview)):
            key = bytes(key)
        elif isinstance(key, (list, dict)):
            raise CborError("map key is an array or a map")
        items[key] = value
    return items, position
