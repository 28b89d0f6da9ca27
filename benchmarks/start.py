"""How long a server takes from its process's start to the first green ``/healthz``, and to the first answer of its API.

    python -m benchmarks.start [--runs 9] [--json]

The API is loaded in the background once the server is healthy. It is asked at once, as an impatient client would, and
``/healthz`` all the while: the longest of its answers is how long the event loop had to wait for a thread that imports.
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
import threading
import time
from pathlib import Path
from typing import NamedTuple

TIDEBOX = str(Path(sys.executable).parent / "tidebox")
HOLD_SECONDS = 1.5


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def answer_of(port: int, path: str) -> bytes:
    """The first bytes of the answer to a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return sock.recv(64)


def is_healthy(port: int) -> bool:
    """Whether the server answers 200 by now."""
    try:
        return answer_of(port, "/healthz").startswith(b"HTTP/1.1 200")
    except OSError:
        return False


class Start(NamedTuple):
    """How one start went, in seconds."""

    healthy: float
    api_ready: float
    longest_wait: float
    """Of a request for ``/healthz`` while the API was loaded."""


def start_once(data_dir: str) -> Start:
    """Start a server, and stop it when its API answers."""
    port = free_port()
    command = [TIDEBOX, "serve", "--port", str(port), "--data-dir", data_dir]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_healthy(port):
            if process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.002)
        healthy = time.perf_counter() - started
        asking = threading.Thread(target=answer_of, args=(port, "/api/v1/sandbox/health/public"))
        asking.start()
        longest = 0.0
        while asking.is_alive():
            asked = time.perf_counter()
            answer_of(port, "/healthz")
            longest = max(longest, time.perf_counter() - asked)
            time.sleep(0.005)
        return Start(healthy, time.perf_counter() - started, longest)
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
    healthy = sorted(pair[0].healthy for pair in pairs)
    bare = statistics.median(pair[1] for pair in pairs)
    found = {
        "healthy_p50_sec": round(statistics.median(healthy), 3),
        "healthy_worst_sec": round(healthy[-1], 3),
        "bare_interpreter_p50_sec": round(bare, 4),
        "ratio": round(statistics.median(healthy) / bare, 1),
        "api_ready_p50_sec": round(statistics.median(pair[0].api_ready for pair in pairs), 3),
        "longest_wait_p50_ms": round(statistics.median(pair[0].longest_wait for pair in pairs) * 1000, 1),
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
