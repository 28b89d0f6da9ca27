"""WebSocket frames, valid and not, and messages of the protocols that are spoken over them."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from tests.attack.mutation import damaged_json

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
# One read of the server may have 256 KiB, which is more than 43,000 empty frames.
FLOODS = (10, 2_000, 50_000)
_BAD_TEXT = (b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b'{"type":"\x80"}')
_CLOSE_CODES = (0, 999, 1000, 1004, 1005, 1006, 1015, 2999, 4000, 65535)

# Programs that end by themselves, whatever their limits are mutated to.
_CODE = ("print('x')", "import sys; sys.stdout.write('x' * 300000)", "raise SystemExit(3)", "import os; os.kill(0, 9)")


def frame(opcode: int, payload: bytes, *, final: bool = True, mask: bytes | None = b"\0\0\0\0", rsv: int = 0) -> bytes:
    """One frame; without a mask it is one that no client may send."""
    head = bytearray([(0x80 if final else 0) | rsv << 4 | opcode])
    masked = 0 if mask is None else 0x80
    size = len(payload)
    if size < 126:
        head.append(masked | size)
    elif size < 1 << 16:
        head += struct.pack("!BH", masked | 126, size)
    else:
        head += struct.pack("!BQ", masked | 127, size)
    if mask is None:
        return bytes(head) + payload
    if mask != b"\0\0\0\0":
        repeated = (mask * (size // 4 + 1))[:size]
        payload = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
    return bytes(head) + mask + payload


def random_frames(chance: random.Random, messages: list[dict[str, Any]]) -> bytes:
    """A few frames in a row: of the protocol, damaged, or broken as WebSocket frames."""
    mask = chance.choice([b"\0\0\0\0", chance.randbytes(4)])
    match chance.randrange(14):
        case 0 | 1 | 2:
            return frame(TEXT, json.dumps(chance.choice(messages)).encode(), mask=mask)
        case 3 | 4 | 5:
            return frame(TEXT, damaged_json(chance, chance.choice(messages), chance.randint(1, 3)), mask=mask)
        case 6:
            return _fragments(chance, json.dumps(chance.choice(messages)).encode(), mask)
        case 7:
            opcode = chance.choice([PING, PONG, CONTINUATION, TEXT])
            return frame(opcode, b"", mask=mask) * chance.choice(FLOODS)
        case 8:
            return frame(chance.choice([PING, PONG, CLOSE]), chance.randbytes(chance.choice([126, 4096])), mask=mask)
        case 9:
            return frame(TEXT, b"{}", mask=None)
        case 10:
            return frame(chance.randrange(16), b"{}", rsv=chance.randint(1, 7), final=chance.random() < 0.5, mask=mask)
        case 11:
            size = chance.choice([1 << 63, (1 << 63) - 1, 1 << 31, (1 << 24) + 1])
            return bytes([0x80 | TEXT, 0xFF]) + struct.pack("!Q", size) + mask + chance.randbytes(64)
        case 12:
            return frame(TEXT, chance.choice(_BAD_TEXT), mask=mask)
        case _:
            code = struct.pack("!H", chance.choice(_CLOSE_CODES))
            return frame(CLOSE, chance.choice([b"\x03", code, code + b"\xff" * 60, code + b"x" * 123]), mask=mask)


def _fragments(chance: random.Random, payload: bytes, mask: bytes) -> bytes:
    """One message in pieces, some empty, with control frames between them, perhaps without its end."""
    pieces = bytearray(frame(TEXT, b"", final=False, mask=mask))
    for start in range(0, len(payload), 7):
        pieces += frame(CONTINUATION, payload[start : start + 7], final=False, mask=mask)
        if chance.random() < 0.2:
            pieces += frame(chance.choice([PING, PONG]), b"between", mask=mask)
        if chance.random() < 0.05:
            pieces += frame(TEXT, b"another message inside", mask=mask)
    if chance.random() < 0.7:
        pieces += frame(CONTINUATION, b"", mask=mask)
    return bytes(pieces)


def fathom_messages(chance: random.Random) -> list[dict[str, Any]]:
    """Messages of the execute protocol; at most one in five starts a program."""
    name = f"exec_{chance.randrange(3)}"
    execute = {
        "v": 1,
        "type": "execute",
        "id": name,
        "language": "python",
        "code": chance.choice(_CODE),
        "stdin": "in",
        "env": {"A": "b"},
        "limits": {"timeout_ms": 1000, "memory_mb": 64, "max_output_bytes": 100_000},
    }
    cancel = {"v": 1, "type": "cancel", "id": name}
    ping = {"v": 1, "type": "ping"}
    return [execute, cancel, ping, {"v": 2, "type": "ping"}, {"v": 1, "type": "result", "id": name}]


def dataplane_messages(chance: random.Random, token: str) -> list[dict[str, Any]]:
    """Messages of the sockets of a sandbox."""
    return [
        {"type": "auth", "token": chance.choice([token, token[:-4], "", "x" * 4000])},
        {"type": "start", "command": ["echo", "x"], "stdin": True, "timeout_ms": 1000},
        {"type": "start", "command": "cat; exit 3", "tty": {"rows": 24, "cols": 80}, "timeout_ms": 1000},
        {"type": "start", "command": "yes", "timeout_ms": 500, "on_disconnect": "kill"},
        {"type": "stdin", "data": "aGk=", "encoding": "base64"},
        {"type": "stdin", "data": "hi", "eof": True},
        {"type": "resize", "rows": chance.choice([0, 24, 70_000]), "cols": 80},
        {"type": "signal", "signal": chance.choice(["INT", "KILL", "CONT", "NONE", "9"])},
        {"type": "ping"},
        {"type": "close"},
    ]


def watch_messages(chance: random.Random, token: str) -> list[dict[str, Any]]:
    """Messages of the socket that tells what changes among files."""
    return [
        {"type": "auth", "token": chance.choice([token, "wrong"])},
        {"type": "start", "path": chance.choice([".", "/", "/proc", "../..", "x" * 5000]), "recursive": True},
        {"type": "ping"},
        {"type": "close"},
    ]


def stream_messages(chance: random.Random) -> list[dict[str, Any]]:
    """Messages of the log stream of a run."""
    return [
        {"type": "stdin", "data": "x" * chance.choice([1, 70_000]), "encoding": "utf8"},
        {"type": "stdin", "data": "!!", "encoding": "base64"},
        {"type": "ping"},
    ]
