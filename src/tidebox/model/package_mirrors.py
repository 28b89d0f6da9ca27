"""Where the tools of a machine get packages from, as far as programs in boxes need to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidebox.model.egress import Allowlist


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Their hosts, and the variables that tell pip and npm of them."""

    allowlist: Allowlist
    environment: Mapping[str, str] = field(default_factory=dict)
