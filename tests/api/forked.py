"""Servers that are forked from one that has loaded everything: a fresh one computes for seconds until it answers.

What is forked is the real command, in a process with the arguments, environment and streams it is given. How it starts
by itself is tested in ``test_server_start``.
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
from typing import TextIO

from tests.boxes import ROOT


class ForkedServer:
    """What ``subprocess.Popen`` is of a command, as far as the tests use it."""

    def __init__(self, pid: int, report: int, stdout: TextIO, stderr: TextIO) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
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
            raise subprocess.TimeoutExpired("tidebox serve", timeout or 0.0)
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


def fork_server(arguments: list[str], environment: dict[str, str]) -> ForkedServer:
    """A new server."""
    out, err, report = os.pipe(), os.pipe(), os.pipe()
    message = json.dumps({"arguments": arguments, "environment": environment}).encode()
    given = [end for _, end in (out, err, report)]
    socket.send_fds(_preloaded(), [message], given)
    for end in given:
        os.close(end)
    pid = b""
    while not pid.endswith(b"\n"):
        piece = os.read(report[0], 1)
        assert piece, "what servers are forked from has ended"
        pid += piece
    return ForkedServer(int(pid), report[0], os.fdopen(out[0]), os.fdopen(err[0]))


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
