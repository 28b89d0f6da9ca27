"""The scenarios of ``@modelcontextprotocol/conformance`` that apply to a server whose tools are its own.

Run by ``make test-mcp``, which gets the package, and the Node.js it needs, from npm. The others want tools, resources
and prompts of certain names (``test_simple_text`` and so on), logging, sampling, elicitation or tasks.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer

PLACE = Path(os.environ.get("TIDEBOX_CONFORMANCE", Path(__file__).parents[2] / ".conformance"))
NODE = PLACE / "node_modules/node/bin/node"
PROGRAM = PLACE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"

LEGACY, MODERN = "2025-11-25", "2026-07-28"
SCENARIOS = [
    ("server-initialize", LEGACY),
    ("server-session-lifecycle", LEGACY),
    ("ping", LEGACY),
    ("tools-list", LEGACY),
    ("resources-list", LEGACY),
    ("server-sse-multiple-streams", LEGACY),
    ("dns-rebinding-protection", LEGACY),
    ("server-stateless", MODERN),
    ("tools-list", MODERN),
    ("resources-list", MODERN),
    ("sep-2164-resource-not-found", MODERN),
    ("server-sse-multiple-streams", MODERN),
    ("dns-rebinding-protection", MODERN),
    ("caching", MODERN),
    ("http-header-validation", MODERN),
]


DOES_NOT_APPLY = (
    # A tool of a certain name would be needed.
    "Not testable: server does not list the diagnostic tool",
    # There are no prompts, and that is what a server without them says.
    "prompts/list returned JSON-RPC error -32601",
)
"""How the errors of checks begin that are about something that this server does not claim to have."""


class CredentialProxy:
    """Puts the server's key on every request: the scenarios know of none."""

    def __init__(self, server: RunningServer) -> None:
        self._target = server.address
        self._added = f"X-API-KEY: {server.key}\r\nConnection: close\r\n".encode()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # One request on each connection, so that nothing but its head has to be understood.
        with client, socket.create_connection(self._target) as server:
            data = b""
            while b"\r\n\r\n" not in data:
                if not (piece := client.recv(65536)):
                    return
                data += piece
            head, _, rest = data.partition(b"\r\n\r\n")
            line, _, headers = head.partition(b"\r\n")
            kept = re.sub(rb"(?im)^connection:[^\r]*\r\n", b"", headers + b"\r\n")
            server.sendall(line + b"\r\n" + self._added + kept + b"\r\n" + rest)
            backward = threading.Thread(target=_copy, args=(server, client), daemon=True)
            backward.start()
            _copy(client, server)
            backward.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture(scope="module")
def proxy(mcp_server: RunningServer) -> Iterator[CredentialProxy]:
    """The server as if it asked for no credential."""
    made = CredentialProxy(mcp_server)
    yield made
    made.close()


@pytest.mark.parametrize(("scenario", "version"), SCENARIOS)
def test_a_scenario_passes(proxy: CredentialProxy, scenario: str, version: str, tmp_path: Path) -> None:
    url = f"http://localhost:{proxy.port}/mcp"
    words = ["--url", url, "--scenario", scenario, "--spec-version", version, "-o", str(tmp_path)]
    done = subprocess.run([NODE, PROGRAM, "server", *words], capture_output=True, text=True, timeout=90, check=False)
    passed = re.search(r"Passed: (\d+)/(\d+), (\d+) failed", done.stdout)
    assert passed is not None, done.stdout[-4000:] + done.stderr[-2000:]
    errors = re.findall(r"^ +Error: (.*)$", done.stdout.partition("=== Failed Checks ===")[2], re.MULTILINE)
    assert len(errors) == int(passed[3]), done.stdout[-6000:]
    assert [error for error in errors if not error.startswith(DOES_NOT_APPLY)] == []
    assert int(passed[1]) > 0
