"""What the store is told of bindings that have ended, at once or as soon as it can be told."""

from __future__ import annotations

import time

from tidebox.errors import StoreUnavailable
from tidebox.model.sandbox import Binding
from tidebox.store.base import Store

# How long it is known that a binding has ended, and whose its scope was.
_KEPT_SECONDS = 24 * 3600.0
_PRUNE_SECONDS = 3600.0


class Endings:
    """Bindings that are over, and of which the store may not know it yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._untold: dict[str, Binding | None] = {}
        self._pruned_at = 0.0

    async def tell(self, binding_id: str, ended: Binding | None) -> None:
        """Let a binding be known as ``ended`` for a while, or not at all; raises ``StoreUnavailable``."""
        try:
            await self._tell(binding_id, ended)
        except StoreUnavailable:
            self._untold[binding_id] = ended
            raise

    async def _tell(self, binding_id: str, ended: Binding | None) -> None:
        if ended is not None:
            await self._store.save_binding(ended)
        else:
            await self._store.delete_binding(binding_id)

    def taken_back(self, binding_id: str) -> None:
        """A binding of which the store did not know that it had ended goes on."""
        self._untold.pop(binding_id, None)

    async def look(self) -> None:
        """Tell what could not be told before, and forget what is known for long enough."""
        for binding_id, ended in list(self._untold.items()):
            await self._tell(binding_id, ended)
            self._untold.pop(binding_id, None)
        now = time.time()
        if now - self._pruned_at > _PRUNE_SECONDS:
            await self._store.prune_bindings(now - _KEPT_SECONDS)
            self._pruned_at = now
