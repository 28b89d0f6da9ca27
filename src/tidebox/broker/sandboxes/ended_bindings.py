"""Write-behind queue for ended bindings: saved at once, or retried while the store is down."""

from __future__ import annotations

import time

from tidebox.errors import StoreUnavailable
from tidebox.model.sandbox import Binding
from tidebox.store.base import Store

# How long it is known that a binding has ended, and whose its scope was.
_KEPT_SECONDS = 24 * 3600.0
_PRUNE_SECONDS = 3600.0


class EndedBindings:
    """Ended bindings that the store may not know yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unsaved: dict[str, Binding | None] = {}
        self._pruned_at = 0.0

    async def save(self, binding_id: str, ended: Binding | None) -> None:
        """Save a binding as ``ended``, or delete it where that is None; queued and raised as ``StoreUnavailable``."""
        try:
            await self._save(binding_id, ended)
        except StoreUnavailable:
            self._unsaved[binding_id] = ended
            raise

    async def _save(self, binding_id: str, ended: Binding | None) -> None:
        if ended is not None:
            await self._store.save_binding(ended)
        else:
            await self._store.delete_binding(binding_id)

    def withdraw(self, binding_id: str) -> None:
        """Drop a queued end: the binding is live again."""
        self._unsaved.pop(binding_id, None)

    async def retry(self) -> None:
        """Retry queued ends, and prune ended bindings that are old enough."""
        for binding_id, ended in list(self._unsaved.items()):
            await self._save(binding_id, ended)
            self._unsaved.pop(binding_id, None)
        now = time.time()
        if now - self._pruned_at > _PRUNE_SECONDS:
            await self._store.prune_bindings(now - _KEPT_SECONDS)
            self._pruned_at = now
