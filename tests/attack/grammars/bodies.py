"""Requests to the REST routes with bodies mutated from valid ones, with and without credentials."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx

from tests.attack.mutation import damaged_json
from tests.attack.target import API, Target

AT_ONCE = 6
BOXES = AT_ONCE
_HOST = {"spec_version": "1.0", "base_image": "host"}
# Every program ends at once. {sandbox}, {session}, {run} and {token} are the attacker's own.
_ROUTES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("POST", f"{API}/runs", _HOST | {"command": ["true"], "env": {"A": "b"}, "timeout_sec": 1, "labels": {"a": "b"}}),
    ("POST", f"{API}/runs", _HOST | {"command": ["true"], "files": [{"path": "a", "content_b64": "aGk="}]}),
    ("POST", f"{API}/runs", _HOST | {"command": ["true"], "capture_patterns": ["**", "*.txt"]}),
    ("POST", f"{API}/runs", _HOST | {"command": ["true"], "resources": {"cpu": 1, "memory_mb": 64, "pids": 16}}),
    ("POST", f"{API}/sessions/{{session}}/files", {"files": [{"path": "a/b", "content_b64": "aGk="}]}),
    ("GET", f"{API}/runs", {}),
    ("POST", f"{API}/runs/{{run}}/cancel", {}),
    ("POST", "/v1/sandbox/sessions", {"thread_id": "attack", "mode": "get"}),
    ("POST", "/v1/sandbox/sessions", {"scope": {"type": "thread", "id": "attack"}, "mode": "attach_only"}),
    ("POST", "/sandbox/refresh", {"sandbox_id": "{sandbox}", "token": "{token}"}),
    ("POST", "/v1/exec", {"command": ["true"], "cwd": ".", "env": {"A": "b"}, "stdin": "x", "timeout_ms": 500}),
    ("POST", "/v1/exec", {"command": "echo hello", "max_output_bytes": 10, "timeout_ms": 500}),
    ("POST", "/v1/files/mkdir", {"path": "d/e"}),
    ("POST", "/v1/files/remove", {"path": "d", "recursive": True}),
    ("POST", "/v1/files/move", {"source": "d", "target": "e"}),
    ("POST", "/api/{sandbox}/exec", {"command": ["true"], "timeout_ms": 500}),
)
_TYPES = (
    "application/json",
    "application/json",
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/x-tar",
    "",
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, with the attacker's names still to be put in."""

    method: str
    path: str
    body: bytes
    content_type: str
    credential: str
    """``user``, ``token`` or nothing."""


def request(chance: random.Random) -> Request:
    """A mutated request to a random route."""
    method, path, body = chance.choice(_ROUTES)
    fitting = "token" if path.startswith(("/v1/exec", "/v1/files", "/api/{")) else "user"
    return Request(
        method=method,
        path=path,
        body=damaged_json(chance, body, chance.randint(0, 3)),
        content_type=chance.choice(_TYPES),
        credential=chance.choices([fitting, "", "user"], [8, 1, 1])[0],
    )


async def step(chance: random.Random, target: Target) -> list[str]:
    """Several at once; none may make the server fail."""
    requests = [request(chance) for _ in range(AT_ONCE)]
    return [problem for problem in await asyncio.gather(*(_send(target, one) for one in requests)) if problem]


async def _send(target: Target, request: Request) -> str | None:
    names = {"sandbox": target.sandbox_id, "session": target.session_id, "run": target.run_id, "token": target.token}
    path, body = request.path, request.body
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
        body = body.replace(f"{{{name}}}".encode(), value.encode())
    shown = {"user": target.credential, "token": f"Bearer {target.token}", "": ""}[request.credential]
    headers = {"Authorization": shown, "Content-Type": request.content_type}
    try:
        answer = await target.http.request(request.method, path, content=body, headers=headers)
    except httpx.HTTPError:
        return None  # a server that ends the connection is in its right
    return f"{request.method} {request.path}: answered 500" if answer.status_code == 500 else None
