"""Git repositories for tests, and real servers of them on this machine."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer, ThreadingTCPServer

_IDENTITY = {
    "PATH": os.defpath + ":/usr/local/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


def git(directory: Path, *arguments: str, stdin: bytes | None = None) -> str:
    """Run git in a directory; what it printed."""
    done = subprocess.run(
        ["git", *arguments], cwd=directory, env=_IDENTITY, input=stdin, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


class Repository:
    """A repository with a working tree, and its bare copy that is served."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.work = root / "work" / name
        self.bare = root / "served" / f"{name}.git"
        self.work.mkdir(parents=True)
        git(self.work, "init", "-q", "-b", "main")
        self.bare.parent.mkdir(exist_ok=True)
        git(root, "init", "-q", "--bare", "-b", "main", str(self.bare))
        git(self.bare, "config", "uploadpack.allowAnySHA1InWant", "true")
        git(self.bare, "config", "http.receivepack", "false")

    def commit(self, files: dict[str, bytes | None], message: str = "a change") -> str:
        """Write and commit files; None removes one."""
        for name, content in files.items():
            path = self.work / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        git(self.work, "add", "-A")
        git(self.work, "commit", "-q", "--allow-empty", "-m", message)
        return self.push()

    def push(self) -> str:
        """Serve what is committed."""
        git(self.work, "push", "-q", "--all", "--force", str(self.bare))
        git(self.work, "push", "-q", "--tags", "--force", str(self.bare))
        return git(self.work, "rev-parse", "HEAD")

    def forge(self, entries: list[tuple[bytes, bytes, str]]) -> str:
        """Serve a commit of a tree that git itself would not make: (mode, name, id) each."""
        tree = self._object(
            "tree", b"".join(mode + b" " + name + b"\0" + bytes.fromhex(id) for mode, name, id in entries)
        )
        text = f"tree {tree}\nauthor a <a@e> 0 +0000\ncommitter a <a@e> 0 +0000\n\nx\n"
        commit = self._object("commit", text.encode())
        (self.bare / "refs" / "heads" / "main").write_text(commit + "\n")
        return commit

    def blob(self, content: bytes) -> str:
        """Store a file."""
        return self._object("blob", content)

    def tree(self, entries: list[tuple[bytes, bytes, str]]) -> str:
        """Store a tree."""
        return self._object(
            "tree", b"".join(mode + b" " + name + b"\0" + bytes.fromhex(id) for mode, name, id in entries)
        )

    def _object(self, kind: str, content: bytes) -> str:
        raw = f"{kind} {len(content)}".encode() + b"\0" + content
        name = hashlib.sha1(raw, usedforsecurity=False).hexdigest()
        path = self.bare / "objects" / name[:2] / name[2:]
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(zlib.compress(raw))
        return name


class _Daemon(StreamRequestHandler):
    """One connection to git's own daemon."""

    root: Path

    def handle(self) -> None:
        subprocess.run(
            ["git", "daemon", "--inetd", "--export-all", f"--base-path={self.root}", str(self.root)],
            env=_IDENTITY,
            stdin=self.request,
            stdout=self.request,
            stderr=subprocess.DEVNULL,
            check=False,
        )


@contextmanager
def git_daemon(root: Path) -> Iterator[str]:
    """A real git daemon; its URL."""
    handler = type("Handler", (_Daemon,), {"root": root / "served"})
    with _serving(ThreadingTCPServer(("127.0.0.1", 0), handler)) as port:
        yield f"git://127.0.0.1:{port}"


@contextmanager
def _serving(server: TCPServer) -> Iterator[int]:
    """Answers in threads of its own; its port."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Backend(BaseHTTPRequestHandler):
    """Serves repositories by git's own program for it."""

    protocol_version = "HTTP/1.0"
    root: Path

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("content-length") or 0)))

    def _serve(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        if path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", f"/{self.path.removeprefix('/moved/')}")
            self.end_headers()
            return
        if path.startswith("/private/"):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        environment = _IDENTITY | {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type") or "",
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding") or "",
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": self.headers.get("git-protocol") or "",
        }
        done = subprocess.run(["git", "http-backend"], env=environment, input=body, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        status = 200
        headers = []
        for line in head.decode().splitlines():
            name, _, value = line.partition(": ")
            if name == "Status":
                status = int(value.split()[0])
            else:
                headers.append((name, value))
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def git_http(root: Path) -> Iterator[str]:
    """A web server of repositories; its URL."""
    handler = type("Handler", (_Backend,), {"root": root / "served"})
    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def silent_server() -> Iterator[str]:
    """A server that takes connections and says nothing; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"git://127.0.0.1:{listener.getsockname()[1]}"
