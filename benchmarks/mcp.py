"""How fast ``tidebox mcp`` is: from its start to the first result, and a warm call against the bare interpreter.

    python -m benchmarks.mcp [--calls 100] [--starts 5]

The client is a few lines that write and read JSON, so that what is measured is the server's part. Starts alternate
with those of the bare interpreter. The processor time of a start, which is the same on a machine that is busy with
something else, is that of the process itself until its first answer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tidebox.cli.yardsticks import BareProgram

_HELLO = "print('hello')"
_COMMAND = [sys.executable, "-c", "import sys; from tidebox.cli.main import main; sys.exit(main())", "mcp"]


class Peer:
    """A client of one ``tidebox mcp``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._last = 0
        about = {"name": "benchmark", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request."""
        self._last += 1
        self._send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        assert self._process.stdout is not None
        while (answer := json.loads(self._process.stdout.readline())).get("id") != self._last:
            pass
        return answer["result"]

    def hello(self) -> float:
        """How long a call of ``run_code`` takes, in seconds."""
        start = time.perf_counter()
        result = self.ask("tools/call", {"name": "run_code", "arguments": {"code": _HELLO}})
        seconds = time.perf_counter() - start
        if result["structuredContent"]["stdout"] != "hello\n":
            raise SystemExit(f"a call did not say hello but {result}")
        return seconds

    def processor_seconds(self) -> float:
        """How much processor time its process, with all its threads, has used so far."""
        found = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--starts", type=int, default=5)
    given = parser.parse_args()
    bare = BareProgram(shutil.which("python3", path="/usr/bin") or sys.executable, "-c", _HELLO)
    starts, used, bare_starts = [], [], []
    for _ in range(given.starts):
        bare_starts.append(bare.seconds())
        began = time.perf_counter()
        peer = Peer()
        peer.hello()
        starts.append(time.perf_counter() - began)
        used.append(peer.processor_seconds())
        peer.close()
    peer = Peer()
    calls, yardstick = [], []
    for _ in range(10):
        peer.hello()
    for _ in range(given.calls):
        calls.append(peer.hello())
        yardstick.append(bare.seconds())
    peer.close()
    start, bare_start = statistics.median(starts), statistics.median(bare_starts) * 1000
    p50, bare50 = statistics.median(calls), statistics.median(yardstick)
    p95 = statistics.quantiles(calls, n=20)[-1]
    print(f"start to first result   {start:.2f} s (best {min(starts):.2f}, worst {max(starts):.2f} s)")
    print(f"processor time of it    {statistics.median(used):.2f} s (best {min(used):.2f} s)")
    print(f"bare start beside it    {bare_start:.1f} ms (best {min(bare_starts) * 1000:.1f} ms)")
    print(f"warm run_code hello     p50 {p50 * 1000:.1f} ms, p95 {p95 * 1000:.1f} ms")
    print(f"bare python3 -c         p50 {bare50 * 1000:.1f} ms")
    print(f"ratio                   {p50 / bare50:.2f}")


if __name__ == "__main__":
    main()
