"""How fast the language server is: from ``executeCommand`` to ``publishDiagnostics`` for a Python file that fails.

    python -m benchmarks.lsp [--runs 100] [--starts 3]

The client is a few lines that write and read JSON, so that what is measured is the server's part.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tidebox.cli.yardsticks import BareProgram

_FAILING = "def f(x):\n    return 1 / x\n\nf(0)\n"
_COMMAND = [sys.executable, "-c", "import sys; from tidebox.cli.main import main; sys.exit(main())", "lsp"]
_BAR_SECONDS = 0.150


class Peer:
    """A client of one ``tidebox lsp``."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._last = 0
        self._uri = (folder / "main.py").as_uri()
        params: dict[str, Any] = {"processId": None, "rootUri": folder.as_uri(), "capabilities": {}}
        self._send("initialize", params, answered=True)
        while "id" not in self._receive():
            pass
        self._send("initialized", {})

    def failing(self) -> float:
        """How long it takes until a failing run has its diagnostics, in seconds."""
        began = time.perf_counter()
        params = {"command": "tidebox.run", "arguments": [{"uri": self._uri}]}
        self._send("workspace/executeCommand", params, answered=True)
        seconds = None
        while True:
            message = self._receive()
            if message.get("method") == "textDocument/publishDiagnostics":
                seconds = time.perf_counter() - began
                if [each["range"]["start"]["line"] for each in message["params"]["diagnostics"]] != [1]:
                    raise SystemExit(f"the wrong line was marked: {message}")
            if message.get("id") == self._last:
                if seconds is None:
                    raise SystemExit(f"no diagnostics came: {message}")
                return seconds

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _send(self, method: str, params: Any, *, answered: bool = False) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        if answered:
            self._last += 1
            message["id"] = self._last
        body = json.dumps(message).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        length = 0
        while (line := self._process.stdout.readline()) != b"\r\n":
            if not line:
                raise SystemExit("the server has ended")
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return json.loads(self._process.stdout.read(length))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--starts", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "main.py").write_text(_FAILING)
        starts = []
        for _ in range(given.starts):
            began = time.perf_counter()
            peer = Peer(folder)
            peer.failing()
            starts.append(time.perf_counter() - began)
            peer.close()
        bare = BareProgram(shutil.which("python3", path="/usr/bin") or sys.executable, "-c", "print('hello')")
        peer = Peer(folder)
        for _ in range(10):
            peer.failing()
        runs, yardstick = [], []
        for _ in range(given.runs):
            runs.append(peer.failing())
            yardstick.append(bare.seconds())
        peer.close()
    p50, bare50 = statistics.median(runs), statistics.median(yardstick)
    p95 = statistics.quantiles(runs, n=20)[-1]
    print(f"start to first marks    {statistics.median(starts):.2f} s (worst {max(starts):.2f} s)")
    print(f"run to diagnostics      p50 {p50 * 1000:.1f} ms, p95 {p95 * 1000:.1f} ms")
    print(f"bare python3 -c         p50 {bare50 * 1000:.1f} ms")
    print(f"ratio                   {p50 / bare50:.2f}")
    if p50 > _BAR_SECONDS:
        raise SystemExit("slower than the bar")


if __name__ == "__main__":
    main()
