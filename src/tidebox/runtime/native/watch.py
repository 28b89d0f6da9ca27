"""Watching the workspace of a box: done by the server itself, through its own descriptor of it.

No program of the box takes part, so none can lie, and a frozen box can be watched like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tidebox.errors import BoxGone, FileOperationFailed, InvalidRequest, QuotaExceeded
from tidebox.model.launch import WORKSPACE
from tidebox.runtime.base import BoxWatch
from tidebox.untrusted_files.tree_watch import TreeChange, TreeWatch

MAX_WATCHES = 16
"""Of one box; each is one of the machine's ``fs.inotify.max_user_instances``."""
# After so many changes at once a watch takes a breath, the longer the more watch the same box: a program can
# make changes faster than the server can tell of them, and is to cost it so much and no more.
MANY_CHANGES = 256
BREATH_SECONDS = 0.02
# Of their own: programs that make many changes must not keep others from the threads of the store.
_threads = ThreadPoolExecutor(2, thread_name_prefix="watch")
_MACHINE_IS_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM})

Answer = TypeVar("Answer")


class Watches:
    """The watches of one box."""

    def __init__(self, workspace: int) -> None:
        self._workspace = workspace
        self._open: set[NativeWatch] = set()

    async def open(self, path: str, recursive: bool) -> BoxWatch:
        """One more."""
        parts = _parts(path)
        if len(self._open) >= MAX_WATCHES:
            raise QuotaExceeded(f"a sandbox has {MAX_WATCHES} watches at most", quota="watches", limit=MAX_WATCHES)
        with _told_as_ours():
            watch = NativeWatch(TreeWatch(self._workspace, parts, recursive), self._open)
        self._open.add(watch)
        try:
            await watch.begin()
        except BaseException:
            await watch.close()
            raise
        return watch

    def lose(self) -> None:
        """The box is dead."""
        for watch in self._open:
            watch.lose()

    async def close(self) -> None:
        """End all of them."""
        self.lose()
        for watch in list(self._open):
            await watch.close()


class NativeWatch(BoxWatch):
    """A tree that is watched. What blocks is done by threads, one at a time."""

    def __init__(self, tree: TreeWatch, siblings: set[NativeWatch]) -> None:
        """``siblings`` are all that are open of the same box."""
        self._tree = tree
        self._siblings = siblings
        self._breathless = False
        self._loop = asyncio.get_running_loop()
        self._lost = asyncio.Event()
        self._closed = False
        self._finished = asyncio.Event()
        self._working: asyncio.Future[Any] | None = None

    async def begin(self) -> None:
        """Start to watch."""
        await self._do(self._tree.begin)

    async def changes(self) -> list[TreeChange]:
        while not self._tree.over:
            if self._breathless:
                await asyncio.sleep(BREATH_SECONDS * len(self._siblings))
            if not self._lost.is_set():
                await self._readable()
            # Once it is closed its descriptor's number may be another's.
            if self._lost.is_set():
                raise BoxGone("the sandbox is gone")
            found = await self._do(self._tree.take)
            self._breathless = len(found) >= MANY_CHANGES
            if found:
                return found
        return []

    async def _readable(self) -> None:
        readable = self._loop.create_future()
        self._loop.add_reader(self._tree.fileno(), _resolve, readable)
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait((readable, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            if not self._closed:
                self._loop.remove_reader(self._tree.fileno())

    async def _do(self, work: Callable[[], Answer]) -> Answer:
        working = self._loop.run_in_executor(_threads, work)
        self._working = working
        with _told_as_ours():
            # A caller that does not wait for it any more closes the watch, which waits for it.
            return await asyncio.shield(working)

    def lose(self) -> None:
        """The box is dead: nothing more is told."""
        self._lost.set()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._lost.set()
            self._loop.remove_reader(self._tree.fileno())
            if self._working is None or self._working.done():
                self._finish()
            else:
                self._working.add_done_callback(self._finish)
        await self._finished.wait()

    def _finish(self, *unused: object) -> None:
        self._tree.close()
        self._siblings.discard(self)
        self._finished.set()


def _resolve(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def _parts(path: str) -> list[str]:
    """The way from the workspace to a path in the box."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or parts[:1] != [WORKSPACE.strip("/")]:
        raise InvalidRequest(f"path: only {WORKSPACE} and directories in it can be watched", field="path")
    return parts[1:]


@contextlib.contextmanager
def _told_as_ours() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _MACHINE_IS_FULL:
            raise QuotaExceeded(
                f"the machine has no more watches to give ({error.strerror}); see fs.inotify in sysctl(8)",
                quota="watches",
            ) from None
        raise FileOperationFailed(f"watch: {error.strerror} (os error {error.errno})", errno=error.errno) from None
