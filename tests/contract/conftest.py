"""What the tests of contracts share."""

from __future__ import annotations

from tests.contract.runtimes import engine, runtime, runtime_name
from tests.contract.stores import kind, make_store, postgres_server, store

__all__ = ["engine", "kind", "make_store", "postgres_server", "runtime", "runtime_name", "store"]
