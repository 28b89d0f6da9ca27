"""Every kind of store, for tests of what all of them keep."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.contract import postgres
from tests.memory_store import DictStore
from tidebox.store.base import Store
from tidebox.store.sql.store import MemoryStore, PostgresStore, SqliteStore

KINDS = ("dictionaries", "memory", "sqlite", "postgres")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    with postgres.running() as server:
        yield server


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    if kind == "postgres" and (reason := postgres.missing()) is not None:
        pytest.skip(reason)
    return kind


@pytest.fixture
def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Opens one store, as often as it is called; those in memory are empty each time."""
    if kind == "dictionaries":
        return DictStore
    if kind == "memory":
        return MemoryStore
    if kind == "sqlite":
        return lambda: SqliteStore(tmp_path / "meta" / "sandbox_store.db")
    url = request.getfixturevalue("postgres_server").fresh_url()
    return lambda: PostgresStore(url)


@pytest.fixture
async def store(make_store: Callable[[], Store]) -> AsyncIterator[Store]:
    store = make_store()
    await store.start()
    yield store
    await store.close()
