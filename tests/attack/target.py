"""The server under attack: started for the campaign, with users, a sandbox and a run of the attacker's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import jwt
from websockets.asyncio.client import connect

from benchmarks.load import TELLING
from tidebox.cli.served import Served

API = "/api/v1/sandbox"
_SECRET = "the secret of an attack on a server of its own"
HEARTBEAT_SECONDS = 3.0
ATTACKER, NEIGHBOUR = "attacker", "neighbour"
# The attacker never has all the slots, so what keeps the neighbour waiting is no queue.
_SETTINGS = {
    "rate_limit": "off",
    "auth_jwt_secret": _SECRET,
    "max_concurrent_runs": "8",
    "max_concurrent_runs_per_user": "4",
    "queue_max_length_per_user": "50",
    # With the programs and the pool that is less than 64 boxes at once.
    "max_sandboxes_per_user": "16",
    "orphan_grace_sec": "0.5",
    # A connection that is not read from is found dead after two of these.
    "ws_heartbeat_sec": f"{HEARTBEAT_SECONDS:g}",
    "token_ttl_sec": "900",
    "pool_python": "3",
    "pool_node": "0",
    "pool_sandboxes": "0",
}
_BAD_LINE = re.compile(r'.*"level": ?"(?:error|critical)".*|^Traceback.*', re.MULTILINE)
_REQUEST_SECONDS = 20.0


def _brief(line: str) -> str:
    """What a line of the log says, without what is different each time."""
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        return line[:200]
    said = ": ".join(str(entry[name]) for name in ("event", "message", "exception") if name in entry)
    place = [trace.rpartition("/")[2] for trace in entry.get("trace", [])[-1:]]
    return " at ".join([said, *place])


def bearer(user: str) -> str:
    """A credential of a user."""
    claims = {"sub": user, "roles": [], "exp": int(time.time()) + 24 * 3600}
    return jwt.encode(claims, _SECRET, algorithm="HS256")


@dataclass(frozen=True, slots=True)
class Held:
    """What a server keeps so that it need not be made: each holds processes, descriptors, mounts."""

    templates: int = 0
    cells: int = 0
    boxes: int = 0
    """Cells among them."""

    def keeps_more_than(self, before: Held) -> bool:
        """Whether it has more ready than it had, and nothing else is left of boxes."""
        more = self.templates > before.templates or self.cells > before.cells
        return more and self.boxes - self.cells <= before.boxes - before.cells


@dataclass(slots=True)
class Target:
    """A running server and what the attacker has there."""

    server: Served
    data_dir: Path
    http: httpx.AsyncClient
    """Requests with the attacker's credential."""
    token: str = ""
    """Of the attacker's sandbox."""
    sandbox_id: str = ""
    session_id: str = ""
    run_id: str = ""
    _log_place: int = 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.server.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    @property
    def credential(self) -> str:
        """The value of the attacker's Authorization header."""
        return str(self.http.headers["Authorization"])

    async def equip(self) -> None:
        """Get what the attacker uses: a sandbox, a session and a run. Attacks may have ended those of before."""
        for attempt in range(20):
            body = {"thread_id": "attack", "mode": "ensure"}
            with contextlib.suppress(httpx.HTTPError):
                made = await self.http.post("/v1/sandbox/sessions", json=body)
                if made.status_code == 200:
                    self.token, self.sandbox_id = made.json()["token"], made.json()["sandbox"]["id"]
                    break
            await asyncio.sleep(0.1 * attempt)
        else:
            raise AssertionError("the attacker gets no sandbox any more")
        if not self.session_id:
            session = await self.http.post(f"{API}/sessions", json={"spec_version": "1.0", "base_image": "host"})
            self.session_id = session.raise_for_status().json()["session_id"]
        if not self.run_id:
            run = {"spec_version": "1.0", "base_image": "host", "command": ["sh", "-c", "echo hello"]}
            self.run_id = (await self.http.post(f"{API}/runs", json=run)).raise_for_status().json()["run_id"]

    async def warm(self) -> None:
        """Have every kind of template made that the attacker's programs may need: each is made once and kept."""
        commands = [["python3", "-c", "pass"], ["python3", "-c", "import json"], ["/bin/echo"]]
        for where in ({"base_image": "host"}, {"session_id": self.session_id}):
            for command in commands:
                body = {"spec_version": "1.0", **where, "command": command}
                (await self.http.post(f"{API}/runs", json=body)).raise_for_status()
                await self.settle()

    async def held(self) -> Held:
        """What the server says that it holds."""
        found = await asyncio.to_thread(self.server.level, "sandbox_templates", "sandbox_pool_cells", "sandbox_boxes")
        return Held(*map(int, found))

    async def execute(self, code: str, *, timeout_ms: int, memory_mb: int = 128) -> str:
        """Run a program as the attacker, and give how it ended."""
        message = {
            "v": 1,
            "type": "execute",
            "id": "a",
            "language": "python",
            "code": code,
            "limits": {"timeout_ms": timeout_ms, "memory_mb": memory_mb, "max_output_bytes": 1 << 20},
        }
        headers = {"Authorization": self.credential}
        url = self.server.url.replace("http", "ws", 1) + "/ws"
        async with asyncio.timeout(timeout_ms / 1000 + _REQUEST_SECONDS):
            async with connect(url, additional_headers=headers, compression=None, ping_interval=None) as socket:
                await socket.send(json.dumps(message))
                ended = "unknown"
                async for text in socket:
                    frame: dict[str, Any] = json.loads(text)
                    if frame["type"] == "status":
                        ended = frame["status"]
                    elif frame["type"] == "result":
                        return ended
                    elif frame["type"] == "error" and frame["code"] != "OUTPUT_LIMIT":
                        return str(frame["code"])
        return ended

    def logged(self) -> list[str]:
        """Errors that the server wrote to its log since this was last asked."""
        with (self.data_dir / "server.log").open("rb") as file:
            file.seek(self._log_place)
            new = file.read()
        # A line that is not whole yet is read the next time.
        new = new[: new.rfind(b"\n") + 1]
        self._log_place += len(new)
        return [_brief(line) for line in _BAD_LINE.findall(new.decode("utf-8", "replace"))]

    def programs_started(self) -> int:
        """How many programs the server has accepted, of everybody."""
        answer = httpx.get(f"{self.server.url}/metrics", headers={"X-API-KEY": self.server.key}, timeout=60)
        found = re.search(r"^sandbox_runs_started_total\S* (\S+)$", answer.text, re.MULTILINE)
        return int(float(found[1])) if found else 0

    async def settle(self) -> None:
        """Wait until nothing of an attack is under way."""
        await asyncio.to_thread(self.server.rest)


@contextlib.asynccontextmanager
async def attacked_server(data_dir: Path) -> AsyncIterator[Target]:
    """A server on a free port, ready to be attacked."""
    with Served(data_dir, TELLING, **_SETTINGS) as server:
        headers = {"Authorization": f"Bearer {bearer(ATTACKER)}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=_REQUEST_SECONDS) as client:
            target = Target(server, data_dir, client)
            await target.equip()
            yield target
