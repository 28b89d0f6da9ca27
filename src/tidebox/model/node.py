"""Nodes: the servers that share one database. A run or binding has one of them as its owner at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Owner:
    """A node, from one of its joins to the next: each join raises the epoch, so an owner of the past is told apart."""

    node_id: str = ""
    epoch: int = 0


NOBODY = Owner()
"""The owner of what was made before there were nodes; the next server that starts takes it."""


def is_node_id(text: str) -> bool:
    """Whether a text can be the id of a node: 1 to 64 letters, digits and ``._-``, the first no sign."""
    return _NODE_ID.fullmatch(text) is not None
