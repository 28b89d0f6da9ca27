"""A dataplane over real boxes, without what makes and ends sandboxes: tokens are known beforehand."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from websockets.sync.client import ClientConnection, connect

from tests.boxes import BoxRunner
from tidebox.api.dataplane.dialect import words
from tidebox.api.dataplane.surface import DataplaneLimits, DataplaneSurface
from tidebox.api.listener import Listener
from tidebox.api.metrics import Levels, ServerMetrics
from tidebox.api.middleware import RequestLog
from tidebox.api.rate_limit import RateLimiter
from tidebox.api.surface import Surface
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.sandboxes.processes import ProcessTable
from tidebox.broker.sandboxes.sandbox import Gate, LocalSandbox, SandboxAccess
from tidebox.config import load_settings
from tidebox.errors import Forbidden, Unauthorized
from tidebox.model.box import BoxSpec
from tidebox.model.ids import new_id
from tidebox.model.limits import MIB, Limits
from tidebox.model.principal import Principal
from tidebox.model.sandbox import ALL_CAPABILITIES, Capability

SECONDS = 30.0
# No more memory than files: a full workspace must not be what a sandbox dies of.
_LIMITS = Limits(memory=256 * MIB, workspace=256 * MIB)


class KnownTokens(Gate):
    """Lets in who shows one of these tokens."""

    def __init__(self) -> None:
        self.accesses: dict[str, SandboxAccess] = {}

    async def authorize(self, token: str, *, address: str, sandbox_id: str | None = None) -> SandboxAccess:
        access = self.accesses.get(token)
        if access is None:
            raise Unauthorized("the token is not valid")
        if sandbox_id not in (None, access.sandbox.id):
            raise Forbidden("the token is for another sandbox")
        return access


class Socket:
    """A client of one of the sockets."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._unread = ""

    def send(self, type: str, **fields: Any) -> None:
        """Send a frame."""
        self.connection.send(json.dumps({"type": type, **fields}))

    def receive(self, seconds: float = SECONDS) -> dict[str, Any]:
        """The next frame."""
        frame: dict[str, Any] = json.loads(self.connection.recv(seconds))
        return frame

    def expect(self, type: str, seconds: float = SECONDS) -> dict[str, Any]:
        """The next frame, which has this type."""
        frame = self.receive(seconds)
        assert frame["type"] == type, frame
        return frame

    def until(self, type: str) -> list[dict[str, Any]]:
        """Every frame up to one of this type."""
        found = [self.receive()]
        while found[-1]["type"] != type:
            assert found[-1]["type"] != "error", found[-1]
            found.append(self.receive())
        return found

    def read_until(self, text: str, seconds: float = SECONDS) -> str:
        """What is written, up to and with ``text``; what is after it is the next to be read."""
        written, self._unread = self._unread, ""
        deadline = time.monotonic() + seconds
        while text not in written:
            try:
                frame = self.receive(max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                raise AssertionError(f"{text!r} was not written: {written!r}") from None
            assert frame["type"] in ("stdout", "stderr"), (frame, written)
            written += frame["data"]
        end = written.index(text) + len(text)
        self._unread = written[end:]
        return written[:end]


class Plane:
    """A server of a dataplane, with one sandbox and a token for all of it."""

    def __init__(self, runner: BoxRunner, directory: Path) -> None:
        self.runner = runner
        self.gate = KnownTokens()
        self.processes = ProcessTable()
        self.directory = directory
        self.url = ""
        self.audit = Audit(directory / "audit")
        self._open = AsyncExitStack()

    async def start(self) -> None:
        """Listen."""
        metrics = ServerMetrics("native", lambda: Levels(0, 0, 0, 0))
        settings = load_settings(data_dir=self.directory, rate_limit="off")
        bounds = DataplaneLimits(
            default_seconds=settings.default_exec_timeout_sec,
            max_seconds=settings.max_exec_timeout_sec,
            max_body_bytes=settings.max_inline_body_bytes,
            max_message_bytes=settings.max_frame_bytes,
        )
        await self.audit.start()
        app = DataplaneSurface(self.gate, self.processes, self.audit, RateLimiter("off"), metrics, bounds)
        surface = Surface(name="dataplane", matches=lambda scope: True, dialect=lambda scope: words)
        listener = Listener(RequestLog(app, metrics, [surface]), settings)
        # Of this protocol by name: asyncio sends small answers at once only where it can tell that it is TCP.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        await self._open.enter_async_context(listener.listening(sock))

    async def stop(self) -> None:
        """Close everything."""
        await self._open.aclose()
        await self.audit.close()
        for sandbox in {access.sandbox for access in self.gate.accesses.values()}:
            await sandbox.close()

    def sandbox(self) -> LocalSandbox:
        """A new sandbox."""
        made: LocalSandbox = self._call(self._sandbox())
        return made

    async def _sandbox(self) -> LocalSandbox:
        id = new_id("sb")
        box = await self.runner.engine.runtime.open(BoxSpec(kind="sandbox", sandbox_id=id, limits=_LIMITS))
        return LocalSandbox(id, new_id("bind"), box)

    def token(self, sandbox: LocalSandbox, *capabilities: Capability, seconds: float = 600.0) -> str:
        """A token for it, with all capabilities if none is named."""
        token = new_id("token")
        held = frozenset(capabilities) or ALL_CAPABILITIES
        self.gate.accesses[token] = SandboxAccess(sandbox, held, time.time() + seconds, Principal("ada"))
        return token

    def client(self, token: str) -> httpx2.Client:
        """An HTTP client that shows the token."""
        return httpx2.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=60.0)

    @contextmanager
    def socket(self, path: str, token: str | None, **options: Any) -> Iterator[Socket]:
        """A client of a socket; without a token it has to say one."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        url = self.url.replace("http", "ws", 1) + path
        with connect(
            url, additional_headers=headers, max_size=None, compression=None, **options, open_timeout=60
        ) as connection:
            yield Socket(connection)

    def _call(self, coroutine: Any) -> Any:
        return self.runner.submit(coroutine).result(60)


@contextmanager
def running_plane(runner: BoxRunner, directory: Path) -> Iterator[Plane]:
    """A plane that listens."""

    async def make() -> Plane:
        plane = Plane(runner, directory)
        await plane.start()
        return plane

    plane = runner.submit(make()).result(30)
    try:
        yield plane
    finally:
        runner.submit(plane.stop()).result(30)
