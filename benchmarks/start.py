"""How long a server takes from its process's start to the first green ``/healthz``.

    python -m benchmarks.start [--runs 9] [--json]

The ratio is against starting the bare interpreter, measured in turns with it.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIDEBOX = str(Path(sys.executable).parent / "tidebox")
HOLD_SECONDS = 1.5


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def is_healthy(port: int) -> bool:
    """Whether the server answers 200 by now."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return sock.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def start_once(data_dir: str) -> float:
    """Seconds until the server is healthy."""
    port = free_port()
    command = [TIDEBOX, "serve", "--port", str(port), "--data-dir", data_dir]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_healthy(port):
            if process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.002)
        return time.perf_counter() - started
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def bare_once() -> float:
    """Seconds that the bare interpreter takes."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as data_dir:
        start_once(data_dir)
        pairs = [(start_once(data_dir), bare_once()) for _ in range(options.runs)]
    healthy = sorted(pair[0] for pair in pairs)
    bare = statistics.median(pair[1] for pair in pairs)
    found = {
        "healthy_p50_sec": round(statistics.median(healthy), 3),
        "healthy_worst_sec": round(healthy[-1], 3),
        "bare_interpreter_p50_sec": round(bare, 4),
        "ratio": round(statistics.median(healthy) / bare, 1),
        "hold_sec": HOLD_SECONDS,
        "holds": statistics.median(healthy) <= HOLD_SECONDS,
    }
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:26} {value}")


if __name__ == "__main__":
    main()
