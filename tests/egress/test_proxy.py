"""A proxy above: everything is dialled through it, to addresses that are pinned here."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.egress.world import ALL, ONE, TWO, Machine, rules

PORT = 3128


class Proxy:
    """Knows CONNECT, wants a password, and keeps what it is asked."""

    def __init__(self, beside: Machine, directory: Path) -> None:
        self.asked: list[str] = []
        self.machine = Machine(directory, beside, proxy=f"http://me:a%20word@{TWO}:{PORT}")

        async def serve() -> None:
            beside.world.serve((TWO, PORT), self._serve)

        beside.do(serve())

    def _serve(self, sock: socket.socket) -> None:
        stream = sock.makefile("rb", 0)
        line = stream.readline().decode()
        head = b""
        while (more := stream.readline()) not in (b"\r\n", b""):
            head += more
        self.asked.append(line.split()[1])
        credential = base64.b64encode(b"me:a word")
        host, _, port = line.split()[1].rpartition(":")
        if b"Proxy-Authorization: Basic " + credential not in head or port == "81":
            sock.sendall(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection((host.strip("[]"), int(port))) as upstream:
            sock.sendall(b"HTTP/1.1 200 Connected\r\nVia: test\r\n\r\n")
            back = threading.Thread(target=_copy, args=(upstream, sock))
            back.start()
            _copy(sock, upstream)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def proxy(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    made = Proxy(machine, tmp_path_factory.mktemp("proxy"))
    yield made
    made.machine.stop()


def test_connections_go_through_the_proxy(proxy: Proxy) -> None:
    egress = rules(ALL, {"hosts": ["one.example.com"]})
    ran = proxy.machine.run(["curl", "-sS4", "http://one.example.com/"], egress)
    assert ran.out == f"hello from {ONE} over http\n", ran.err
    assert proxy.asked[-1] == f"{ONE}:80"
    ran = proxy.machine.run(["curl", "-sSk6", "https://one.example.com/"], egress)
    assert "over https" in ran.out, ran.err
    assert proxy.asked[-1].endswith("]:443")


def test_what_the_proxy_does_not_let_through_is_not_reached(proxy: Proxy) -> None:
    ran = proxy.machine.run(["curl", "-sS4", "http://one.example.com:81/"], rules(ALL, {"hosts": ["one.example.com"]}))
    assert ran.ending.exit_code != 0
    count = len(proxy.asked)
    ran = proxy.machine.run(["curl", "-sS", "http://two.example.com/"], rules(ALL, {"hosts": ["one.example.com"]}))
    assert ran.ending.exit_code != 0
    assert len(proxy.asked) == count
