"""What is kept of runs and sessions beside their records and logs: files. Bases that keep none."""

from __future__ import annotations

from tidebox.broker.work import Work
from tidebox.model.order import Order
from tidebox.model.run import Run


class RunFiles:
    """The files of one run, from before its box is opened until its end is in the store.

    Its worker calls ``open``, runs what ``order`` returns, and calls ``close`` whatever happened in between.
    """

    def __init__(self) -> None:
        self.artifact_bytes = 0
        self.left_out: dict[str, int] = {}
        """Files that were not kept, by the reason."""

    async def open(self) -> None:
        """Take hold of what the box is to be given."""

    def order(self, order: Order) -> Order:
        """``order`` with the files to copy into the box and to collect from it."""
        return order

    async def close(self) -> None:
        """Let go of everything; harmless where nothing was opened."""


class Keeper:
    """The files of all runs and sessions."""

    async def start(self) -> None:
        """Tidy up after an earlier server."""

    async def close(self) -> None:
        """Let go of everything."""

    def run_files(self, run: Run, work: Work) -> RunFiles:
        """The files of one run."""
        return RunFiles()

    async def forget_session(self, session_id: str) -> None:
        """Remove the files of a session that has no runs any more."""
