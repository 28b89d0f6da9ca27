"""Totals over runs: counts by outcome, and the resources they used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Some runs: how many, how they ended, and what they used."""

    runs: int = 0
    completed: int = 0
    failed: int = 0
    timed_out: int = 0
    killed: int = 0
    cpu_seconds: float = 0.0
    log_bytes: int = 0
    artifact_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The runs of a time, together and apart."""

    totals: Totals
    by_runtime: Mapping[str, Totals]
    top_users: tuple[tuple[str, Totals], ...]
    """Those with the most runs, most first."""
