"""The key of a certificate authority, as it is kept and sent: apart from what it takes to use it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key and its certificate, both as PEM."""

    key: bytes = field(repr=False)
    certificate: bytes
