"""The one version number of the protocol, agreed once per connection."""

from __future__ import annotations

# What this build speaks at most. Raised only when everything a generation obliges us to do works.
GENERATION = 10

# The support horizon: peers below it are refused at the handshake.
OLDEST_GENERATION = 1

# The generation a peer reached through the pre-0.5 relay prologue speaks.
LEGACY_GENERATION = 1

# Generations that brought a duty besides their message types.
ERROR_GENERATION = 5
BULK_GENERATION = 8
FLOW_CONTROL_GENERATION = 10


def negotiate(ours: int, theirs: int) -> int:
    """The generation both sides speak."""
    return min(ours, theirs)
