"""HTTP as it should not be: framing that two readers understand differently, slow and endless parts, odd methods."""

from __future__ import annotations

import asyncio
import random
import re

from tests.attack.conversation import Conversation, Piece, hold, random_leave
from tests.attack.mutation import damaged_bytes
from tests.attack.target import API, Target

AT_ONCE = 6
_PATHS = (
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/.well-known/jwks.json",
    f"{API}/runs",
    f"{API}/sessions",
    f"{API}/health/public",
    "/v1/exec",
    "/v1/files/upload?path=a",
    "/v1/files/list?path=.",
    "/v1/sandbox/sessions",
    "/sandbox/acquire",
    "/ws",
)
_ODD_TARGETS = (
    "*",
    "http://elsewhere.example/healthz",
    "//healthz",
    "/%00",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/healthz#fragment",
    "/healthz?" + "a=b&" * 2000,
    "localhost:80",
    "/" + "a" * 9000,
    "/\x80\xff",
)
_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PATCH", "BREW", "get", "PRI")
_FRAMINGS = (
    ["Content-Length: 5", "Content-Length: 6"],
    ["Content-Length: 5", "Transfer-Encoding: chunked"],
    ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
    ["Transfer-Encoding: xchunked"],
    ["Transfer-Encoding : chunked"],
    ["Transfer-Encoding:\tchunked"],
    ["Content-Length: +5"],
    ["Content-Length: 0x5"],
    ["Content-Length: 18446744073709551621"],
    ["Content-Length: -1"],
    ["Host: a", "Host: b"],
    ["Expect: 100-continue", "Content-Length: 5"],
    ["Connection: close, keep-alive", "Content-Length: 0"],
    ["X-Folded: a\r\n b", "Content-Length: 0"],
    ["Content-Encoding: gzip", "Content-Length: 5"],
    ["Upgrade: h2c", "HTTP2-Settings: AAMAAABk", "Content-Length: 0"],
)
_CHUNKS = (
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;" + b"e=" * 3000 + b"\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\nhello",
    b"5\nhello\n0\n\n",
    b"0\r\n" + b"X-Trailer: y\r\n" * 400 + b"\r\n",
    b"0\r\nX-Trailer: " + b"y" * 60_000,
    b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"0\r\nContent-Length: 50\r\nAuthorization: Bearer x\r\n\r\n",
)
_SERVER_ERROR = re.compile(rb"HTTP/1\.1 500 ")


def conversation(chance: random.Random, credential: str) -> Conversation:
    """One connection with one or more requests."""
    kind = chance.choice(["framing", "chunks", "slow", "pipeline", "method", "target", "head", "damaged"])
    shown = f"Authorization: {credential}" if chance.random() < 0.5 else "X-Nothing: 1"
    path, method, pieces = chance.choice(_PATHS), "POST", []
    plain = _head(method, path, ["Host: a", shown, "Content-Type: application/json", "Content-Length: 2"]) + b"{}"
    match kind:
        case "framing":
            head = _head(method, path, ["Host: a", shown, *chance.choice(_FRAMINGS)])
            pieces = [Piece(head + chance.choice([b"hello", b"5\r\nhello\r\n0\r\n\r\n", b""]))]
        case "chunks":
            head = _head(method, path, ["Host: a", shown, "Transfer-Encoding: chunked"])
            pieces = [Piece(head), Piece(chance.choice(_CHUNKS), chance.choice([0.0, 0.02]))]
        case "slow":
            cut = chance.randrange(1, len(plain))
            steps = range(cut, min(cut + 10, len(plain)))
            pieces = [Piece(plain[:cut]), *(Piece(plain[at : at + 1], 0.05) for at in steps)]
        case "pipeline":
            pieces = [Piece(_head("GET", path, ["Host: a", shown]) * chance.randint(2, 200))]
        case "method":
            pieces = [Piece(_head(chance.choice(_METHODS), path, ["Host: a", shown, "Content-Length: 0"]))]
        case "target":
            pieces = [Piece(_head("GET", chance.choice(_ODD_TARGETS), ["Host: a", shown]))]
        case "head":
            many = [f"X-{number}: {'y' * chance.choice([1, 300])}" for number in range(chance.choice([99, 150, 2000]))]
            pieces = [Piece(_head("GET", path, ["Host: a", shown, *many]))]
        case _:
            pieces = [Piece(damaged_bytes(chance, plain, chance.randint(1, 5)))]
    return Conversation(
        name=f"{kind} {path}",
        pieces=tuple(pieces),
        leave=random_leave(chance),
        reads=chance.random() < 0.85,
        linger=chance.choice([0.05, 0.2, 0.5]),
    )


def _head(method: str, target: str, headers: list[str]) -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", *headers, "", ""]).encode("latin-1")


async def step(chance: random.Random, target: Target) -> list[str]:
    """Several at once; none may make the server fail."""
    talks = [conversation(chance, target.credential) for _ in range(AT_ONCE)]
    heard = await asyncio.gather(*(hold(target.address, talk) for talk in talks))
    pairs = zip(talks, heard, strict=True)
    return [f"{talk.name}: answered 500" for talk, answer in pairs if _SERVER_ERROR.search(answer.start)]
