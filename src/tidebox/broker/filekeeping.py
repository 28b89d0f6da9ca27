"""The files of runs: what their boxes are given before the program starts, and what is kept when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidebox.broker.artifacts import Artifacts, Harvest
from tidebox.broker.audit import Audit
from tidebox.broker.failures import internal_error
from tidebox.broker.keeping import Keeper, Kept
from tidebox.broker.uploads import Uploads
from tidebox.broker.work import Work
from tidebox.broker.workspaces import Held, Workspaces
from tidebox.errors import StoreUnavailable
from tidebox.model.order import Ending, Order
from tidebox.model.principal import Caller
from tidebox.model.run import Run
from tidebox.model.source import GitSource
from tidebox.runtime.base import Box
from tidebox.store.base import Store

_log = logging.getLogger(__name__)

SWEEP_SECONDS = 900.0


class FileKeeper(Keeper):
    """Gives runs their workspaces and keeps their artifacts."""

    def __init__(
        self, store: Store, workspaces: Workspaces, artifacts: Artifacts, uploads: Uploads, audit: Audit
    ) -> None:
        self.workspaces = workspaces
        self.artifacts = artifacts
        self.uploads = uploads
        self._store = store
        self._audit = audit
        self._harvests: dict[str, Harvest] = {}
        self._workspaces_left_out: dict[str, int] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._letting_go: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Tidy up after an earlier server, and begin to remove what is expired."""
        await self.uploads.start()
        await self.workspaces.start()
        for session_id in await self.workspaces.ids():
            if await self._store.session(session_id) is None:
                await self.workspaces.remove(session_id)
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="artifact sweeper")

    async def close(self) -> None:
        """Remove nothing more."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        if self._letting_go:
            await asyncio.wait(self._letting_go)
        self.uploads.close()

    def read(self, caller: Caller, **what: Any) -> None:
        """Files of a session or of a run are handed out: write down to whom."""
        self._audit.check()
        self._audit.record("sandbox.files.read", caller, "allowed", **what)

    async def prepare(self, run: Run, work: Work, order: Order) -> Order:
        """The order with hooks for the run's files; what they need is let go of when the run's task is over."""
        session_id = run.facts.session_id
        if session_id is None and work.git is None and not work.capture_patterns:
            return order
        needed = contextlib.AsyncExitStack()
        self._when_over(needed)
        held: Held | None = None
        source: Path | None = None
        if session_id is not None:
            held = await self.workspaces.hold(session_id)
            needed.callback(held.release)
            source = held.path
        if work.git is not None:
            source = await self._fetch(run.user, work.git, held, needed)

        async def place(box: Box) -> None:
            if source is not None:
                await box.place(source)

        async def take_out(box: Box) -> None:
            try:
                if work.capture_patterns:
                    self._harvests[run.id] = await self.artifacts.capture(run, box, work.capture_patterns)
            finally:
                if held is not None:
                    await held.keep(box)
                    self._workspaces_left_out[run.id] = held.left_out

        return replace(order, prepare=place if source is not None else None, harvest=take_out)

    async def _fetch(self, user: str, source: GitSource, held: Held | None, needed: contextlib.AsyncExitStack) -> Path:
        if held is None:
            return (await needed.enter_async_context(self.uploads.fetched(user, source))).tree
        async with self.uploads.fetched(user, source) as staged:
            await held.put(staged.tree)
        return held.path

    async def keep(self, run: Run, work: Work, ending: Ending) -> Kept:
        """What was taken out of the box."""
        harvest = self._harvests.pop(run.id, Harvest())
        left_out = {f"artifact_{reason}": count for reason, count in harvest.skipped.items()}
        if count := self._workspaces_left_out.pop(run.id, 0):
            left_out["workspace_kind"] = count
        return Kept(harvest.bytes, left_out)

    async def forget_session(self, session_id: str) -> None:
        """Remove the files of a session that has no runs any more."""
        await self.workspaces.remove(session_id)

    def _when_over(self, needed: contextlib.AsyncExitStack) -> None:
        """Let go of what is needed when the task that asked is over, however it ends."""
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._let_go(needed))

    def _let_go(self, needed: contextlib.AsyncExitStack) -> None:
        task = asyncio.get_running_loop().create_task(needed.aclose())
        self._letting_go.add(task)
        task.add_done_callback(self._letting_go.discard)

    async def _sweep(self) -> None:
        while True:
            try:
                await self.artifacts.sweep()
                # The store forgets runs by itself, and their artifacts with them.
                await self.artifacts.reconcile()
            except StoreUnavailable as error:
                _log.warning("expired artifacts could not be looked for: %s", error)
            except Exception as error:
                internal_error("the removal of artifacts", error)
            await asyncio.sleep(SWEEP_SECONDS)
