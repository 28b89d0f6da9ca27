"""How the language server ends, and what it leaves: nothing, whatever its editor does."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lsp.editor import COMMAND
from tests.patience import patient

_SECONDS = 30.0
SLEEPING = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


class Raw:
    """A server whose messages are read only when somebody wants them."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self._last = 0
        self.folder = folder
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary), "XDG_CONFIG_HOME": str(temporary)},
        )
        capabilities = {"experimental": {"tidebox": True}}
        self.send("initialize", {"processId": None, "rootUri": folder.as_uri(), "capabilities": capabilities})

    def send(self, method: str, params: Any) -> None:
        """Ask for something."""
        self._last += 1
        body = json.dumps({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def run(self) -> None:
        """Run a file, and do not wait for it."""
        uri = (self.folder / "main.py").as_uri()
        self.send("workspace/executeCommand", {"command": "tidebox.run", "arguments": [{"uri": uri}]})

    def read_until(self, words: bytes) -> None:
        """Read until the server has said something."""
        assert self.process.stdout is not None
        buffer = b""
        while words not in buffer:
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, buffer[-2000:]
            buffer += piece

    def close(self) -> None:
        """Leave nothing of it."""
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass
        self.process.wait()


@pytest.fixture
def raw(tmp_path: Path) -> Any:
    """A server with a folder; its temporary files are in a directory beside that."""
    folder, temporary = tmp_path / "folder", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    (folder / "main.py").write_text(SLEEPING)
    server = Raw(folder, temporary)
    yield server
    server.close()


def descendants(pid: int) -> set[int]:
    """The processes that one has started, and those that they have."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def eventually(fact: Any) -> None:
    """Wait until something is so; the processes that are meant have no one who waits for them."""
    deadline = time.monotonic() + patient(_SECONDS)
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_server_whose_editor_does_not_read_ends(raw: Raw) -> None:
    (raw.folder / "main.py").write_text("print('x' * 90_000)\n")
    for _ in range(4):
        raw.run()
    # More than the pipe holds is on its way.
    stdout = raw.process.stdout
    assert stdout is not None
    eventually(lambda: _waiting(stdout.fileno()) >= fcntl.fcntl(stdout.fileno(), fcntl.F_GETPIPE_SZ) // 2)
    assert raw.process.stdin is not None
    raw.process.stdin.close()
    assert raw.process.wait(patient(_SECONDS)) == 1


def _waiting(descriptor: int) -> int:
    buffer = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(buffer, sys.byteorder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_killed_takes_its_boxes_with_it(raw: Raw, number: int, tmp_path: Path) -> None:
    raw.run()
    raw.read_until(b'"up\\n"')
    started = descendants(raw.process.pid)
    assert started
    raw.process.send_signal(number)
    raw.process.wait(patient(_SECONDS))
    eventually(lambda: not any(map(alive, started)))
    eventually(lambda: not list((tmp_path / "temporary").glob("tidebox-*")))


def test_garbage_between_messages_ends_it_and_what_it_runs(raw: Raw, tmp_path: Path) -> None:
    raw.run()
    raw.read_until(b'"up\\n"')
    started = descendants(raw.process.pid)
    assert raw.process.stdin is not None
    raw.process.stdin.write(os.urandom(100_000))
    raw.process.stdin.flush()
    assert raw.process.wait(patient(_SECONDS)) == 1
    eventually(lambda: not any(map(alive, started)))
    eventually(lambda: not list((tmp_path / "temporary").glob("tidebox-*")))
