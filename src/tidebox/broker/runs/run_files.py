"""Files of runs and sessions, beside their records and logs. Bases without any files."""

from __future__ import annotations

from tidebox.broker.runs.run_plan import RunPlan
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
        """Acquire the files that the box is given."""

    async def close(self) -> None:
        """Release everything; harmless where nothing was opened."""


class FileManager:
    """The files of all runs and sessions."""

    async def start(self) -> None:
        """Clean up after an earlier server."""

    async def close(self) -> None:
        """Let go of everything."""

    def run_files(self, run: Run, plan: RunPlan) -> RunFiles:
        """The files of one run."""
        return RunFiles()

    async def forget_session(self, session_id: str) -> None:
        """Remove the files of a session that has no runs any more."""
