"""How fast the docker runtime is, against the Engine API by itself and against the bare interpreter.

    python -m benchmarks.docker [--samples 20] [--json]

A private daemon is started for it, with an image made of this machine's files. All rows are measured in turns in one
run: their ratios hold on a busy machine, their milliseconds do not.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.docker import daemon
from tests.docker.images import PYTHON_IMAGE
from tidebox.cli.yardsticks import CLEAN_ENVIRONMENT
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import OutputEvent

HELLO = "print('hello')"
COMMAND = ["python3", "-c", HELLO]
HOLD_ONE_SHOT, HOLD_PARKED, HOLD_EXEC, HOLD_START_SECONDS = 2.0, 1.0, 0.5, 2.0


@dataclass
class Row:
    """One ratio: ours to the yardstick."""

    what: str
    yardstick: str
    hold: float
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return statistics.median(self.ours) / statistics.median(self.theirs)


class RawEngine:
    """The Engine API, used as one who needs nothing but a result would: one connection, no file, no limit."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        return daemon.ask(self._socket, method, path, body)

    def one_shot(self) -> float:
        """Create, attach, start, read the output, wait; removed when the time is taken."""
        host = {"NetworkMode": "none", "LogConfig": {"Type": "none"}}
        body = {"Image": PYTHON_IMAGE, "Cmd": COMMAND, "HostConfig": host}
        began = time.perf_counter()
        container = json.loads(self._call("POST", "/containers/create", body))["Id"]
        attached = self._upgraded(f"/containers/{container}/attach?stream=1&stdout=1&stderr=1", None)
        self._call("POST", f"/containers/{container}/start")
        assert b"hello" in _read_all(attached)
        self._call("POST", f"/containers/{container}/wait")
        took = time.perf_counter() - began
        self.remove(container)
        return took

    def parked(self) -> str:
        """A container that waits for execs."""
        body = {"Image": PYTHON_IMAGE, "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"}}
        container: str = json.loads(self._call("POST", "/containers/create", body))["Id"]
        self._call("POST", f"/containers/{container}/start")
        return container

    def exec(self, container: str) -> float:
        """Create an exec, start it, read its output, ask for its exit code."""
        began = time.perf_counter()
        body = {"Cmd": COMMAND, "AttachStdout": True, "AttachStderr": True}
        made = json.loads(self._call("POST", f"/containers/{container}/exec", body))["Id"]
        assert b"hello" in _read_all(self._upgraded(f"/exec/{made}/start", {"Detach": False, "Tty": False}))
        assert json.loads(self._call("GET", f"/exec/{made}/json"))["ExitCode"] == 0
        return time.perf_counter() - began

    def remove(self, container: str) -> None:
        """Remove a container."""
        self._call("DELETE", f"/containers/{container}?force=1")

    def _upgraded(self, path: str, body: dict[str, Any] | None) -> http.client.HTTPConnection:
        connection = daemon.UnixConnection(self._socket)
        headers = {"Connection": "Upgrade", "Upgrade": "tcp", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body) if body is not None else "", headers)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.sock.recv(1)
        assert b" 101 " in head, head
        return connection


def _read_all(connection: http.client.HTTPConnection) -> bytes:
    parts = []
    while part := connection.sock.recv(65536):
        parts.append(part)
    connection.close()
    return b"".join(parts)


def bare() -> float:
    """The same program by the machine's own interpreter."""
    began = time.perf_counter()
    subprocess.run(["/usr/bin/python3", "-c", HELLO], env=CLEAN_ENVIRONMENT, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - began


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    """How long something takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def measure(host: str, socket: Path, samples: int, directory: Path) -> tuple[list[Row], float]:
    """The rows, and how long the slowest twentieth of starts of a warm image takes, in seconds."""
    raw = RawEngine(socket)
    settings = load_settings(data_dir=directory, default_runtime="docker", docker_host=host)
    cold = Engine(settings, pool=False)
    warm = Engine(load_settings(data_dir=directory / "warm", default_runtime="docker", docker_host=host, docker_warm=2))
    one_shot = Row("one-shot hello, library, to the result", "Engine: create, attach, start, wait", HOLD_ONE_SHOT)
    parked = Row("hello from a parked container, library", "bare python3 -c", HOLD_PARKED)
    inside = Row("exec in a live sandbox", "Engine: exec", HOLD_EXEC)
    starts: list[float] = []
    waiting = await asyncio.to_thread(raw.parked)
    box = None

    async def hello(engine: Engine) -> None:
        result = await run_on(engine, command=COMMAND)
        assert result.stdout == b"hello\n", result

    try:
        warm.start()
        await hello(cold)
        await hello(warm)
        box = await cold.runtime.open(BoxSpec(image=PYTHON_IMAGE, kind="sandbox"))

        async def run_inside() -> None:
            program = await box.exec(Command(argv=COMMAND))
            await program.end_input()
            output = b"".join([event.data async for event in program.events() if isinstance(event, OutputEvent)])
            assert output == b"hello\n"

        for _ in range(samples):
            one_shot.theirs.append(await asyncio.to_thread(raw.one_shot))
            one_shot.ours.append(await timed(lambda: hello(cold)))
            await warm.pool.filled()
            parked.theirs.append(await asyncio.to_thread(bare))
            parked.ours.append(await timed(lambda: hello(warm)))
            inside.theirs.append(await asyncio.to_thread(raw.exec, waiting))
            inside.ours.append(await timed(run_inside))
            began = time.perf_counter()
            fresh = await cold.runtime.open(BoxSpec(image=PYTHON_IMAGE), first=Command(argv=["true"]))
            assert fresh.first is not None
            await anext(fresh.first.events())
            starts.append(time.perf_counter() - began)
            await fresh.close()
    finally:
        if box is not None:
            await box.close()
        await cold.close()
        await warm.close()
        raw.remove(waiting)
    return [one_shot, parked, inside], sorted(starts)[max(0, round(0.95 * len(starts)) - 1)]


def main() -> int:
    """Measure, print, and tell by the exit code whether every row holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (reason := daemon.missing()) is not None:
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    with daemon.running([PYTHON_IMAGE]) as engine, tempfile.TemporaryDirectory() as directory:
        rows, start = asyncio.run(measure(engine.host, engine.socket, options.samples, Path(directory)))
    found = [
        {
            "what": row.what,
            "yardstick": row.yardstick,
            "ratio": round(row.ratio, 3),
            "hold": row.hold,
            "holds": row.ratio <= row.hold,
            "ours_ms": round(statistics.median(row.ours) * 1000, 1),
            "yardstick_ms": round(statistics.median(row.theirs) * 1000, 1),
        }
        for row in rows
    ]
    slowest = {"what": "P95 start of a warm image", "seconds": round(start, 3), "hold": HOLD_START_SECONDS}
    found.append({**slowest, "holds": start < HOLD_START_SECONDS})
    if options.json:
        print(json.dumps(found))
    else:
        for row in found:
            print("  ".join(f"{name}: {value}" for name, value in row.items()))
    return 0 if all(row["holds"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
