"""A real terminal: tmux, whose screen can be read and whose keys can be typed."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_SECONDS = 60


class Screen:
    """A terminal of its own with a shell in it, that keeps the terminal's state as a user's would."""

    def __init__(self, home: Path, env: Mapping[str, str], rows: int = 24, columns: int = 80) -> None:
        self._socket = str(home / "tmux.sock")
        self._env = {**env, "TERM": "xterm-256color", "PS1": "here$ ", "LC_ALL": "C.UTF-8"}
        # A child that ends with us, however we end: one that goes its own ways would be left behind by a killed test.
        self._server = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "tmux", "-D", "-S", self._socket, "-f", os.devnull],
            env=self._env,
            stdin=subprocess.DEVNULL,
        )
        try:
            self._wait_for_server()
            self._tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), "bash", "--norc", "--noprofile")
            self.wait_for("here$")
        except BaseException:
            self._end()
            raise

    def _wait_for_server(self) -> None:
        deadline = time.monotonic() + 20
        with socket.socket(socket.AF_UNIX) as sock:
            while sock.connect_ex(self._socket):
                assert self._server.poll() is None, "tmux did not start"
                assert time.monotonic() < deadline, "tmux does not answer"
                time.sleep(0.02)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-N", "-S", self._socket, *words],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._server.terminate()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def type(self, line: str) -> None:
        """Type a line, and Enter."""
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def run(self, words: Sequence[str]) -> None:
        """Type a command."""
        self.type(shlex.join(words))

    def press(self, *keys: str) -> None:
        """Press keys, named as tmux does: C-c, Escape, d."""
        self._tmux("send-keys", *keys)

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def lines(self) -> list[str]:
        """What is on the screen, lines that were wrapped put together, without empty ones."""
        return [line.rstrip() for line in self._tmux("capture-pane", "-p", "-J").splitlines() if line.strip()]

    def modes(self) -> str:
        """Whether the other screen is shown, the mouse is reported, there is a cursor, keys are those of a keypad."""
        wanted = ("alternate_on", "mouse_any_flag", "cursor_flag", "keypad_cursor_flag", "keypad_flag")
        return self._tmux("display-message", "-p", "".join(f"#{{{name}}}" for name in wanted)).strip()

    def wait_for(self, begin: str = "", *, end: str = "") -> list[str]:
        """The screen, once a line of it begins and ends with these texts."""
        return self.wait_until(
            lambda lines: any(line.startswith(begin) and line.endswith(end) for line in lines), f"{begin!r}...{end!r}"
        )

    def wait_for_prompt(self, prompt: str) -> None:
        """Wait until the last line is a prompt after which nothing was typed: what is typed now is read."""
        self.wait_until(lambda lines: lines[-1:] == [prompt], f"prompt {prompt!r}")

    def wait_until(self, holds: Callable[[list[str]], bool], what: str) -> list[str]:
        """The screen, once this holds of its lines."""
        deadline = time.monotonic() + _SECONDS
        while not holds(found := self.lines()):
            assert time.monotonic() < deadline, f"no {what} on the screen: {found}"
            time.sleep(0.05)
        return found
