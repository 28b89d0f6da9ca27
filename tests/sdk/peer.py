"""A real WebSocket server on the loopback interface whose connections a test serves by itself."""

from __future__ import annotations

import http
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

Handler = Callable[["Talk"], object]


class Talk:
    """One connection, from the server's end."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    @property
    def headers(self) -> Headers:
        assert self._connection.request is not None
        return self._connection.request.headers

    def next(self, kind: str | None = None) -> dict[str, Any]:
        """The client's next message, which must be of that kind."""
        message: dict[str, Any] = json.loads(self._connection.recv(timeout=20))
        assert kind in (None, message["type"])
        return message

    def say(self, kind: str, execution: str | None = None, **fields: Any) -> None:
        envelope = {"v": 1, "type": kind, "ts": "2026-01-01T00:00:00.000Z"}
        self.say_raw(json.dumps(envelope | ({} if execution is None else {"id": execution}) | fields))

    def say_raw(self, text: str | bytes) -> None:
        self._connection.send(text, text=True)

    def send_bytes(self, data: bytes) -> None:
        """Send what need not be a frame."""
        self._connection.socket.sendall(data)

    def finish(self, execution: str, status: str = "completed", exit_code: int | None = 0) -> None:
        self.say("status", execution, status=status)
        self.say("result", execution, exit_code=exit_code, duration_ms=5)

    def answer(self, *printed: str) -> str:
        """Serve one execution that prints this; its id."""
        name: str = self.next("execute")["id"]
        self.say("ack", name)
        self.say("status", name, status="running")
        for text in printed:
            self.say("stdout", name, data=text)
        self.finish(name)
        return name

    def hang_up(self) -> None:
        """As a machine that lost its power: no goodbye."""
        with suppress(OSError):  # the client may have been the first
            self._connection.socket.shutdown(socket.SHUT_RDWR)

    def wait_closed(self) -> int | None:
        """Until the client is gone; the code it gave."""
        try:
            while True:
                self._connection.recv(timeout=20)
        except ConnectionClosed:
            return self._connection.close_code


class Peer:
    """Where the server is, and when it was connected to."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.opened: list[float] = []
        self.failures: list[BaseException] = []


def refuse(status: int, body: Any) -> Response:
    """An HTTP answer in place of the upgrade."""
    reason = http.HTTPStatus(status).phrase
    return Response(status, reason, Headers({"Content-Type": "application/json"}), json.dumps(body).encode())


@contextmanager
def serving(
    *handlers: Handler | Response, version: str | None = "1", sockets: Sequence[socket.socket] = ()
) -> Iterator[Peer]:
    """A server whose first connection the first handler serves, and so on; what a handler asserted must have held."""
    turns = iter(handlers)
    lock = threading.Lock()
    chosen: dict[ServerConnection, Handler] = {}

    def begin(connection: ServerConnection, request: Request) -> Response | None:
        with lock:
            peer.opened.append(time.monotonic())
            handler = next(turns)
        if isinstance(handler, Response):
            return handler
        chosen[connection] = handler
        return None

    def finish(connection: ServerConnection, request: Request, response: Response) -> Response:
        if version is not None:
            response.headers["X-Protocol-Version"] = version
        return response

    def serve_one(connection: ServerConnection) -> None:
        try:
            chosen[connection](Talk(connection))
        except ConnectionClosed:
            pass
        except BaseException as error:
            peer.failures.append(error)

    [listener] = sockets or [socket.create_server(("127.0.0.1", 0))]
    with serve(serve_one, sock=listener, process_request=begin, process_response=finish, compression=None) as server:
        peer = Peer(listener.getsockname()[1])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield peer
        finally:
            server.shutdown()
            thread.join()
    assert peer.failures == []
