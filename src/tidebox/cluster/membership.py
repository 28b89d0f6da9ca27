"""The door to the other servers on one database: which node this one is, and what it hears of its own and their fate.

A base for a server that shares its database with nobody, as with SQLite and in memory: it is always itself.
"""

from __future__ import annotations

import abc
import asyncio
import time

from tidebox.model.node import Owner
from tidebox.store.base import Estate


class Resident(abc.ABC):
    """A part that works on a node's own runs or bindings, and is told when they are not its own any more."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """End what runs: others may have been told that this node is lost."""

    @abc.abstractmethod
    async def abandon(self) -> None:
        """Let go of everything, and wait until that is done: others have it, or have ended it."""

    @abc.abstractmethod
    async def recover(self, owner: Owner) -> None:
        """Take up what the store has of this node, which has joined as ``owner`` and begins nothing new before."""

    @abc.abstractmethod
    async def inherit(self, estate: Estate) -> None:
        """Go on with what was taken over from a lost node. May be told of the same run again."""


class Membership:
    """One node among those of its database: the only one."""

    def __init__(self, node_id: str = "local") -> None:
        self.node_id = node_id
        self.superseded = asyncio.Event()
        """Set when another server has taken this one's place: it must end."""
        self._epoch = int(time.time() * 1000)

    @property
    def owner(self) -> Owner:
        """This node, as the owner of what it begins now; raises as ``check`` does."""
        return Owner(self.node_id, self._epoch)

    def register(self, resident: Resident) -> None:
        """Tell ``resident`` what happens to this node; those first that came first."""

    async def join(self) -> None:
        """Become a node; raises ``Conflict`` where another server is this one."""

    def check(self) -> None:
        """Raise ``StoreUnavailable`` where this node may not begin anything."""

    def watch(self) -> None:
        """Begin to look after other nodes: all residents are ready for what these may leave."""

    def drain(self) -> None:
        """Take over nothing more: this server ends."""

    async def close(self) -> None:
        """Be a node no longer."""
