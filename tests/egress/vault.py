"""A machine whose operator has secrets, and a server that keeps and repeats what it is told."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
from pathlib import Path
from typing import Any

from tests.egress.world import ONE, TWO, Machine
from tidebox.egress import secrets
from tidebox.model.egress import allowlist_of
from tidebox.model.requested_egress import BoxEgress, EgressRules, read_requested_egress

VALUE, OTHER = "s3cr3t-of-the-operator-5d41402abc4b", "another-one-7215ee9c7d9d"
AWS = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"
PORT = 8443
HEADER = {"host": "one.example.com", "name": "Authorization", "secret": "ONE_KEY", "format": "Bearer {}"}


class Vault:
    """A machine with secrets, and a server of TLS that keeps and repeats what it is told."""

    def __init__(self, beside: Machine, directory: Path) -> None:
        file = directory / "secrets.json"
        file.write_text(
            json.dumps(
                {
                    "ONE_KEY": {"value": VALUE, "hosts": ["one.example.com"]},
                    "TWO_KEY": {"value": OTHER, "hosts": ["two.example.com"]},
                    "CLOUD": {
                        "aws": {"access_key_id": "AKIDEXAMPLE", "secret_access_key": AWS},
                        "hosts": ["one.example.com"],
                    },
                }
            )
        )
        file.chmod(0o600)
        self.machine = Machine(directory, beside, secrets=file, ca_file=beside.world.ca)
        self.rules = EgressRules(server=allowlist_of({"hosts": ["*.example.com"]}), secrets=secrets.describe(file))
        self.requests: list[bytes] = []
        self._boxes = iter(range(1000))

        async def serve() -> None:
            for address in (ONE, TWO):
                self.machine.world.serve((address, PORT), self._repeat)

        self.machine.do(serve())

    def _repeat(self, sock: socket.socket) -> None:
        """Answers with the request itself: its head, and its body in pieces."""
        with contextlib.suppress(ssl.SSLError), self.machine.world.tls.wrap_socket(sock, server_side=True) as secure:
            stream = secure.makefile("rwb")
            while line := stream.readline():
                head = line
                while (line := stream.readline()) not in (b"\r\n", b""):
                    head += line
                size = re.search(rb"content-length: ([0-9]+)", head)
                body = stream.read(int(size[1])) if size else b""
                while b"transfer-encoding: chunked" in head:
                    length = int(stream.readline(), 16)
                    body += stream.read(length)
                    line = stream.readline()
                    if not length:
                        while line not in (b"\r\n", b""):
                            body += line
                            line = stream.readline()
                        break
                self.requests.append(head + body)
                if head.startswith(b"GET /kept "):
                    head, body = self.requests[-2], b""
                if b"upgrade: bytes" in head:
                    stream.write(b"HTTP/1.1 101 Switching\r\nUpgrade: bytes\r\nConnection: upgrade\r\n\r\n")
                    stream.flush()
                    while data := secure.recv(4096):
                        secure.sendall(data)
                    return
                if b"upgrade: echo" in head:
                    stream.write(b"HTTP/1.1 101 Switching\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n")
                    stream.flush()
                    while data := stream.readline():
                        stream.write(data)
                        stream.flush()
                    return
                stream.write(
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Back: " + head.split()[1] + b"\r\n\r\n"
                )
                for piece in (head[:40], head[40:60], head[60:], body):
                    if piece:
                        stream.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                stream.write(b"0\r\n\r\n")
                stream.flush()

    def egress(self, **ask: Any) -> BoxEgress:
        """The rules of one box."""
        asked = {"hosts": ["one.example.com", "two.example.com"], **ask}
        return self.rules.agree([read_requested_egress(asked)], user="", owner=True, box=f"b{next(self._boxes)}")

    def heard(self) -> bytes:
        """The last request."""
        return self.requests[-1]
