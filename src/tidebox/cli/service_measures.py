"""The rows of ``tidebox bench`` that go through the interpreter service, over HTTP, on a server of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from tidebox.cli.figures import Row, Title
from tidebox.cli.server_bench import ServerBench
from tidebox.cli.yardsticks import BareProgram
from tidebox.errors import TideboxError

_RUNS = "/api/v1/sandbox/runs"
_HELLO = "print('hello')"


class ServiceBench(ServerBench):
    """Runs of one client that keeps its connection."""

    def rows(self) -> Iterator[Row]:
        """Every row, as it is measured."""
        bare = BareProgram(self._interpreters["python3"], "-c", _HELLO)
        title = Title(
            what="Python run, POST /runs to its end",
            yardstick="bare python3 -c",
            hold=1.0,
            better="lower",
            unit="ms",
        )
        yield title.row(*self._in_turns(self._run_milliseconds, bare.seconds))

    def _run_milliseconds(self) -> float:
        """From the request until the client knows that the run is over, and how."""
        key = self._server.key
        start = time.perf_counter()
        run = json.loads(self._ask("POST", _RUNS, key, json.dumps(_request()).encode()))
        # Ends with the run, so that nobody has to ask again and again.
        lines = self._ask("GET", f"{_RUNS}/{run['run_id']}/logs?follow=true&format=jsonl", key).splitlines()
        seconds = time.perf_counter() - start
        frames = [json.loads(line) for line in lines]
        said = "".join(frame["data"] for frame in frames if frame["type"] == "stdout")
        if said != "hello\n" or frames[-1]["data"]["phase"] != "completed":
            raise TideboxError(f"a run did not say hello but {frames}")
        return seconds * 1000


def _request() -> dict[str, Any]:
    return {"spec_version": "1.0", "base_image": "python:3.11-slim", "command": ["python3", "-c", _HELLO]}
