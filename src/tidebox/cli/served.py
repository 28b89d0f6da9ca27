"""A real ``tidebox serve`` for measurements: a process of its own, on a free port, with a data directory of its own."""

from __future__ import annotations

import http.client
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tidebox.cli.yardsticks import ENDS_WITH_PARENT, busy_nanoseconds
from tidebox.errors import TideboxError

PROGRAM = ENDS_WITH_PARENT + "import sys; from tidebox.cli.main import main; sys.exit(main())"
_STOP_SECONDS = 60.0
# A server counts as at rest when for this time its boxes and the spawner have used no more processor time than this.
_REST_SECONDS = 0.04
_QUIET_NANOSECONDS = 500_000
_LOOK_SECONDS = 0.005
PATIENCE_SECONDS = 60.0


class Served:
    """A server process. ``settings`` are environment variables without their ``SANDBOX_``.

    ``program`` is Python that does what the ``tidebox`` command does, and maybe something before.
    """

    def __init__(self, data_dir: Path, program: str = PROGRAM, **settings: str) -> None:
        variables = [f"SANDBOX_{name.upper()}={value}" for name, value in settings.items()]
        self._log = (data_dir / "server.log").open("wb+")
        # Everything else is as the caller's environment says.
        command = [shutil.which("env") or "env", *variables, sys.executable, "-c", program]
        self._process = subprocess.Popen(
            [*command, "serve", "--port", "0", "--data-dir", str(data_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            self.url = self._find_url()
            self.key = (data_dir / "api-key").read_text().strip()
        except BaseException:
            self.close()
            raise
        self._http = self.connect()
        self._full = 0.0

    def connect(self) -> http.client.HTTPConnection:
        """A connection to it."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return http.client.HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        """The server process."""
        return self._process.pid

    def _find_url(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(rb"http://\S+", line):
                return found[0].decode()
        self._log.seek(0)
        raise TideboxError(f"the server did not start: {self._log.read().decode().strip()}")

    def level(self, *names: str) -> tuple[float, ...]:
        """Gauges of its metrics."""
        self._http.request("GET", "/metrics", headers={"X-API-KEY": self.key})
        answer = self._http.getresponse().read().decode()
        found = dict(re.findall(r"^(\w+) (\S+)$", answer, re.MULTILINE))
        return tuple(float(found[name]) for name in names)

    def rest(self) -> float:
        """Wait until nothing runs, the pool is as full as it was, and no process below the server does anything.

        Gives the time since when that was so.
        """
        deadline = time.perf_counter() + PATIENCE_SECONDS
        since, before = 0.0, -1
        # The server may have closed it meanwhile; the next request opens another.
        self._http.close()
        while True:
            now = time.perf_counter()
            active, cells = self.level("sandbox_runs_active", "sandbox_pool_cells")
            used = busy_nanoseconds(self.pid)
            if active or cells < self._full or before < 0 or not 0 <= used - before < _QUIET_NANOSECONDS:
                since, before = now, used
            elif now - since > _REST_SECONDS:
                self._full = cells
                return since
            if now > deadline:
                raise TideboxError(f"the server did not come to rest: {active:g} active, {cells:g} cells")
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Tell it to stop, and wait for its end."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(_STOP_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        if code:
            raise TideboxError(f"the server ended with exit code {code}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        self.close()
