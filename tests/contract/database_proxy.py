"""Stands before a PostgreSQL server, and hands on what comes from either side until it is told otherwise."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit


class Proxy:
    """A proxy that can lose what it is given."""

    def __init__(self, url: str, directory: Path) -> None:
        there = parse_qs(urlsplit(url).query)["host"][0]
        self.url = url.replace(quote(there, safe=""), quote(str(directory), safe=""))
        self.lost_answers = 0
        self._losing = 0
        self._target = f"{there}/.s.PGSQL.5432"
        self._pairs: list[socket.socket] = []
        self._swallowed: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{directory}/.s.PGSQL.5432")
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """Swallow what comes over the connections there are."""
        self._swallowed.update(self._pairs)

    def lose_answers(self, commits: int) -> None:
        """Hand on the next so many commits of changed runs, and cut their connections instead of answering."""
        self._losing = commits

    def close(self) -> None:
        for each in (self._listener, *self._pairs):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, there = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                there.connect(self._target)
                self._pairs += [here, there]
                for source, target in ((here, there), (there, here)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        # Only a client says such things.
        has_written = False
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                has_written = has_written or b"INSERT INTO sandbox_runs" in data or b"UPDATE sandbox_runs" in data
                if has_written and self._losing and b"COMMIT" in data:
                    has_written = False
                    self._losing -= 1
                    self.lost_answers += 1
                    # From now on nothing of what the database says arrives.
                    self._swallowed.add(target)
                    target.sendall(data)
                    # It answers when all is done; the other thread takes that and drops it.
                    threading.Timer(0.2, source.shutdown, [socket.SHUT_RDWR]).start()
                elif source not in self._swallowed:
                    target.sendall(data)


@contextlib.contextmanager
def standing_before(url: str) -> Iterator[Proxy]:
    """A proxy before the database of ``url``."""
    # Not below the directory of the test: the name of a socket is short.
    with tempfile.TemporaryDirectory(prefix="tidebox-") as directory:
        proxy = Proxy(url, Path(directory))
        yield proxy
        proxy.close()
