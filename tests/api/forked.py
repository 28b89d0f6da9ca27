"""Commands that are forked from one that has loaded everything: a fresh server computes for seconds until it answers.

What is forked is the real command, in a process with the arguments, environment and streams it is given. How it starts
by itself is tested in ``test_server_start``, and in ``tests.cli`` by what does not use ``Remote``.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TextIO

from tests.boxes import ROOT
from tests.pipes import exchanging


class Forked:
    """What ``subprocess.Popen`` is of a command, as far as the tests use it."""

    def __init__(self, pid: int, report: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._report = report
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("tidebox", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as nobody can prepare for."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._report], [], [], seconds)[0]:
                self.returncode = int(os.read(self._report, 64))
                os.close(self._report)
            return self.returncode


class ForkedServer(Forked):
    """A server, whose output is read while it runs."""

    def __init__(self, pid: int, report: int, stdout: TextIO, stderr: TextIO) -> None:
        super().__init__(pid, report)
        self.stdout = stdout
        self.stderr = stderr


def fork_server(arguments: list[str], environment: dict[str, str]) -> ForkedServer:
    """A new server."""
    out, err = os.pipe(), os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    pid, report = _fork(arguments, environment, os.getcwd(), (null, out[1], err[1]))
    return ForkedServer(pid, report, os.fdopen(out[0]), os.fdopen(err[0]))


def run_forked(
    arguments: list[str], environment: dict[str, str], directory: Path, stdin: bytes, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    (given, feed), out, err = os.pipe(), os.pipe(), os.pipe()
    command = Forked(*_fork(arguments, environment, str(directory), (given, out[1], err[1])))
    with exchanging(stdin, feed, out[0], err[0]) as outputs:
        try:
            code = command.wait(seconds)
        except subprocess.TimeoutExpired:
            command.kill()
            raise
    return subprocess.CompletedProcess(["tidebox", *arguments], code, *(output.result() for output in outputs))


def _fork(
    arguments: list[str], environment: dict[str, str], directory: str, streams: tuple[int, int, int]
) -> tuple[int, int]:
    """The pid of a new command, and the pipe that tells how it ended; its streams are closed here."""
    report, reporting = os.pipe()
    request = {"arguments": arguments, "environment": environment, "directory": directory}
    given = (*streams, reporting)
    socket.send_fds(_preloaded(), [json.dumps(request).encode()], given)
    for end in given:
        os.close(end)
    pid = b""
    while not pid.endswith(b"\n"):
        piece = os.read(report, 1)
        assert piece, "what commands are forked from has ended"
        pid += piece
    return int(pid), report


@functools.cache
def _preloaded() -> socket.socket:
    """One for all tests of this process; it ends when nobody can ask it any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen([sys.executable, "-m", "tests.api.preloaded"], cwd=ROOT, stdin=theirs.fileno())

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
