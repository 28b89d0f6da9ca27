"""One sandbox as processes of this machine: ``runsc run``, which is the parent of sentry and gofer.

They are in a control group of their own where there is one, from before runsc starts. When this process dies, so does
runsc, by a signal that the kernel sends, and with it sentry and gofer; and the agent inside ends when its connection
does.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Sequence

# As programs of native boxes have it: the machine ends those before the server when its memory is short.
_OOM_SCORE = 500
# Raises that score, joins the control groups that it is given, then becomes the rest of its arguments.
_JOIN = f"""
read -r score < /proc/self/oom_score_adj
[ "$score" -ge {_OOM_SCORE} ] || echo {_OOM_SCORE} > /proc/self/oom_score_adj || exit 125
while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done
shift
exec "$@"
"""
_SHELL = "/bin/sh"
_DIE_WITH_PARENT = ("--pdeathsig", "KILL", "--")
_MOST_WORDS = 8192
_READ = 4096


class SandboxProcess:
    """A runsc that was started; ``connection`` is our end of the standard streams of its pid 1."""

    def __init__(self, command: Sequence[str], groups: Sequence[str], setpriv: str | None) -> None:
        """``groups`` are the files of control groups by which a process joins; raises OSError."""
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        words, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        fcntl.fcntl(said, fcntl.F_SETFL, 0)
        if setpriv is not None:
            command = [setpriv, *_DIE_WITH_PARENT, *command]
        try:
            # Not in a thread: the signal comes when the thread ends that was the parent.
            self._process = subprocess.Popen(
                [_SHELL, "-c", _JOIN, "tidebox", *groups, "--", *command],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=said,
                env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                start_new_session=True,
                cwd="/",
            )
        except BaseException:
            ours.close()
            os.close(words)
            raise
        finally:
            theirs.close()
            os.close(said)
        self.connection = ours
        self.pid = self._process.pid
        self._words = b""
        self._words_fd = words
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(words, self._hear)
        self._loop.add_reader(self._pidfd, self._on_end)

    @property
    def last_words(self) -> str:
        """The last line that it wrote to stderr, if any."""
        lines = self._words.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else ""

    def _hear(self) -> None:
        try:
            data = os.read(self._words_fd, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._words = (self._words + data)[-_MOST_WORDS:]
        if not data:
            self._stop_hearing()

    def _stop_hearing(self) -> None:
        if self._words_fd >= 0:
            self._loop.remove_reader(self._words_fd)
            os.close(self._words_fd)
            self._words_fd = -1

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        if self._words_fd >= 0:
            with contextlib.suppress(OSError):
                self._words = (self._words + os.read(self._words_fd, _READ))[-_MOST_WORDS:]
            self._stop_hearing()
        self._ended.set()

    @property
    def code(self) -> int | None:
        """Exit status of the process, as it was last polled; None while it runs."""
        return self._process.returncode

    def kill(self) -> None:
        """End it; sentry and gofer follow."""
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def ended(self) -> None:
        """Wait until it is gone."""
        await self._ended.wait()
