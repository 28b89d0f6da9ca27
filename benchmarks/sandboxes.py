"""Many live sandboxes on one machine: how much memory an idle one takes, and that nothing is left of them.

    python -m benchmarks.sandboxes [--count 500]

Starts a server of its own on the loopback interface. Every sandbox runs a program once, then all of them are idle;
their memory is the proportional share (PSS) of every process in them. Ends with exit code 1 if one takes more than it
may, an answer was wrong, or something stayed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.load import TELLING, descendants, footprint, grown, show
from tidebox.cli.figures import Samples
from tidebox.cli.served import Served
from tidebox.cli.yardsticks import pss, pss_of_boxes
from tidebox.errors import TideboxError
from tidebox.model.limits import MIB

IDLE_MIB = 6.0
CLIENTS = 8
_PATIENCE_SECONDS = 120.0
# That a token was found good is remembered for a while.
_OBJECTS_PER_TOKEN = 4
# Nothing but sandboxes: no cells, and none made beforehand.
_SETTINGS = {"rate_limit": "off", "pool_blank": "0", "pool_python": "0", "pool_node": "0", "pool_sandboxes": "0"}


class Clients:
    """Threads that ask the server, on a connection of its own for each request."""

    def __init__(self, server: Served) -> None:
        self._server = server
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        self._address = host, int(port)
        self._pool = ThreadPoolExecutor(CLIENTS)

    def each(self, work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        """Do something with every item, several at once."""
        return list(self._pool.map(work, items))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def make(self, number: int) -> dict[str, Any]:
        """A sandbox for a thread of its own."""
        body = {"thread_id": f"thr-{number}", "mode": "ensure"}
        session: dict[str, Any] = self._ask("POST", "/v1/sandbox/sessions", self._server.key, body)
        return session

    def use(self, session: dict[str, Any]) -> None:
        """Run a program in it, which finds what the last one left there, and nothing else."""
        name = session["thread_id"]
        line = f"ls; echo > {name}"
        answer = self._ask("POST", "/v1/exec", session["token"], {"command": line})
        if answer["exit_code"] != 0 or answer["stdout"] not in ("", name + "\n"):
            raise TideboxError(f"the sandbox of {name} answered {answer}")

    def release(self, session: dict[str, Any]) -> None:
        """End it."""
        self._ask("DELETE", f"/v1/sandbox/sessions/{session['session_id']}", self._server.key)

    def _ask(self, method: str, path: str, token: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        with closing(http.client.HTTPConnection(*self._address, timeout=_PATIENCE_SECONDS)) as connection:
            connection.request(method, path, json.dumps(body).encode() if body is not None else None, headers)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status not in (200, 204):
            raise TideboxError(f"the server answered {answer.status}: {content.decode('utf-8', 'replace')}")
        return json.loads(content) if content else None


def run(count: int, data_dir: Path) -> bool:
    """Whether all went well."""
    with Served(data_dir, TELLING, **_SETTINGS, max_sandboxes_per_user=str(max(count, 4 * CLIENTS))) as server:
        clients = Clients(server)
        try:
            return _run(count, data_dir, server, clients)
        finally:
            clients.close()


def _run(count: int, data_dir: Path, server: Served, clients: Clients) -> bool:
    # What is made once and kept, by each thread, is there in the first footprint.
    for _ in range(3):
        warm = clients.each(clients.make, list(range(4 * CLIENTS)))
        clients.each(clients.use, warm)
        clients.each(clients.release, warm)
    first = footprint(server, data_dir)
    show("at the start", first)
    spawner = spawner_of(server.pid)
    alone = pss(server.pid)
    start = time.perf_counter()
    sessions = clients.each(clients.make, list(range(count)))
    made = time.perf_counter() - start
    clients.each(clients.use, sessions)
    server.rest()
    sizes = Samples.of([size / MIB for size in pss_of_boxes(spawner)])
    beside = (pss(server.pid) - alone) / count / 1024
    show(f"{count} sandboxes, made in {made:.1f} s", footprint(server, data_dir))
    print(f"memory of an idle sandbox: p50 {sizes.p50:.2f} MiB, p99 {sizes.p99:.2f} MiB of {sizes.n} (PSS),", end=" ")
    print(f"and {beside:.0f} KiB of the server's")
    clients.each(clients.use, sessions)
    start = time.perf_counter()
    clients.each(clients.release, sessions)
    released = time.perf_counter() - start
    last = footprint(server, data_dir)
    show(f"all released in {released:.1f} s", last)
    remembered = replace(last, objects=last.objects - _OBJECTS_PER_TOKEN * count)
    wrong = [f"{name} stayed" for name in grown([first, remembered])]
    wrong += [f"socket {path.name} stayed" for path in (data_dir / "run" / "agents").iterdir()]
    if sizes.n != count:
        wrong.append(f"{sizes.n} boxes and not {count}")
    if sizes.p50 > IDLE_MIB:
        wrong.append(f"an idle sandbox takes {sizes.p50:.2f} MiB and not {IDLE_MIB:g}")
    for what in wrong:
        print(f"WRONG: {what}")
    print("FAILED" if wrong else "PASSED: every sandbox small enough, nothing left")
    return not wrong


def spawner_of(server: int) -> int:
    """The one process that a server started itself."""
    below = descendants(server)
    for pid in below:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if parent == server:
            return pid
    raise TideboxError("the server has no spawner")


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description="Many live, idle sandboxes; none too large, and nothing left.")
    parser.add_argument("--count", type=int, default=500)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="tidebox-many-") as directory:
        return 0 if run(options.count, Path(directory)) else 1


if __name__ == "__main__":
    sys.exit(main())
