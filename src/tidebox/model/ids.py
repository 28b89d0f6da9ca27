"""Names for things that have none yet."""

from __future__ import annotations

import secrets

# 96 bits: nobody guesses one, and none is made twice.
_BYTES = 12


def new_id(prefix: str) -> str:
    """A fresh id, ``<prefix>-`` and lower-case letters and digits: fit for paths, host names and URLs."""
    return f"{prefix}-{secrets.token_hex(_BYTES)}"
