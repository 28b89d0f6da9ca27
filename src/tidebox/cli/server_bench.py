"""A server for some rows of ``tidebox bench``, and how the rows take turns with their yardsticks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tidebox.cli.figures import Effort
from tidebox.cli.served import Served
from tidebox.errors import TideboxError

Measured = TypeVar("Measured")

WARM_UP = 5


class ServerBench:
    """Base of the benches that go through a server: the server, a connection to it, and how they take turns.

    The server is at rest before either side is measured: what it still does would be counted in the other's time.
    """

    def __init__(self, effort: Effort, data_dir: Path, interpreters: Mapping[str, str]) -> None:
        """``interpreters`` are those that programs are compared with, by the commands that start them."""
        data_dir.mkdir()
        self._effort = effort
        self._interpreters = interpreters
        self._server = Served(data_dir, rate_limit="off")
        self._http = self._server.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        self._server.close()

    def _in_turns(
        self, ours: Callable[[], Measured], seconds: Callable[[], float]
    ) -> tuple[list[Measured], list[float]]:
        """As many samples of both as are wanted, after some that warm up; the yardstick's in milliseconds."""
        mine, others = [], []
        for number in range(WARM_UP + self._effort.samples):
            self._rest()
            one = ours()
            self._rest()
            other = seconds() * 1000
            if number >= WARM_UP:
                mine.append(one)
                others.append(other)
        return mine, others

    def _rest(self) -> None:
        """Wait until nothing is done any more."""
        self._server.rest()

    def _ask(self, method: str, path: str, token: str, body: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._http.request(method, path, body, headers)
        answer = self._http.getresponse()
        content = answer.read()
        if answer.status not in (200, 202, 204):
            raise TideboxError(f"the server answered {answer.status}: {content.decode('utf-8', 'replace')}")
        return content
