"""Damage to valid values: JSON documents and bytes."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

_ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 63,
    -(1 << 64),
    1e308,
    "",
    "\0",
    "\ud800",
    "../../etc/passwd",
    "x" * 70_000,
    [],
    {},
    [[]] * 50,
    {"": ""},
    "\u202e\ufeff",
)
_ODD_KEYS = ("", "__proto__", "type", "id", "\0", "k" * 300, "v")
_DEPTH = 400


def damaged_json(chance: random.Random, value: Any, damages: int) -> bytes:
    """The text of a document with some places changed; sometimes no JSON any more."""
    value = copy.deepcopy(value)
    for _ in range(damages):
        value = _change(chance, value)
    text = json.dumps(value).encode()
    match chance.randrange(12):
        case 0:
            return damaged_bytes(chance, text, 3)
        case 1:
            return b"[" * _DEPTH + text + b"]" * _DEPTH
        case 2:
            return text[: chance.randrange(len(text) + 1)]
        case 3 if text.startswith(b"{"):
            # The same name twice: which one counts must not differ between two readers.
            return text[:-1] + b"," + text[1:] if len(text) > 2 else text
        case _:
            return text


def _change(chance: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(sorted(value))
        match chance.randrange(5):
            case 0:
                del value[key]
            case 1:
                value[chance.choice(_ODD_KEYS)] = value[key]
            case _:
                value[key] = _change(chance, value[key])
        return value
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        value[place] = _change(chance, value[place])
        return value * chance.choice([1, 1, 2, 40])
    return copy.deepcopy(chance.choice(_ODD_VALUES))


def damaged_bytes(chance: random.Random, data: bytes, damages: int) -> bytes:
    """Bytes with some of them changed, added, repeated or taken away."""
    result = bytearray(data)
    for _ in range(damages):
        at = chance.randrange(len(result) + 1)
        match chance.randrange(5):
            case 0 if at < len(result):
                result[at] ^= 1 << chance.randrange(8)
            case 1:
                result[at:at] = chance.randbytes(chance.randint(1, 16))
            case 2:
                del result[at : at + chance.randint(1, 64)]
            case 3:
                result[at : at + 4] = chance.choice([bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0\0\0\x80"])
            case _:
                source = chance.randrange(len(result) + 1)
                result[at:at] = result[source : source + 512]
    return bytes(result)
