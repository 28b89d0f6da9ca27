"""What is kept of runs and sessions beside their records and logs: files. Bases that keep none."""

from __future__ import annotations

from tidebox.broker.runs.run_plan import Work
from tidebox.model.run import Run
from tidebox.runtime.base import BoxFiles


class RunFiles(BoxFiles):
    """The files of one run, from before its box is opened until its end is in the store.

    Its worker calls ``open``, has it filled and collected while it runs, and calls ``close`` whatever happened.
    """

    def __init__(self) -> None:
        self.artifact_bytes = 0
        self.left_out: dict[str, int] = {}
        """Files that were not kept, by the reason."""

    async def open(self) -> None:
        """Take hold of what the box is to be given."""

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
