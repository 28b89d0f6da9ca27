"""The real command as the user of a server types it, with a home of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.api.conftest import RunningServer
from tests.api.forked import run_forked
from tests.cli.command import TIDEBOX

_OURS = ("SANDBOX_", "TIDEBOX_", "XDG_CONFIG_HOME", "NO_COLOR")


class Remote:
    """Runs ``tidebox`` against one server."""

    def __init__(self, url: str, key: str | None, home: Path) -> None:
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        self.env |= {"HOME": str(home), "TIDEBOX_URL": url, "SANDBOX_DATA_DIR": str(home / "data")}
        if key is not None:
            self.env["TIDEBOX_API_KEY"] = key
        self.home = home

    @classmethod
    def of(cls, server: RunningServer, home: Path) -> Remote:
        """The one for a server, with its key."""
        return cls(server.url, server.key, home)

    def __call__(
        self, *words: str | Path, stdin: bytes = b"", seconds: float = 100, **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end."""
        return run_forked([*map(str, words)], {**self.env, **env}, self.home, stdin, seconds)

    def start(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a command with pipes."""
        return subprocess.Popen(
            [TIDEBOX, *words],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.home,
        )

    def text(self, *words: str | Path) -> str:
        """What a command that succeeds prints."""
        done = self(*words)
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout.decode().rstrip("\n")
