"""From packages that were asked for to an image that has them: each layer is made once, however many ask.

A request is resolved to a lock, which is kept for a day; a lock names a layer, which is kept until the room for layers
is needed by others. A caller may stop waiting for a layer: it may be made all the same (``making``). A layer that is
there is found without a turn, however many are being made.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tidebox.errors import InvalidPackage, ProvisionFailed
from tidebox.model.box import LAYER_MARK
from tidebox.model.events import Preparing
from tidebox.model.limits import GIB, MIB
from tidebox.model.packages import Packages
from tidebox.runtime.images import Image, ImageStore
from tidebox.runtime.layers import Language, Layer, Lock
from tidebox.runtime.packaging import fetch, inside, node, python, target, wheel
from tidebox.runtime.packaging.inside import Run
from tidebox.runtime.packaging.making import AT_ONCE, Making, Tell, Turns
from tidebox.runtime.packaging.target import NodeTarget, PythonTarget
from tidebox.runtime.packaging.tools import PackageTools, Stop, ToolLimits
from tidebox.runtime.packaging.tree import Tree

LOCK_SECONDS = 24 * 3600.0
"""Seconds for which a request that was resolved is not resolved again."""
MAX_LOCKED = 512
"""Packages of one layer, with all that they need."""
# For looking up what is there, besides those that make layers.
_LOOKING = 2
_TOLD_SECONDS = 0.5

_TURN_SECONDS = 0.2

Answer = TypeVar("Answer")

# How the interpreter of a language is asked what it is, and how its answer is read.
_QUESTIONS: Mapping[Language, tuple[Sequence[str], Callable[[bytes], PythonTarget | NodeTarget]]] = {
    # Without site: a .pth file among the image's packages is code.
    "python": (("python3", "-I", "-S", "-c", target.PYTHON_QUESTION), target.read_python),
    "node": (("node", "-e", target.NODE_QUESTION), target.read_node),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageLimits:
    """Limits on packages: the size of layers and of their cache, and what the resolvers may take."""

    layer_bytes: int = 4 * GIB
    """Of one layer, unpacked; and to fetch."""
    cache_bytes: int = 8 * GIB
    """Of all layers that no named image has."""
    tool_memory_bytes: int = 2 * GIB
    tool_cpu_seconds: int = 120
    """Of each start of uv or npm."""


class Packager:
    """Makes layers; to be closed."""

    def __init__(self, images: ImageStore, run: Run, limits: PackageLimits, environment: Mapping[str, str]) -> None:
        """``run`` runs programs in boxes, ``environment`` has the settings of uv and npm."""
        self._images = images
        self._run = run
        self._limits = limits
        self._environment = environment
        # While npm works, each archive is there twice.
        tool_limits = ToolLimits(
            memory_bytes=limits.tool_memory_bytes,
            cpu_seconds=limits.tool_cpu_seconds,
            disk_bytes=limits.layer_bytes * 2,
        )
        self._tools = PackageTools(environment, tool_limits, images.layers.tools_log)
        self._threads = ThreadPoolExecutor(AT_ONCE + _LOOKING, thread_name_prefix="packages")
        self._turns = Turns()
        self._making: dict[str, Making] = {}

    async def image_with(self, name: str, packages: Packages, tell: Tell, user: str = "") -> str:
        """The name of an image that is ``name`` with ``packages`` on top; ``tell`` hears what is being done.

        Users take turns where several want layers made. Raises ``UnknownImage``, ``PackageUnresolvable``,
        ``InvalidPackage`` and ``ProvisionFailed``.
        """
        image = self._images.resolve(name)
        # A new layer takes the place of the one that the image has for that language, so it has what that one has.
        wanted = packages | image.packages
        requests: list[tuple[Language, tuple[str, ...]]] = []
        if packages.python:
            requests.append(("python", wanted.python))
        if packages.node:
            requests.append(("node", wanted.node))
        layers = [await self._layer(image, language, asked, tell, user) for language, asked in requests]
        return LAYER_MARK.join([name, *(layer.digest for layer in layers)])

    async def _layer(self, image: Image, language: Language, asked: Sequence[str], tell: Tell, user: str) -> Layer:
        key = _key(image.digest, language, asked)
        while (making := self._making.get(key)) is not None and making.ended:
            assert making.task is not None
            await asyncio.wait([making.task])
        if making is None:
            making = self._making[key] = Making(user)
            making.task = asyncio.get_running_loop().create_task(
                self._made(image, language, asked, making), name="packages"
            )
            making.task.add_done_callback(lambda task: self._over(key, task))
        assert making.task is not None
        try:
            with making.heard_by(tell):
                return await asyncio.shield(making.task)
        finally:
            self._turns.leave(making)

    def _over(self, key: str, task: asyncio.Task[Layer]) -> None:
        del self._making[key]
        if not task.cancelled():
            # The caller that asked may be gone.
            task.exception()

    async def _made(self, image: Image, language: Language, asked: Sequence[str], making: Making) -> Layer:
        store = self._images.layers
        try:
            described = await self._target(image, language)
            settings = sorted(item for item in self._environment.items() if item[0].upper().startswith(("UV_", "NPM_")))
            request = _key("request", language, repr(described), asked, settings)
            lock = await self._noted(request)
            layer = None if lock is None else await self._in_thread(store.get, lock.digest)
            if layer is not None:
                return layer
            async with self._turns.turn(making):
                if lock is None:
                    making.tell(Preparing(f"resolving {', '.join(asked)}"))
                    current = next((layer.lock for layer in image.layers if layer.lock.language == language), None)
                    lock = await self._in_thread(self._resolve, described, asked, current, making.stop)
                    await self._in_thread(store.keep_note, request, json.dumps(lock.encoded()).encode(), LOCK_SECONDS)
                layer = await self._in_thread(store.get, lock.digest)
                return layer or await self._built(image.root, lock, making)
        except OSError as error:
            raise ProvisionFailed(
                f"the packages could not be kept: {error.strerror or error}", step="packages"
            ) from error

    async def _noted(self, request: str) -> Lock | None:
        """Return the lock that a request was resolved to before; None where none is noted."""
        kept = await self._in_thread(self._images.layers.note, request, LOCK_SECONDS)
        if kept is not None:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return Lock.decoded(json.loads(kept))
        return None

    async def _target(self, image: Image, language: Language) -> PythonTarget | NodeTarget:
        store = self._images.layers
        key = _key("target", language, image.root_digest)
        question, read = _QUESTIONS[language]
        answer = await self._in_thread(store.note, key, LOCK_SECONDS)
        if answer is not None:
            found = read(answer)
        else:
            answer = await inside.ask(self._run, image, question)
            found = read(answer)
            await self._in_thread(store.keep_note, key, answer, LOCK_SECONDS)
        if not isinstance(found, PythonTarget):
            return found
        if image.rootfs is None:
            # What the machine happens to have is of other versions than what is resolved here, and does not fit to it.
            return replace(found, alone="yes")
        return replace(found, root=image.root_digest)

    def _resolve(
        self, described: PythonTarget | NodeTarget, asked: Sequence[str], current: Lock | None, stop: Stop
    ) -> Lock:
        with self._images.layers.staging() as staging:
            if isinstance(described, PythonTarget):
                lock = python.resolve(asked, described, staging, self._tools, stop, current)
            else:
                lock = node.resolve(asked, described, staging, self._tools, stop)
        if len(lock.packages) > MAX_LOCKED:
            raise InvalidPackage(
                f"these are {len(lock.packages)} packages, and at most {MAX_LOCKED} may be", field="packages"
            )
        return lock

    async def _built(self, root: str, lock: Lock, making: Making) -> Layer:
        """Make a layer for images of ``root``, unless somebody else has made it meanwhile."""
        store, tell = self._images.layers, making.tell
        async with contextlib.AsyncExitStack() as stack:
            await self._wait_for_others(stack, lock, tell)
            layer = await self._in_thread(store.get, lock.digest)
            if layer is not None:
                return layer
            staging = await self._enter(stack, store.staging())
            tree = await self._in_thread(self._unpacked, lock, staging, making)
            if lock.language == "python":
                tell(Preparing("compiling"))
                await inside.compile_all(self._run, root, tree, staging)
            layer = await self._in_thread(store.publish, staging, lock, tree.size)
        tell(Preparing(f"{len(lock.packages)} packages are ready", lock.digest))
        await self._in_thread(self._images.prune, self._limits.cache_bytes)
        return layer

    def _unpacked(self, lock: Lock, staging: Path, making: Making) -> Tree:
        stop, tell = making.stop, making.tell
        tree = Tree(staging / "files", staging / "unpacking", self._limits.layer_bytes)
        archives = staging / "archives"
        archives.mkdir()
        tell(Preparing(f"fetching {len(lock.packages)} packages"))
        if lock.language == "node":
            found = node.fetch_all(lock.packages, archives, self._tools, stop, max_bytes=self._limits.layer_bytes)
            direct = frozenset(lock.target["direct"].split())
            for package, archive in zip(lock.packages, found, strict=True):
                stop.check()
                node.add_package(tree, archive, package, direct)
            return tree
        progress = _Fetched(tell)
        found = fetch.fetch_all(
            lock.packages,
            archives,
            self._environment,
            stop,
            max_bytes=self._limits.layer_bytes,
            progress=progress,
        )
        interpreter = PythonTarget(**lock.target)
        tell(Preparing(f"unpacking {len(lock.packages)} packages"))
        for package, archive in zip(lock.packages, found, strict=True):
            stop.check()
            wheel.add_wheel(tree, archive, package, interpreter)
            archive.unlink()
        site = tree.root / interpreter.site.strip("/")
        if site.is_dir():
            wheel.hide_others(tree, lock, interpreter)
        return tree

    async def _wait_for_others(self, stack: contextlib.AsyncExitStack, lock: Lock, tell: Tell) -> None:
        told = False
        while True:
            try:
                await self._enter(stack, self._images.layers.building(lock))
                return
            except BlockingIOError:
                if not told:
                    tell(Preparing("waiting for the same packages to be made ready"))
                told = True
            # The kernel wakes nobody but a thread for such a lock, and that could not be told to stop.
            await asyncio.sleep(_TURN_SECONDS)

    async def _in_thread(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        future = asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # Nothing is removed under the hands of a thread; it was told to stop.
            await asyncio.wait([future])
            # That it stopped is no news.
            future.exception()
            raise

    async def _enter(
        self, stack: contextlib.AsyncExitStack, manager: contextlib.AbstractContextManager[Answer]
    ) -> Answer:
        """Enter what waits for others, or removes a lot, in a thread."""
        entered: list[Answer] = []
        try:
            await self._in_thread(lambda: entered.append(manager.__enter__()))
        except asyncio.CancelledError:
            if entered:
                await self._in_thread(manager.__exit__, None, None, None)
            raise

        async def leave(*error: object) -> None:
            await self._in_thread(manager.__exit__, *error)

        stack.push_async_exit(leave)
        return entered[0]

    async def close(self) -> None:
        """End what is being made; nothing of it is left."""
        tasks = [making.task for making in self._making.values() if making.task is not None]
        for making in list(self._making.values()):
            making.end()
        if tasks:
            await asyncio.wait(tasks)
        self._threads.shutdown(wait=False)


class _Fetched:
    """Tells now and then how much has come."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._next = time.monotonic() + _TOLD_SECONDS

    def __call__(self, count: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _TOLD_SECONDS
            self._tell(Preparing(f"fetched {count / MIB:.0f} MiB"))


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
