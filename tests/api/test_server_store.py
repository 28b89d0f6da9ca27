"""Which store a server has, and what keeps it from having one."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.api.conftest import NO_CELLS, RunningServer
from tests.api.test_server_start import refused
from tests.contract import postgres

RUN = {"spec_version": "1.0", "base_image": "python:3.12", "command": ["python", "-c", "print(1)"]}


def run_to_its_end(server: RunningServer) -> str:
    """The id of a run that is over."""
    with httpx2.Client(base_url=f"{server.url}/api/v1/sandbox", headers=server.headers, timeout=30) as client:
        made = client.post("/runs", json=RUN).json()
        deadline = time.monotonic() + 30
        while client.get(f"/runs/{made['run_id']}").json()["phase"] != "completed":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    return str(made["run_id"])


def status_of(server: RunningServer, run_id: str) -> int:
    found = httpx2.get(f"{server.url}/api/v1/sandbox/runs/{run_id}", headers=server.headers, timeout=30)
    return found.status_code


def store_mode(server: RunningServer) -> str:
    found = httpx2.get(f"{server.url}/api/v1/sandbox/runtimes", headers=server.headers, timeout=30)
    return str(found.json()["store_mode"])


def test_runs_are_in_the_data_directory(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    first = start_server(data_dir=tmp_path / "data", **NO_CELLS)
    run_id = run_to_its_end(first)
    assert store_mode(first) == "sqlite"
    assert first.stop() == 0
    kept = tmp_path / "data" / "meta"
    assert sorted(path.name for path in kept.iterdir()) == ["sandbox_store.db", "sandbox_store.db-work"]
    assert list((kept / "sandbox_store.db-work").iterdir()) == []
    second = start_server(data_dir=tmp_path / "data", **NO_CELLS)
    assert status_of(second, run_id) == 200


def test_the_file_may_be_elsewhere(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    server = start_server(store_db_path=str(tmp_path / "own" / "runs.db"), **NO_CELLS)
    run_to_its_end(server)
    assert (tmp_path / "own" / "runs.db").exists()
    assert not (server.data_dir / "meta").exists()
    # A directory of its own does not help a second server.
    same = {"SANDBOX_STORE_DB_PATH": str(tmp_path / "own" / "runs.db")}
    line = refused("--data-dir", tmp_path / "other", env=same)
    assert f"another server uses the database {tmp_path / 'own' / 'runs.db'}" in line


def test_a_store_in_memory_leaves_no_file(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    first = start_server(data_dir=tmp_path / "data", store_backend="memory", **NO_CELLS)
    run_id = run_to_its_end(first)
    assert store_mode(first) == "memory"
    assert first.stop() == 0
    assert not (tmp_path / "data" / "meta").exists()
    second = start_server(data_dir=tmp_path / "data", store_backend="memory", **NO_CELLS)
    assert status_of(second, run_id) == 404


@pytest.mark.skipif(postgres.missing() is not None, reason=str(postgres.missing()))
def test_runs_are_in_postgresql(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    with postgres.running() as database:
        store = {"store_backend": "postgres", "store_url": database.fresh_url()}
        first = start_server(data_dir=tmp_path / "data", **store, **NO_CELLS)
        run_id = run_to_its_end(first)
        assert store_mode(first) == "postgres"
        assert first.stop() == 0
        second = start_server(data_dir=tmp_path / "other", **store, **NO_CELLS)
        assert status_of(second, run_id) in (200, 404)
        key = {"X-API-KEY": second.key}
        listed = httpx2.get(f"{second.url}/api/v1/sandbox/admin/runs", headers=key, timeout=30).json()
        assert [run["id"] for run in listed["items"]] == [run_id]
        assert second.stop() == 0


def test_a_newer_database_is_refused_in_one_line(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    server = start_server(data_dir=tmp_path / "data", **NO_CELLS)
    run_to_its_end(server)
    assert server.stop() == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "meta" / "sandbox_store.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    assert "was written by a newer Tidebox (its schema is 9999" in refused("--data-dir", tmp_path / "data")


def test_a_store_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    elsewhere = {"SANDBOX_STORE_DB_PATH": str(tmp_path / "file" / "store.db")}
    assert "cannot be used: Not a directory" in refused("--data-dir", tmp_path / "data", env=elsewhere)
    nowhere = {"SANDBOX_STORE_BACKEND": "postgres"}
    assert "SANDBOX_STORE_URL must say where" in refused("--data-dir", tmp_path / "data", env=nowhere)
    down = nowhere | {"SANDBOX_STORE_URL": f"postgresql://ada:secret@/db?host={tmp_path}"}
    line = refused("--data-dir", tmp_path / "data", env=down)
    assert "the database db on this machine cannot be used" in line
    assert "secret" not in line


def test_the_database_layer_is_not_loaded_before_it_is_needed() -> None:
    script = "import sys, tidebox.store.sql.store; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
