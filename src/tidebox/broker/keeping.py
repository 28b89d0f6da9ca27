"""What is kept of runs and sessions beside their records and logs: files. A base that keeps none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidebox.broker.work import Work
from tidebox.model.order import Ending, Order
from tidebox.model.run import Run


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of a run's files."""

    artifact_bytes: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Files that were not kept, by the reason."""


class Keeper:
    """Told of each run before its box is opened and after its program ended, in that order, by its worker."""

    async def start(self) -> None:
        """Tidy up after an earlier server."""

    async def close(self) -> None:
        """Let go of everything."""

    async def prepare(self, run: Run, work: Work, order: Order) -> Order:
        """The order with what the box is to be given and what is to be taken out of it."""
        return order

    async def keep(self, run: Run, work: Work, ending: Ending) -> Kept:
        """Keep what was taken out. All processes of the run are dead; nobody was told of its end yet."""
        return Kept()

    async def forget_session(self, session_id: str) -> None:
        """Remove the files of a session that has no runs any more."""
