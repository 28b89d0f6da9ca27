"""Conversations on every socket that the server has, before and after the credential was shown."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.attack.conversation import Conversation, Piece, hold, random_leave
from tests.attack.grammars.frames import (
    dataplane_messages,
    fathom_messages,
    random_frames,
    stream_messages,
    watch_messages,
)
from tests.attack.target import API, Target

AT_ONCE = 6
_MOST_FRAMES = 5
# Most frames start nothing, and an execution must have its own name on its connection.
BOXES = 8
_KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
_ODD_HEADERS = (
    b"Sec-WebSocket-Version: 12",
    b"Sec-WebSocket-Key: short",
    b"Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99",
    b"Sec-WebSocket-Protocol: " + b"a," * 500,
    b"Origin: http://elsewhere.example",
    b"X-Protocol-Version: 2",
    b"Content-Length: 5",
    b"Transfer-Encoding: chunked",
)


def conversation(chance: random.Random, credential: str, token: str, sandbox_id: str, run_id: str) -> Conversation:
    """One connection to a random socket."""
    surfaces: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "/ws": (credential, fathom_messages(chance)),
        "/v1/exec/ws": (f"Bearer {token}", dataplane_messages(chance, token)),
        "/v1/shell/ws": (f"Bearer {token}", dataplane_messages(chance, token)),
        "/v1/files/watch": (f"Bearer {token}", watch_messages(chance, token)),
        f"/ws/{sandbox_id}": (f"Bearer {token}", dataplane_messages(chance, token)),
        f"{API}/runs/{run_id}/stream": (credential, stream_messages(chance)),
    }
    path = chance.choice(sorted(surfaces))
    shown, messages = surfaces[path]
    headers = [
        b"GET " + path.encode() + b" HTTP/1.1",
        b"Host: localhost",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: " + _KEY,
    ]
    if chance.random() < 0.75:
        headers.append(b"Authorization: " + shown.encode())
    if chance.random() < 0.2:
        headers.insert(chance.randint(1, len(headers)), chance.choice(_ODD_HEADERS))
    head = b"\r\n".join(headers) + b"\r\n\r\n"
    count = chance.randint(1, _MOST_FRAMES)
    frames = [random_frames(chance, messages) for _ in range(count)]
    pieces = [Piece(head)]
    for data in frames:
        if chance.random() < 0.15:
            half = len(data) // 2
            pieces += [Piece(data[:half], 0.02), Piece(data[half:], 0.1)]
        else:
            pieces.append(Piece(data, chance.choice([0.0, 0.0, 0.01, 0.05])))
    return Conversation(
        name=path.replace(sandbox_id, "ID").replace(run_id, "ID"),
        pieces=tuple(pieces),
        leave=random_leave(chance),
        reads=chance.random() < 0.8,
        linger=chance.choice([0.0, 0.1, 0.5]),
    )


async def step(chance: random.Random, target: Target) -> list[str]:
    """Several at once."""
    talks = [
        conversation(chance, target.credential, target.token, target.sandbox_id, target.run_id) for _ in range(AT_ONCE)
    ]
    await asyncio.gather(*(hold(target.address, talk) for talk in talks))
    return []
