"""A small internet in a network namespace of its own: addresses that look public, a resolver, and servers on them.

A thread of the test stands in that network, and what it starts does too: the engine's loop, the servers, and the egress
process. As an ordinary user a test is started in such a network by root.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import os
import queue
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack, unpack, unpack_from
from typing import Any, TypeVar

from tests.patience import patient
from tidebox.config import session_environment
from tidebox.model.box import BoxSpec
from tidebox.model.egress import EgressPolicy, allowlist_of
from tidebox.model.events import EgressSeen, Event, OutputEvent
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest
from tidebox.model.launch import Launch, plan_code, plan_command
from tidebox.model.limits import Limits, make_limits
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.requested_egress import BoxEgress
from tidebox.runtime.base import EgressSettings, RuntimeSettings
from tidebox.runtime.driver import Driver
from tidebox.runtime.native.runtime import NativeRuntime
from tidebox.runtime.pool import Pool

Answer = TypeVar("Answer")

READY = "TIDEBOX_TEST_WORLD"
"""Set where the process was started in a network that is ready."""
ONE, TWO, SHARED = "45.33.32.1", "45.33.32.2", "45.33.32.3"
ONE6 = "2606:4700:10::1"
PRIVATE, METADATA = "10.1.2.3", "169.254.169.254"
ADDRESSES = (ONE, TWO, SHARED, PRIVATE, METADATA)
RESOLVER = ("127.0.0.1", 5353)
SECRET_OF_THE_MACHINE = 8099
"""A port of the machine's own loopback."""
GREETING, ECHO, BULK, SINK, SILENT, TRICKLE = 2525, 7007, 9009, 9010, 9011, 9012
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

NAMES: dict[str, list[str]] = {
    "one.example.com": [ONE, ONE6],
    "two.example.com": [TWO],
    "a.wild.example.org": [SHARED],
    "b.wild.example.org": [SHARED],
    "tenant.example.com": [SHARED],
    "inside.example.com": [PRIVATE],
    "local.example.com": ["127.0.0.1"],
    "metadata.example.com": [METADATA],
    "mapped.example.com": ["::ffff:127.0.0.1"],
    "mixed.example.com": [ONE, "127.0.0.1"],
}
SILENT_NAMES = ("silent.example.com",)
SILENT_DOMAIN = ".quiet.example.com"
"""Of which no name is ever answered."""


def prepare_network() -> None:
    """Give the network that this thread stands in its addresses; root of that network only."""
    commands = ["link set lo up", *(f"addr add {address}/32 dev lo" for address in ADDRESSES)]
    commands += [f"-6 addr add {ONE6}/128 dev lo nodad", "route add default dev lo", "-6 route add default dev lo"]
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)
    # Servers of an ordinary user stand on ports of HTTP too.
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, address: tuple[str, int], serve: Callable[[socket.socket], None]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    serve(self.request)

        super().__init__(address, Handler)


class Resolver(threading.Thread):
    """Answers for the names of this internet, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(RESOLVER)
        self.asked: list[tuple[str, int]] = []
        self.names = {name: list(found) for name, found in NAMES.items()}
        self.rebinding: dict[str, Iterator[str]] = {}
        """Names that stand for another address each time."""
        self.large: dict[str, list[str]] = {}
        """Names whose addresses fit no datagram."""

    def run(self) -> None:
        while True:
            try:
                data, asker = self.sock.recvfrom(4096)
            except OSError:
                return
            answer = self._answer(data, by_stream=False)
            if answer is not None:
                self.sock.sendto(answer, asker)

    def converse(self, sock: socket.socket) -> None:
        """Answer one question that comes over a connection."""
        (size,) = unpack(">H", sock.recv(2, socket.MSG_WAITALL))
        answer = self._answer(sock.recv(size, socket.MSG_WAITALL), by_stream=True)
        if answer is not None:
            sock.sendall(pack(">H", len(answer)) + answer)

    def _answer(self, data: bytes, *, by_stream: bool) -> bytes | None:
        labels, place = [], 12
        while data[place]:
            labels.append(data[place + 1 : place + 1 + data[place]].decode())
            place += 1 + data[place]
        name = ".".join(labels)
        (kind,) = unpack_from(">H", data, place + 1)
        self.asked.append((name, kind))
        if name in SILENT_NAMES or name.endswith(SILENT_DOMAIN):
            return None
        found = self.names.get(name)
        if name in self.large:
            found = self.large[name] if by_stream else []
        if name.endswith(".many.example.com"):
            found = [f"45.{33 + len(labels[0])}.{number}.1" for number in range(20)]
        if name in self.rebinding and kind == 1:
            found = [next(self.rebinding[name])]
        packed = [ipaddress.ip_address(item).packed for item in found or ()]
        wanted = [item for item in packed if len(item) == {1: 4, 28: 16}.get(kind)]
        flags = 0x8180 | (0 if found is not None else 3) | (0x200 if name in self.large and not by_stream else 0)
        answer = data[:2] + pack(">5H", flags, 1, len(wanted), 0, 0) + data[12 : place + 5]
        for item in wanted:
            answer += pack(">HHHIH", 0xC00C, kind, 1, 1, len(item)) + item
        return answer


@dataclass
class World:
    """The servers of this internet."""

    directory: Path
    resolver: Resolver = field(init=False)
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    """Requests of HTTP, by the address they came to."""
    open: set[socket.socket] = field(default_factory=set)
    """Connections to the echo."""
    pages: dict[str, bytes] = field(default_factory=dict)
    """What is at which path of every address."""
    _servers: list[_Server] = field(default_factory=list)
    _https_ready: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin all servers, in the network that this thread stands in."""
        self.resolver = Resolver()
        self.resolver.start()
        self.serve(RESOLVER, self.resolver.converse)
        self._make_certificates()
        for address in (*ADDRESSES, ONE6):
            self.serve((address, 80), lambda sock, address=address: self._http(sock, address))  # type: ignore[misc]
        threading.Thread(target=lambda: asyncio.run(self._serve_https()), daemon=True).start()
        self._https_ready.wait()
        self.serve(("127.0.0.1", SECRET_OF_THE_MACHINE), lambda sock: sock.sendall(b"BREACH"))
        for address in (ONE, TWO):
            self.serve((address, GREETING), self._greet)
            self.serve((address, ECHO), self._echo)
            self.serve((address, BULK), _send_much)
            self.serve((address, SINK), _swallow)
            self.serve((address, SILENT), _stay_silent)
            self.serve((address, TRICKLE), _trickle)

    def serve(self, address: tuple[str, int], handler: Callable[[socket.socket], None]) -> None:
        """One more server."""
        server = _Server(address, handler)
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600}, daemon=True).start()

    def stop(self) -> None:
        """End them; their threads end with the process."""
        for server in self._servers:
            server.socket.close()
        self.resolver.sock.close()

    def _make_certificates(self) -> None:
        self.ca = self.directory / "ca.pem"
        key = self.directory / "key.pem"
        names = ",".join(f"DNS:{name}" for name in (*NAMES, "*.wild.example.org"))
        subprocess.run(
            f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {key} -out {self.ca} "
            f"-days 2 -subj /CN=world -addext subjectAltName={names} -addext basicConstraints=critical,CA:TRUE",
            shell=True,
            check=True,
            capture_output=True,
        )
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(self.ca, key)

    def _http(self, sock: socket.socket, address: str) -> None:
        sock.settimeout(30)
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                piece = sock.recv(65536)
                if not piece:
                    return
                data += piece
            head, _, data = data.partition(b"\r\n\r\n")
            sock.sendall(self._answer(head, address, "http"))

    def _answer(self, request: bytes, address: str, scheme: str) -> bytes:
        self.requests.append((address, request))
        path = request.split()[1].decode("latin-1")
        if path.startswith("/to/"):
            place = path.removeprefix("/to/")
            return f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()
        if path.startswith("http://"):
            path = "/" + path.split("/", 3)[3]
        found = self.pages.get(path)
        status = "200 OK" if found is not None or path == "/" else "404 Not Found"
        body = f"hello from {address} over {scheme}\n".encode() if found is None else found
        kind = "text/html" if path.endswith("/") else "application/octet-stream"
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def _serve_https(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            address = writer.get_extra_info("sockname")[0]
            try:
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n")
                    writer.write(self._answer(head, address, "https"))
                    await writer.drain()
            except (OSError, EOFError, ValueError):
                writer.close()

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        await asyncio.start_server(serve, [*ADDRESSES, ONE6], 443, ssl=self.tls)
        self._https_ready.set()
        await asyncio.Event().wait()

    def _greet(self, sock: socket.socket) -> None:
        sock.sendall(b"220 welcome\r\n")
        sock.sendall(b"250 " + sock.recv(1024))

    def _echo(self, sock: socket.socket) -> None:
        self.open.add(sock)
        try:
            while data := sock.recv(65536):
                sock.sendall(data)
        finally:
            self.open.discard(sock)


def _send_much(sock: socket.socket) -> None:
    size = int(sock.makefile("rb").readline())
    block = bytes(1 << 20)
    while size > 0:
        sock.sendall(block[:size])
        size -= len(block)


def _stay_silent(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


def _swallow(sock: socket.socket) -> None:
    total = 0
    while data := sock.recv(1 << 20):
        total += len(data)
    sock.sendall(str(total).encode())


def _trickle(sock: socket.socket) -> None:
    for _ in range(10_000):
        sock.sendall(b".")
        time.sleep(0.05)


@dataclass
class Ran:
    """What came of a program."""

    ending: ExecutionOutcome
    out: str
    err: str
    seen: list[EgressSeen]

    def denied(self) -> list[tuple[str | None, str | None, str | None]]:
        """Host, address and reason of what was denied."""
        return [(seen.host, seen.ip, seen.reason) for seen in self.seen if not seen.allowed]

    def allowed(self) -> list[tuple[str | None, str | None, str | None]]:
        """Host, address and rule of what was allowed."""
        return [(seen.host, seen.ip, seen.matched_rule) for seen in self.seen if seen.allowed]


def rules(*lists: dict[str, list[str]], former: dict[str, list[str]] | None = None) -> BoxEgress:
    """The rules of a box; those of the server are first."""
    made = tuple(map(allowlist_of, lists))
    return BoxEgress(policy=EgressPolicy(made, None if former is None else allowlist_of(former)))


ALL = {"hosts": ["*.example.com", "*.wild.example.org"], "cidrs": ["0.0.0.0/0", "2000::/3"]}


class Machine:
    """A runtime with its pool, on a loop of its own in the network of a world."""

    def __init__(self, directory: Path, beside: Machine | None = None, **settings: Any) -> None:
        """``beside`` is one whose world it shares."""
        self.world: World = World(directory) if beside is None else beside.world
        self._beside = beside
        self._network = -1
        self._directory = directory
        self._settings = settings
        self._started: queue.Queue[BaseException | None] = queue.Queue()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        failure = self._started.get()
        if failure is not None:
            raise failure

    def _live(self) -> None:
        try:
            if self._beside is not None:
                self._beside.stand_here()
            elif READY not in os.environ and _libc.unshare(_CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "a network of the test's own")
            self._network = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            if self._beside is None:
                if READY not in os.environ:
                    prepare_network()
                self.world.start()
            self.loop = asyncio.new_event_loop()
            self.loop.run_until_complete(self._make())
        except BaseException as error:
            self._started.put(error)
            return
        self._started.put(None)
        self.loop.run_forever()
        self.loop.close()

    def stand_here(self) -> None:
        """Have the calling thread stand in the network of the world."""
        if READY not in os.environ and _libc.setns(self._network, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "the network of the world")

    async def _make(self) -> None:
        self.runtime = NativeRuntime(
            RuntimeSettings(
                data_dir=self._directory,
                agent_sockets=self._directory / "agents",
                environment=session_environment(),
                allow_weak_isolation=bool(int(os.environ.get("SANDBOX_ALLOW_WEAK_ISOLATION", "0"))),
                egress=EgressSettings(resolver="{}:{}".format(*RESOLVER), **self._settings),
            )
        )
        (self._directory / "agents").mkdir()
        await self.runtime.probe()
        self.pool = Pool(
            self.runtime,
            sizes={},
            limits=Limits(),
            max_age=3600,
            most_guests=4,
            guest_sizes={"python": 1, "any": 1, "node": 1, "elixir": 1},
        )
        self.pool.start()
        self.driver = Driver(self.runtime, self.pool)

    @property
    def process(self) -> int | None:
        """The egress process."""
        return self.runtime._ways_out.egress.pid

    def submit(self, work: Coroutine[Any, Any, Answer]) -> Future[Answer]:
        """Run ``work`` on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def do(self, work: Coroutine[Any, Any, Answer], seconds: float = 60) -> Answer:
        """The same, and wait for it."""
        return self.submit(work).result(patient(seconds))

    async def arun(
        self,
        program: str | list[str],
        egress: BoxEgress | None,
        *,
        language: str = "python",
        files: dict[str, bytes] | None = None,
        env: dict[str, str] | None = None,
        cancel: OneShotFlag | None = None,
        on_output: Callable[[bytes], None] | None = None,
        **limits: Any,
    ) -> Ran:
        """One program in a fresh box."""
        launch: Launch
        launch = plan_code(language, program, env=env) if isinstance(program, str) else plan_command(program, env=env)
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        seen: list[EgressSeen] = []

        async def sink(event: Event) -> None:
            if isinstance(event, OutputEvent):
                parts[event.stream].append(event.data)
                if on_output is not None:
                    on_output(event.data)

        limits.setdefault("timeout", patient(30.0))
        order = ExecutionRequest(
            launch=launch,
            spec=BoxSpec(limits=make_limits(**limits), egress=egress),
            files={f"/workspace/{name}": content for name, content in (files or {}).items()},
            on_egress=seen.append,
        )
        ending = await self.driver.run(order, sink, cancel)
        out, err = (b"".join(parts[name]).decode("utf-8", "replace") for name in ("stdout", "stderr"))
        return Ran(ending, out, err, seen)

    def run(self, program: str | list[str], egress: BoxEgress | None, **options: Any) -> Ran:
        """The same for a test without a loop of its own."""
        return self.do(self.arun(program, egress, **options), 90)

    def stop(self) -> None:
        """End everything."""

        async def close() -> None:
            await self.pool.close()
            await self.driver.close()
            await self.runtime.close()

        self.do(close())
        if self._beside is None:
            self.world.stop()
        if self._network >= 0:
            os.close(self._network)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
