"""Resolves names outside: by the resolver that the operator names, or the machine's own."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from tidebox.egress import dns
from tidebox.errors import InvalidRequest

_CONFIGURATION = Path("/etc/resolv.conf")
_MOST_SERVERS = 3
_PORT = 53
TRY_SECONDS = 1.0
"""Seconds that one server may take to answer before the next is asked."""
SECONDS = 2.5
"""Seconds that a name may take altogether."""
_TRIES = 2
# Each is a socket. A box has a bound of its own, far below this.
_MOST_AT_ONCE = 1024
_FAR_AWAY = ("2600::", 443)

Server = tuple[str, int]


def parse_server(text: str) -> Server:
    """``address:port``, ``[address]:port`` or an address alone; raises ``InvalidRequest``."""
    host, port = text, str(_PORT)
    if text.startswith("["):
        host, _, behind = text[1:].partition("]")
        port = behind.removeprefix(":") or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        number = int(port)
        if not 0 < number < 1 << 16:
            raise ValueError
        return str(ipaddress.ip_address(host)), number
    except ValueError:
        raise InvalidRequest(f"not the address of a resolver: {text!r} (one is like 10.0.0.2:53)") from None


def machine_servers(path: Path = _CONFIGURATION) -> tuple[Server, ...]:
    """Whom the machine itself asks."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    found: list[Server] = []
    for words in (line.split() for line in lines):
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                found.append((str(ipaddress.ip_address(words[1])), _PORT))
            except ValueError:
                continue
    return tuple(found[:_MOST_SERVERS]) or (("127.0.0.1", _PORT),)


def has_ipv6() -> bool:
    """Whether the machine has a route for IPv6: nothing is sent."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.connect(_FAR_AWAY)
    except OSError:
        return False
    return True


class _Exchange(asyncio.DatagramProtocol):
    """One question and its answer, over a socket of its own: a forged answer has to guess its port too."""

    def __init__(self, name: str, kind: int) -> None:
        self.answer: asyncio.Future[dns.DnsAnswer] = asyncio.get_running_loop().create_future()
        self._name, self._kind = name, kind
        self._number = secrets.randbelow(1 << 16)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.DatagramTransport", transport).sendto(dns.make_question(self._number, self._name, self._kind))

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self.answer.done():
            return
        try:
            self.answer.set_result(dns.parse_answer(data, self._number, self._name, self._kind))
        except dns.MalformedDns:
            pass  # the right one may still come

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_result(dns.DnsAnswer(dns.SERVER_FAILURE, ()))


class Resolver:
    """Asks for addresses of names, several at once."""

    def __init__(self, server: str | None) -> None:
        self._configured = () if server is None else (parse_server(server),)
        self._at_once = asyncio.Semaphore(_MOST_AT_ONCE)

    def _servers(self) -> Sequence[Server]:
        return self._configured or machine_servers()

    async def addresses(self, name: str) -> dns.DnsAnswer:
        """Resolve a name in its normal form, in both families; ``SERVER_FAILURE`` if nobody answered in time."""
        kinds = [dns.A, dns.AAAA] if has_ipv6() else [dns.A]
        try:
            async with asyncio.timeout(SECONDS):
                answers = await asyncio.gather(*(self._ask(name, kind) for kind in kinds))
        except TimeoutError:
            return dns.DnsAnswer(dns.SERVER_FAILURE, ())
        found = tuple(address for answer in answers for address in answer.addresses)
        return dns.DnsAnswer(dns.NO_ERROR if found else answers[0].code, found)

    async def _ask(self, name: str, kind: int) -> dns.DnsAnswer:
        answer = dns.DnsAnswer(dns.SERVER_FAILURE, ())
        async with self._at_once:
            for server in list(self._servers()) * _TRIES:
                try:
                    async with asyncio.timeout(TRY_SECONDS):
                        answer = await self._exchange(server, name, kind)
                except (TimeoutError, OSError):
                    continue
                if answer.truncated:
                    with contextlib.suppress(TimeoutError, OSError, EOFError, dns.MalformedDns):
                        async with asyncio.timeout(TRY_SECONDS):
                            answer = await _exchange_by_stream(server, name, kind)
                if answer.code in (dns.NO_ERROR, dns.NO_SUCH_NAME):
                    break
        return answer

    async def _exchange(self, server: Server, name: str, kind: int) -> dns.DnsAnswer:
        loop = asyncio.get_running_loop()
        transport, exchange = await loop.create_datagram_endpoint(lambda: _Exchange(name, kind), remote_addr=server)
        try:
            return await exchange.answer
        finally:
            transport.close()


async def _exchange_by_stream(server: Server, name: str, kind: int) -> dns.DnsAnswer:
    """The same over a connection, by which all of a large answer comes."""
    number = secrets.randbelow(1 << 16)
    question = dns.make_question(number, name, kind)
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(len(question).to_bytes(2, "big") + question)
        size = int.from_bytes(await reader.readexactly(2), "big")
        return dns.parse_answer(await reader.readexactly(size), number, name, kind)
    finally:
        writer.close()
