"""A PostgreSQL server for tests: a real one, in a directory of its own, reached only by a socket in there."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

_numbers = itertools.count()


def missing() -> str | None:
    """What keeps this machine from running one."""
    if _programs() is None:
        return "PostgreSQL is not installed (the Debian package is postgresql)"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL does not run as root, and there is no user postgres"
    return None


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


class Server:
    """A running server; it must be stopped."""

    def __init__(self, directory: Path) -> None:
        programs = _programs()
        assert programs is not None
        self._directory = directory
        self._user: dict[str, int | list[int]] = {}
        if os.geteuid() == 0:
            entry = pwd.getpwnam("postgres")
            self._user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            os.chown(directory, entry.pw_uid, entry.pw_gid)
        self._postgres = programs / "postgres"
        data = directory / "data"
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "tidebox", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=directory,
            **self._user,  # type: ignore[call-overload]
        )
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # What is killed is the server, never the machine: nothing needs to be on the disk.
        sockets = f"unix_socket_directories={self._directory}"
        settings = ["listen_addresses=", sockets, "shared_buffers=16MB", "fsync=off"]
        self._process = subprocess.Popen(
            [self._postgres, "-D", self._directory / "data", *(word for item in settings for word in ("-c", item))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._directory,
            **self._user,  # type: ignore[call-overload]
        )
        import psycopg

        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url("public")).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def url(self, schema: str) -> str:
        """Where one schema of its database is."""
        options = quote(f"-csearch_path={schema}")
        return f"postgresql://tidebox@/postgres?host={quote(str(self._directory), safe='')}&options={options}"

    def fresh_url(self) -> str:
        """A new, empty schema."""
        import psycopg

        schema = f"test_{next(_numbers)}"
        with psycopg.connect(self.url("public"), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        return self.url(schema)

    def kill(self) -> None:
        """End it at once."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """A server for as long as the context lasts."""
    # Not pytest's directory: the server's own user must get there, and a socket's path is short.
    directory = Path(tempfile.mkdtemp(prefix="tidebox-pg-"))
    try:
        server = Server(directory)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(directory)
