"""A server on the loopback interface that answers as it likes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Answer = Callable[[str, str], Any]
"""What is answered to a method and a path: bytes as they are, pieces of bytes, or a value as JSON."""

BOX: dict[str, Any] = {"id": "bind-1", "session_id": "bind-1", "binding_id": "bind-1"}
BOX |= {"scope": {"type": "thread", "id": "box"}, "sandbox_id": "sb-abc", "state": "active", "status": "active"}
LATER = "2100-01-01T00:00:00Z"


class HostileServer:
    """Where it is, and what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.url = ""
        self.asked: list[str] = []
        self._answer = answer

    def answer(self, method: str, target: str) -> Any:
        """What a request is answered."""
        path = urlsplit(target).path
        self.asked.append(f"{method} {path}")
        said = self._answer(method, path)
        if said is not None:
            return said
        if path == "/v1/sandbox/sessions" and method == "GET":
            return {"items": [BOX], "limit": 1000, "offset": 0, "has_more": False}
        sandbox = {"id": "sb-abc", "provider": "local", "http_base_url": f"{self.url}/v1"}
        sandbox |= {"sandbox_id": "sb-abc", "ws_base_url": f"{self.url}/v1".replace("http", "ws")}
        grant = {"session_id": "bind-1", "binding_id": "bind-1", "thread_id": "box", "sandbox": sandbox}
        grant |= {"scope": BOX["scope"], "token": "grant", "access": {"token": "grant"}, "state": "active"}
        return grant | {
            "expires_at": LATER,
            "lease_expires_at": LATER,
            "granted_capabilities": ["fs_read", "fs_write", "exec", "shell"],
            "recreated": False,
            "status": "active",
        }


@contextmanager
def answering(answer: Answer) -> Iterator[HostileServer]:
    """A server whose answers are these; where it is None, those of one with a sandbox named box."""
    hostile = HostileServer(answer)

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            said = hostile.answer(self.command, self.path)
            if isinstance(said, dict | list):
                said = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            try:
                for piece in [said] if isinstance(said, bytes) else said:
                    self.wfile.write(piece)
            except OSError:
                pass  # the client had enough

        do_GET = do_POST = do_DELETE = _serve

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hostile.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hostile
        finally:
            server.shutdown()
            thread.join()


def file(path: str, kind: str = "file", size: int = 3) -> dict[str, Any]:
    """What a server says of a file."""
    name = path.rpartition("/")[2]
    return {"path": path, "name": name, "type": kind, "size": size, "mode": "0644", "modified_at": LATER}
