"""Lists look at indexes only, however common what they ask for: the plans do not depend on what is in the database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks.store import QUERIES, fill
from tidebox.store.sql import runs
from tidebox.store.sql.database import open_sqlite


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "store.db"
    open_sqlite(path).close()
    fill(path, 3000)
    return path


@pytest.fixture
def statements(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[sa.Engine, list[tuple[str, Any]]]]:
    """An engine, and what it is asked."""
    monkeypatch.setattr(runs, "_FEW", 0)
    engine = sa.create_engine(f"sqlite:///{path}")
    asked: list[tuple[str, Any]] = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def ask(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        asked.append((statement, parameters))

    yield engine, asked
    engine.dispose()


@pytest.mark.parametrize("name", QUERIES)
def test_counts_and_pages_come_from_indexes_alone(
    statements: tuple[sa.Engine, list[tuple[str, Any]]], path: Path, name: str
) -> None:
    engine, asked = statements
    with engine.connect() as connection:
        runs.list_runs(connection, QUERIES[name])
    counts_and_pages = [found for found in asked if "record" not in found[0]]
    assert counts_and_pages
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement, parameters in counts_and_pages:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            assert "COVERING INDEX" in plan[0], (statement, plan)
