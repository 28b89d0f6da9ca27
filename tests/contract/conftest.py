"""What the tests of contracts share."""

from __future__ import annotations

from tests.contract.runtimes import engine, runtime, runtime_name

__all__ = ["engine", "runtime", "runtime_name"]
