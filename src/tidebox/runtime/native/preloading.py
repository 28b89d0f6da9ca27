"""Which sets of modules are loaded for the programs of an image, each in a template of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tidebox.errors import ProvisionFailed
from tidebox.model import preloads

_log = logging.getLogger(__name__)

Load = Callable[[tuple[str, ...]], Awaitable[dict[str, Any]]]
Discard = Callable[[], Awaitable[None]]


class Preloading:
    """The state of preloads on this machine: sets that are absent, modules that were refused, and loads under way."""

    def __init__(self) -> None:
        self._absent: set[str] = set()
        self._refused: dict[str, str] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}

    @property
    def refused(self) -> Mapping[str, str]:
        """Modules that cannot be loaded ahead, and why."""
        return self._refused

    def best_of(self, wanted: Sequence[str]) -> str:
        """The first of these sets that there is; empty for none."""
        return next((name for name in wanted if name not in self._absent), "")

    async def load(self, template: str, name: str, load: Load, discard: Discard) -> None:
        """Have the set ``name`` loaded in a ``template``, once for all who ask for it at the same time.

        ``load`` makes the template and loads; one that has been spoilt by a module is discarded and made anew without.
        """
        if template not in self._under_way:
            task = asyncio.get_running_loop().create_task(self._load(name, load, discard), name=f"preload {name}")
            self._under_way[template] = task
            task.add_done_callback(lambda _: self._under_way.pop(template, None))
        await asyncio.shield(self._under_way[template])

    async def _load(self, name: str, load: Load, discard: Discard) -> None:
        package = preloads.package_of(name)
        while True:
            answer = await load(tuple(module for module in preloads.modules_of(name) if module not in self._refused))
            refused = answer.get("refused")
            if refused is None and (package is None or any(_is_of(package, found) for found in answer["preloaded"])):
                _log.info("modules loaded for programs (%s): %d", name, answer["modules"])
                return
            await discard()
            if refused is None or refused in self._refused:
                self._absent.add(name)
                raise ProvisionFailed(f"no module of the set {name} can be loaded", step="preload")
            self._refused[str(refused)] = str(answer["reason"])
            _log.warning("not loaded before programs: %s: %s", refused, answer["reason"])

    async def close(self) -> None:
        """Give up what is under way."""
        for task in list(self._under_way.values()):
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)


def _is_of(package: str, module: str) -> bool:
    return module.partition(".")[0] == package
