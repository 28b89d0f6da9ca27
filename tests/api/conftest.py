"""A real ``tidebox serve`` for the tests that talk to one."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pytest

from tests.api.forked import ForkedServer, fork_server
from tests.boxes import descendants
from tests.cli.command import TIDEBOX
from tests.runtimes import runtime_settings

Process = subprocess.Popen[str] | ForkedServer

_START_SECONDS = 50.0
_STOP_SECONDS = 50.0
# Of the settings that a test sees only those it sets itself.
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}

# For servers that run nothing: theirs need no cells, and the others' start sooner.
NO_CELLS = {"pool_blank": "0", "pool_python": "0", "pool_node": "0"}


@dataclass
class RunningServer:
    """A server process and how to reach it."""

    process: Process
    url: str
    key: str
    data_dir: Path
    banner: list[str]
    log_lines: list[str] = field(default_factory=list)
    """What it wrote to standard error; complete once it was stopped."""
    readers: list[threading.Thread] = field(default_factory=list)

    @property
    def ws_url(self) -> str:
        """Where its Fathom socket is."""
        return self.url.replace("http://", "ws://") + "/ws"

    @property
    def pid(self) -> int:
        """The server process."""
        return self.process.pid

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    @property
    def headers(self) -> dict[str, str]:
        """The credential of the single user."""
        return {"X-API-KEY": self.key}

    @property
    def log(self) -> str:
        """Everything it logged so far."""
        return "".join(self.log_lines)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it, wait for its end, and give its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end, and give its exit code."""
        code = self.process.wait(_STOP_SECONDS)
        for reader in self.readers:
            reader.join()
        return code


def start(data_dir: Path, *arguments: str, **settings: str) -> RunningServer:
    """Start a server on a free port; ``settings`` are given as ``name="value"`` for ``SANDBOX_NAME``."""
    return started(fork_server(_words(data_dir, arguments), _environment(settings)), data_dir, settings)


def start_command(data_dir: Path, *arguments: str, under: Sequence[str] = (), **settings: str) -> RunningServer:
    """The same as a user does it, or as the command ``under`` does."""
    process = subprocess.Popen(
        [*under, TIDEBOX, *_words(data_dir, arguments)],
        env=_environment(settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return started(process, data_dir, settings)


def _words(data_dir: Path, arguments: Sequence[str]) -> list[str]:
    return ["serve", "--port", "0", "--data-dir", str(data_dir), *arguments]


def _environment(settings: dict[str, str]) -> dict[str, str]:
    given = runtime_settings() | settings
    return _CLEAN | {f"SANDBOX_{name.upper()}": value for name, value in given.items()}


def started(process: Process, data_dir: Path, settings: dict[str, str]) -> RunningServer:
    """The server that a process becomes, once it says where it is."""
    assert process.stdout is not None
    assert process.stderr is not None
    banner: queue.Queue[str | None] = queue.Queue()
    log_lines: list[str] = []
    readers = [
        threading.Thread(target=_read, args=(process.stdout, banner.put, lambda: banner.put(None)), daemon=True),
        threading.Thread(target=_read, args=(process.stderr, log_lines.append), daemon=True),
    ]
    for reader in readers:
        reader.start()
    lines: list[str] = []
    while not any(line.startswith("  isolation") for line in lines):
        line = banner.get(timeout=_START_SECONDS)
        if line is None:
            readers[1].join()
            raise AssertionError(f"the server ended with {process.wait()}: {log_lines}")
        lines.append(line.rstrip())
    match = re.search(r"http://\S+", "\n".join(lines))
    assert match is not None
    key = settings.get("api_key") or (data_dir / "api-key").read_text().strip()
    return RunningServer(process, match[0], key, data_dir, lines, log_lines, readers)


def _read(stream: TextIO, take: Callable[[str], None], at_end: Callable[[], None] = lambda: None) -> None:
    with stream:
        for line in stream:
            take(line)
    at_end()


def finish(server: RunningServer) -> None:
    """End a server that may have ended already, and see that nothing of it is left."""
    below = descendants(server.pid)
    if server.process.poll() is None:
        assert server.stop() == 0, server.log
    server.wait()
    deadline = time.monotonic() + 30
    while left := [pid for pid in below if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with the default settings, but for the limits on how much one user may ask, shared by many tests."""
    server = start(tmp_path_factory.mktemp("server"), rate_limit="off")
    yield server
    finish(server)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers with settings of their own; ends them after the test."""
    servers: list[RunningServer] = []

    def make(*arguments: str, data_dir: Path | None = None, **settings: str) -> RunningServer:
        server = start(data_dir or tmp_path / f"server{len(servers)}", *arguments, **settings)
        servers.append(server)
        return server

    yield make
    for server in servers:
        finish(server)
