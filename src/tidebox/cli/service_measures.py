"""The rows of ``tidebox bench`` that go through the interpreter service, over HTTP, on a server of their own."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidebox.cli.figures import Effort, Row, Title
from tidebox.cli.served import Served
from tidebox.cli.yardsticks import BareProgram
from tidebox.config import load_settings, session_environment
from tidebox.errors import TideboxError
from tidebox.runtime.native.host import find_interpreters

WARM_UP = 5
_RUNS = "/api/v1/sandbox/runs"
_HELLO = "print('hello')"
_PATIENCE_SECONDS = 60.0


class ServiceBench:
    """A server and one client of it that keeps its connection."""

    def __init__(self, effort: Effort, directory: Path) -> None:
        self._effort = effort
        self._python = find_interpreters(load_settings().python, session_environment().get("PATH")).python
        data_dir = directory / "service"
        data_dir.mkdir()
        self._server = Served(data_dir, rate_limit="off")
        host, _, port = self._server.url.removeprefix("http://").rpartition(":")
        self._http = http.client.HTTPConnection(host, int(port), timeout=_PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        self._server.close()

    def rows(self) -> Iterator[Row]:
        """Every row, as it is measured."""
        bare = BareProgram(self._python, "-c", _HELLO)
        ours, theirs = [], []
        for number in range(WARM_UP + self._effort.samples):
            self._server.rest()
            mine = self._run_seconds() * 1000
            self._server.rest()
            other = bare.seconds() * 1000
            if number >= WARM_UP:
                ours.append(mine)
                theirs.append(other)
        title = Title(
            what="Python run, POST /runs to its end",
            yardstick="bare python3 -c",
            hold=1.0,
            better="lower",
            unit="ms",
        )
        yield title.row(ours, theirs)

    def _run_seconds(self) -> float:
        """From the request until the client knows that the run is over, and how."""
        start = time.perf_counter()
        run = json.loads(self._ask("POST", _RUNS, _request()))
        # Ends with the run, so that nobody has to ask again and again.
        lines = self._ask("GET", f"{_RUNS}/{run['run_id']}/logs?follow=true&format=jsonl").splitlines()
        seconds = time.perf_counter() - start
        frames = [json.loads(line) for line in lines]
        said = "".join(frame["data"] for frame in frames if frame["type"] == "stdout")
        if said != "hello\n" or frames[-1]["data"]["phase"] != "completed":
            raise TideboxError(f"a run did not say hello but {frames}")
        return seconds

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        headers = {"X-API-KEY": self._server.key, "Content-Type": "application/json"}
        self._http.request(method, path, json.dumps(body).encode() if body is not None else None, headers)
        answer = self._http.getresponse()
        content = answer.read()
        if answer.status not in (200, 202):
            raise TideboxError(f"the server answered {answer.status}: {content.decode('utf-8', 'replace')}")
        return content


def _request() -> dict[str, Any]:
    return {"spec_version": "1.0", "base_image": "python:3.11-slim", "command": ["python3", "-c", _HELLO]}
