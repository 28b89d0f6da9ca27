"""The rows of ``tidebox bench`` about live sandboxes: one is got, and programs, keys and files are sent to it."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tidebox.cli.copier import Copier
from tidebox.cli.figures import Row, Samples, Title
from tidebox.cli.served import PATIENCE_SECONDS
from tidebox.cli.server_bench import ServerBench
from tidebox.cli.typist import Typist
from tidebox.cli.yardsticks import BareProgram
from tidebox.config import Settings
from tidebox.errors import TideboxError
from tidebox.model.ids import new_id

EXEC_RATIO, EXEC_MILLISECONDS = 3.0, 3.0
ECHO_MILLISECONDS = 10.0
TRANSFER_MB_PER_SECOND = 200.0
TRANSFER_RATIO = 0.5
# What an installation keeps ready unless it is told otherwise.
STOCK = Settings().pool_sandboxes

_SESSIONS = "/v1/sandbox/sessions"
_HELLO = "print('hello')"
# Between two keys: a fast typist, and time for all else that the shell writes.
_KEY_SECONDS = 0.03
_FILE = "/v1/files/{}?path=transfer"


class SandboxBench(ServerBench):
    """Sandboxes of one client that keeps its connection."""

    def rows(self) -> Iterator[Row]:
        """Every row, as it is measured."""
        yield self._acquire()
        session = self._session()
        yield self._exec(session["token"])
        yield self._echo(session)
        yield from self._transfers(session["token"])
        self._release(session)

    def _acquire(self) -> Row:
        """A sandbox for a thread that has none."""

        def milliseconds() -> float:
            start = time.perf_counter()
            session = self._session()
            seconds = time.perf_counter() - start
            self._release(session)
            return seconds * 1000

        title = Title(
            what="a sandbox for a new thread, from the stock",
            yardstick="bare python3 -c",
            hold=1.5,
            better="lower",
            unit="ms",
        )
        bare = BareProgram(self._interpreters["python3"], "-c", _HELLO)
        return title.row(*self._in_turns(milliseconds, bare.seconds))

    def _exec(self, token: str) -> Row:
        def milliseconds() -> float:
            start = time.perf_counter()
            answer = json.loads(self._ask("POST", "/v1/exec", token, b'{"command":["/bin/true"]}'))
            seconds = time.perf_counter() - start
            if answer["exit_code"] != 0:
                raise TideboxError(f"true is false: {answer}")
            return seconds * 1000

        ours, theirs = self._in_turns(milliseconds, BareProgram("/bin/true", says=b"").seconds)
        measured, yardstick = Samples.of(ours), Samples.of(theirs)
        return Row(
            what="/bin/true in a live sandbox, POST /v1/exec",
            yardstick="bare /bin/true",
            hold=f"<= {EXEC_RATIO:g} + {EXEC_MILLISECONDS:g} ms",
            unit="ms",
            met=measured.p50 <= EXEC_RATIO * yardstick.p50 + EXEC_MILLISECONDS,
            ratio=measured.p50 / yardstick.p50,
            ours=measured,
            theirs=yardstick,
        )

    def _echo(self, session: dict[str, Any]) -> Row:
        """Keys on the terminal of a login shell, until each is seen; in turns with one that is in no box.

        Nothing is promised of the ratio: the other shows what the machine was busy with while this was measured.
        """
        address = session["sandbox"]["ws_base_url"] + "/shell/ws"
        headers = {"Authorization": f"Bearer {session['token']}"}
        ours: list[float] = []
        theirs: list[float] = []
        with (
            Typist() as typist,
            connect(address, additional_headers=headers, compression=None) as shell,
            connect(typist.url, open_timeout=PATIENCE_SECONDS, compression=None) as bare,
        ):
            shell.send(json.dumps({"type": "start"}))
            self._server.rest()
            for terminal in (shell, bare):
                _quiet(terminal, 1.0)
            # A key, and the one that takes it back.
            for number in range(2 * self._effort.samples):
                for terminal, times in ((shell, ours), (bare, theirs)):
                    times.append(_key(terminal, "x" if number % 2 == 0 else "\x7f"))
                    _quiet(terminal, _KEY_SECONDS)
        measured = Samples.of(ours)
        return Row(
            what="echo of a key in a shell, p99",
            yardstick="the same in a shell without a box",
            hold=f"< {ECHO_MILLISECONDS:g} ms",
            unit="ms",
            met=measured.p99 < ECHO_MILLISECONDS,
            value=measured.p99,
            ours=measured,
            theirs=Samples.of(theirs),
        )

    def _transfers(self, token: str) -> Iterator[Row]:
        """A file up and down, by one client, to a sandbox and to a server that only copies."""
        content = os.urandom(self._effort.transfer_bytes)
        speeds = []
        # Idle for so long that the server may have closed it.
        self._http.close()
        with Copier() as copier:
            plain = http.client.HTTPConnection(*copier.address, timeout=PATIENCE_SECONDS)
            _until_it_listens(plain)
            for _ in range(1 + self._effort.transfers):
                self._server.rest()
                ours = _copy(self._http, content, token)
                self._ask("POST", "/v1/files/remove?path=transfer", token)
                self._server.rest()
                speeds.append((ours, _copy(plain, content, token)))
            plain.close()
        for what, way in (("file up, to a sandbox", 0), ("file down, from a sandbox", 1)):
            title = Title(
                what=what,
                yardstick="the same through a bare HTTP server",
                hold=TRANSFER_RATIO,
                better="higher",
                unit="MB/s",
                enough=TRANSFER_MB_PER_SECOND,
            )
            yield title.row(*([pair[side][way] for pair in speeds[1:]] for side in (0, 1)))

    def _session(self) -> dict[str, Any]:
        body = json.dumps({"thread_id": new_id("thr"), "mode": "ensure"}).encode()
        session: dict[str, Any] = json.loads(self._ask("POST", _SESSIONS, self._server.key, body))
        return session

    def _release(self, session: dict[str, Any]) -> None:
        self._ask("DELETE", f"{_SESSIONS}/{session['session_id']}", self._server.key)

    def _rest(self) -> None:
        """Until the stock is full, and nothing is done any more."""
        deadline = time.perf_counter() + PATIENCE_SECONDS
        while True:
            self._server.rest()
            if self._server.level("sandbox_stock_ready") == (STOCK,):
                return
            if time.perf_counter() > deadline:
                raise TideboxError("the stock of sandboxes is not filled")


def _key(shell: ClientConnection, key: str) -> float:
    """Milliseconds until a key is seen."""
    start = time.perf_counter()
    shell.send(json.dumps({"type": "stdin", "data": key}))
    frame = json.loads(shell.recv(PATIENCE_SECONDS))
    milliseconds = (time.perf_counter() - start) * 1000
    if frame["type"] != "stdout":
        raise TideboxError(f"the shell did not echo: {frame}")
    return milliseconds


def _quiet(shell: ClientConnection, seconds: float) -> None:
    """Read until nothing comes for so long."""
    try:
        while True:
            shell.recv(seconds)
    except TimeoutError:
        return


def _copy(connection: http.client.HTTPConnection, content: bytes, token: str) -> tuple[float, float]:
    """MB/s up and down."""
    headers = {"Authorization": f"Bearer {token}"}
    start = time.perf_counter()
    connection.request("POST", _FILE.format("upload"), content, headers)
    answer = connection.getresponse()
    answer.read()
    up = time.perf_counter() - start
    if answer.status != http.HTTPStatus.OK:
        raise TideboxError(f"the upload was answered with {answer.status}")
    received = bytearray(len(content))
    start = time.perf_counter()
    connection.request("GET", _FILE.format("download"), headers=headers)
    answer = connection.getresponse()
    place, size = memoryview(received), 0
    while count := answer.readinto(place[size:]):
        size += count
    down = time.perf_counter() - start
    if received != content:
        raise TideboxError(f"{size} of {len(content)} bytes came back, or others")
    return len(content) / up / 1e6, len(content) / down / 1e6


def _until_it_listens(connection: http.client.HTTPConnection) -> None:
    """Wait for an answer: the socket listens from the start, but the program that answers has to be loaded first."""
    connection.request("GET", "/")
    connection.getresponse().read()
