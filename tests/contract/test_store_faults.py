"""Databases that are old, new, foreign, full, busy, or lost with the process that wrote to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.contract import postgres
from tests.contract.database_proxy import standing_before
from tests.contract.test_stores import make_claim, make_run, make_session, step
from tests.unit.stage import ADA, Stage
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.broker import Broker
from tidebox.broker.runs.run_plan import RunPlan
from tidebox.broker.storage.log_frames import LogFrame
from tidebox.errors import QuotaExceeded, StoreInDoubt, StoreUnavailable
from tidebox.model.box import BoxSpec
from tidebox.model.idempotency import Claim
from tidebox.model.launch import plan_code
from tidebox.model.log import Ended
from tidebox.model.node import NOBODY, Owner
from tidebox.model.run import Phase, RunFacts
from tidebox.model.run_query import RunQuery
from tidebox.store import migrations
from tidebox.store.base import Creation, Holdings, SessionCreation, SessionQuery
from tidebox.store.sql.rows import record_of, run_row
from tidebox.store.sql.schema import metadata
from tidebox.store.sql.store import PostgresStore, SqliteStore, SqlStore
from tidebox.store.sql.upgrade import bring_up_to_date, migrate
from tidebox.store.sql.versions import HEAD, REVISIONS

Engine = Callable[[], sa.Engine]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> postgres.Server:
    if (reason := postgres.missing()) is not None:
        pytest.skip(reason)
    server: postgres.Server = request.getfixturevalue("postgres_server")
    return server


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """An empty database."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("server").fresh_url().replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


def store_of(engine: sa.Engine) -> SqlStore:
    if engine.dialect.name == "postgresql":
        return PostgresStore(engine.url.set(drivername="postgresql").render_as_string(hide_password=False))
    return SqliteStore(Path(str(engine.url.database)))


def tables(engine: sa.Engine) -> dict[str, object]:
    """Everything a database says about its tables."""
    found = sa.inspect(engine)
    return {
        name: (
            sorted(str(column) for column in found.get_columns(name)),
            found.get_pk_constraint(name)["constrained_columns"],
            sorted(str((index["name"], index["column_names"], index["unique"])) for index in found.get_indexes(name)),
        )
        for name in found.get_table_names()
    }


def test_the_migrations_are_those_the_program_knows() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(str(migrations.__file__)).parent))
    config.set_main_option("path_separator", "os")
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(known)) == REVISIONS


def test_migrations_make_what_a_fresh_database_has(engine: sa.Engine, tmp_path: Path) -> None:
    with engine.begin() as connection:
        migrate(connection, HEAD)
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    migrated = tables(engine)
    with engine.begin() as connection:
        metadata.drop_all(connection)
        connection.execute(sa.text("DROP TABLE alembic_version"))
        bring_up_to_date(connection, "the database")
        connection.execute(sa.text("DROP TABLE alembic_version"))
    migrated.pop("alembic_version")
    assert tables(engine) == migrated


def test_tables_and_indexes_have_the_names_of_the_specification() -> None:
    runs = metadata.tables["sandbox_runs"]
    assert {
        *("id", "user_id", "spec_version", "runtime", "runtime_version", "base_image", "image_digest", "phase"),
        *("exit_code", "started_at", "finished_at", "message", "policy_hash"),
    } <= set(runs.columns.keys())
    keys = metadata.tables["sandbox_idempotency"]
    assert set(keys.columns.keys()) == {
        *("endpoint", "user_key", "key", "fingerprint", "object_id", "response_body", "created_at")
    }
    assert [column.name for column in keys.primary_key] == ["endpoint", "user_key", "key"]
    assert set(metadata.tables["sandbox_usage"].columns.keys()) == {"user_id", "artifact_bytes"}
    indexes = {
        str(index.name): [column.name for column in index.columns]
        for table in metadata.tables.values()
        for index in table.indexes
    }
    suggested = {
        "idx_runs_started_at": ["started_at"],
        "idx_runs_finished_at": ["finished_at"],
        "idx_runs_phase": ["phase"],
        "idx_runs_runtime": ["runtime"],
        "idx_runs_image_digest": ["image_digest"],
        "idx_runs_base_image": ["base_image"],
        "idx_runs_user_started_at": ["user_id", "started_at"],
        "idx_runs_user_phase": ["user_id", "phase"],
        "idx_idem_created_at": ["created_at"],
        "idx_idem_user_key": ["user_key"],
        "idx_usage_artifact_bytes": ["artifact_bytes"],
    }
    assert {name: indexes.get(name) for name in suggested} == suggested


async def test_the_queries_of_the_specification_run(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.start()
    await store.create_run(Creation(run=make_run(created_at=1000.0), work=b"", claim=make_claim(), response=b"{}"))
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:

        def ask(query: str) -> list[tuple[object, ...]]:
            return connection.execute(query).fetchall()

        recent = """SELECT id, user_id, runtime, base_image, phase, exit_code, started_at, finished_at
            FROM sandbox_runs ORDER BY COALESCE(finished_at, started_at) DESC LIMIT 20"""
        assert ask(recent) == [("run-1", "ada", "native", "host", "queued", None, None, None)]
        assert ask("SELECT endpoint, COUNT(*) AS entries FROM sandbox_idempotency GROUP BY endpoint") == [("runs", 1)]
        fingerprints = """SELECT endpoint, user_key, key, LENGTH(response_body) AS resp_bytes,
            datetime(created_at, 'unixepoch') AS created FROM sandbox_idempotency ORDER BY created_at DESC LIMIT 5"""
        assert ask(fingerprints) == [("runs", "ada", "k", 2, "1970-01-01 00:16:40")]
        assert ask("SELECT user_id, artifact_bytes FROM sandbox_usage ORDER BY artifact_bytes DESC") == []
        ask("DELETE FROM sandbox_idempotency WHERE created_at < strftime('%s','now') - 600")
        assert ask("SELECT COUNT(*) FROM sandbox_idempotency") == [(0,)]


async def test_an_old_database_is_upgraded_with_what_it_has(engine: sa.Engine) -> None:
    run = make_run()
    with engine.begin() as connection:
        migrate(connection, REVISIONS[0])
        old = sa.Table("sandbox_runs", sa.MetaData(), autoload_with=connection)
        connection.execute(old.insert(), {name: value for name, value in run_row(run).items() if name in old.columns})
        record = json.loads(record_of(run))
        del record["owner"], record["attempt"]
        row = {"run_id": run.id, "record": json.dumps(record)}
        connection.execute(metadata.tables["sandbox_run_records"].insert(), row)
    store = store_of(engine)
    await store.start()
    try:
        assert await store.run(run.id) == run
        assert (await store.list_sessions(SessionQuery())).total == 0
        # It is the first server's that starts.
        owner = Owner("node-1", 7)
        assert await store.recover_runs(owner) == [(replace(run, owner=owner), None)]
    finally:
        await store.close()
    with engine.begin() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == HEAD


async def test_a_newer_database_is_refused_and_left_as_it_is(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        bring_up_to_date(connection, "the database")
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    store = store_of(engine)
    with pytest.raises(StoreUnavailable, match=r"^the database .* was written by a newer Tidebox \(its schema is 9999"):
        await store.start()
    await store.close()
    with engine.begin() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == "9999"


async def test_somebody_elses_tables_are_left_alone(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE sandbox_runs (id TEXT)"))
    store = store_of(engine)
    with pytest.raises(StoreUnavailable, match="tables of another program"):
        await store.start()
    await store.close()
    assert set(sa.inspect(engine).get_table_names()) == {"sandbox_runs"}


async def test_a_file_that_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database, but long enough to be looked at as one" * 100)
    with pytest.raises(StoreUnavailable, match=r"^the database .* cannot be used: file is not a database$"):
        await SqliteStore(path).start()
    with pytest.raises(StoreUnavailable, match=r"cannot be used: Not a directory$"):
        await SqliteStore(path / "below" / "store.db").start()


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "meta" / "store.db")
    await store.start()
    await store.create_run(Creation(run=make_run(), work=b""))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "meta").iterdir()}
    await store.close()
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600, "store.db-work": 0o700}
    assert (tmp_path / "meta").stat().st_mode & 0o777 == 0o700


def _having(directory: Path, word: bytes) -> list[str]:
    """The files below a directory in which a word is to be found."""
    return sorted(path.name for path in directory.rglob("*") if path.is_file() and word in path.read_bytes())


async def test_a_program_that_has_begun_is_not_to_be_found_in_any_file(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.start()
    for number, word in enumerate([b"a secret", b"long secret " * 1000]):
        run = make_run(f"run-{number}")
        await store.create_run(Creation(run=run, work=word))
        assert _having(tmp_path, b"secret") == [run.id]
        await store.advance_run(run, step(Phase.STARTING))
        await store.advance_run(run, step(Phase.RUNNING))
        # As a server that is killed now leaves them: the log is still there.
        assert _having(tmp_path, run.id.encode()) != []
        assert _having(tmp_path, b"secret") == []
    await store.close()
    assert _having(tmp_path, b"secret") == []


async def test_a_program_that_was_refused_is_not_kept(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.start()

    def refuse(_: Holdings) -> None:
        raise QuotaExceeded("too much")

    with pytest.raises(QuotaExceeded):
        await store.create_run(Creation(run=make_run(), work=b"a secret", check=refuse))
    claim = Claim("runs", "ada", "key", "print")
    first = Creation(run=make_run("run-1"), work=b"first", claim=claim, response=b"{}")
    assert await store.create_run(first) is None
    again = Creation(run=make_run("run-2"), work=b"a secret", claim=claim, response=b"{}")
    assert await store.create_run(again) is not None
    assert _having(tmp_path, b"a secret") == []
    assert [work for _, work in await store.recover_runs(NOBODY)] == [b"first"]
    await store.close()


async def test_a_program_that_a_killed_server_could_not_remove_is_removed_by_the_next(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.start()
    for run_id in ("run-1", "run-2"):
        await store.create_run(Creation(run=make_run(run_id), work=run_id.encode()))
    await store.close()
    left = tmp_path / "store.db-work"
    (left / "run-3").write_bytes(b"of a run that was never accepted")
    again = SqliteStore(tmp_path / "store.db")
    await again.start()
    assert [work for _, work in await again.recover_runs(NOBODY)] == [b"run-1", b"run-2"]
    assert sorted(path.name for path in left.iterdir()) == ["run-1", "run-2"]
    assert {path.stat().st_mode & 0o777 for path in left.iterdir()} == {0o600}
    assert left.stat().st_mode & 0o777 == 0o700
    await again.close()


async def test_variables_of_a_session_that_is_gone_are_not_to_be_found_in_any_file(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.start()
    for session_id in ("ses-1", "ses-2"):
        session = replace(make_session(session_id), env={"TOKEN": f"secret of {session_id} " * 500})
        await store.create_session(SessionCreation(session=session))
    assert await store.delete_session("ses-1")
    assert _having(tmp_path, b"secret of ses-1") == []
    assert _having(tmp_path, b"secret of ses-2") != []
    await store.close()


async def test_another_writer_is_waited_for_without_holding_up_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.start()
    await store.create_run(Creation(run=make_run("run-0"), work=b""))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(store.create_run(Creation(run=make_run(), work=b"")))
        for _ in range(20):
            before = time.monotonic()
            await asyncio.sleep(0.01)
            assert time.monotonic() - before < 3.0
        assert await store.run("run-0") is not None
        assert not writing.done()
        other.execute("COMMIT")
        await writing
    assert await store.run("run-1") is not None
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.start()
    await store.create_run(Creation(run=make_run(), work=b""))
    database, _ = await store._ready()
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await database.read(lambda connection: None)


async def test_a_full_disk_is_an_error_that_passes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.start()
    await store.create_run(Creation(run=make_run("run-0"), work=b""))
    database, _ = await store._ready()

    def limit(pages: str) -> Callable[[sa.Connection], None]:
        return lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").close()

    await database.write(limit("1"))
    with pytest.raises(StoreUnavailable, match=r"^the store cannot be used: database or disk is full$"):
        await store.create_run(Creation(run=make_run(labels={"long": "x" * 1_000_000}), work=b"program"))
    assert await store.run("run-0") is not None
    await database.write(limit("1000000"))
    assert await store.create_run(Creation(run=make_run(labels={"long": "x" * 1_000_000}), work=b"program")) is None
    await store.close()


async def test_a_run_whose_program_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.start()
    (tmp_path / "store.db-work").rmdir()
    with pytest.raises(StoreUnavailable, match="programs of runs cannot be kept: No such file"):
        await store.create_run(Creation(run=make_run(), work=b"program"))
    assert await store.run("run-1") is None
    (tmp_path / "store.db-work").mkdir()
    assert await store.create_run(Creation(run=make_run(), work=b"program")) is None
    await store.close()


async def test_a_database_server_that_comes_back_is_used_again(server: postgres.Server) -> None:
    store = PostgresStore(server.fresh_url())
    await store.start()
    await store.create_run(Creation(run=make_run(), work=b""))
    await asyncio.to_thread(server.kill)
    with pytest.raises(StoreUnavailable):
        await store.run("run-1")
    await asyncio.to_thread(server.start)
    assert await store.run("run-1") is not None
    await store.close()


async def test_a_commit_whose_answer_is_lost_is_told_from_one_that_did_not_happen(server: postgres.Server) -> None:
    with standing_before(server.fresh_url()) as proxy:
        store = PostgresStore(proxy.url)
        await store.start()
        run = make_run()
        proxy.lose_answers(1)
        with pytest.raises(StoreInDoubt):
            await store.create_run(Creation(run=run, work=b""))
        assert await store.run(run.id) == run
        proxy.lose_answers(1)
        with pytest.raises(StoreInDoubt):
            await store.advance_run(run, step(Phase.STARTING))
        assert proxy.lost_answers == 2
        there = await store.run(run.id)
        assert there is not None
        assert there.phase is Phase.STARTING
        await store.close()


async def test_a_run_reaches_its_end_though_the_answers_to_its_steps_are_lost(
    server: postgres.Server, tmp_path: Path
) -> None:
    stage = Stage()
    with standing_before(server.fresh_url()) as proxy:
        broker = Broker(runner=stage, store=PostgresStore(proxy.url), audit=Audit(tmp_path))
        await broker.start()
        # The one that makes the run; that it runs; that it is over.
        proxy.lose_answers(3)
        work = RunPlan(launch=plan_code("python", ""), spec=BoxSpec())
        facts = RunFacts(runtime="native", base_image="host", spec_version="1.0", policy_hash="f00d")
        run = (await broker.runs.submit(ADA, facts, work)).run
        reader = await broker.runs.read_log(ADA, run.id)
        (await stage.play(0)).finish()
        entries = []
        async with asyncio.timeout(60):
            while batch := await reader.read():
                entries += [item.entry for item in batch if isinstance(item, LogFrame)]
        assert proxy.lost_answers == 3
        assert isinstance(entries[-1], Ended)
        assert entries[-1].run.phase is Phase.COMPLETED
        assert await broker.runs.get(ADA, run.id) == entries[-1].run
        await broker.close()


async def test_two_servers_on_one_database_make_one_run_of_identical_requests(server: postgres.Server) -> None:
    url = server.fresh_url()
    stores = [PostgresStore(url), PostgresStore(url)]
    await asyncio.gather(*(store.start() for store in stores))
    creations = [Creation(run=make_run(f"run-{n}"), work=b"", claim=make_claim()) for n in range(40)]
    answers = await asyncio.gather(
        *(stores[number % 2].create_run(creation) for number, creation in enumerate(creations))
    )
    assert answers.count(None) == 1
    assert (await stores[0].list_runs(RunQuery())).total == 1
    await asyncio.gather(*(store.close() for store in stores))


_WRITER = """
import asyncio, sys
from pathlib import Path
from tests.contract.test_stores import make_claim, make_run, make_session, step
from tidebox.model.run import Phase
from tidebox.store.base import Creation
from tidebox.store.sql.store import PostgresStore, SqliteStore

async def write():
    kind, where, round = sys.argv[1:]
    store = SqliteStore(Path(where)) if kind == "sqlite" else PostgresStore(where)
    await store.start()
    async def one(lane):
        number = 0
        while True:
            id = f"run-{round}-{lane}-{number}"
            await store.create_run(Creation(run=make_run(id), work=b"w" * 5000, claim=make_claim(id), response=b"{}"))
            print(id, "queued", flush=True)
            if number % 2:
                await store.advance_run(make_run(id), step(Phase.STARTING))
                await store.advance_run(make_run(id), step(Phase.RUNNING))
                print(id, "running", flush=True)
            number += 1
    await asyncio.gather(*map(one, range(4)))

asyncio.run(write())
"""


def acknowledged_until_killed(kind: str, where: str, round: int) -> dict[str, str]:
    """Let a process write, kill it in the middle, and return the runs it told of with their phases."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, kind, where, str(round)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": "."},
    )
    assert writer.stdout is not None
    with writer, writer.stdout as told:
        lines = [told.readline() for _ in range(60)]
        writer.kill()
        lines += told.readlines()
    return {id: phase for line in lines if line.endswith("\n") for id, phase in [line.split()]}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_was_acknowledged_survives_the_death_of_the_writer(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    where = str(tmp_path / "store.db") if kind == "sqlite" else request.getfixturevalue("server").fresh_url()
    acknowledged: dict[str, str] = {}
    for round in range(3):
        acknowledged |= await asyncio.to_thread(acknowledged_until_killed, kind, where, round)
        store = SqliteStore(Path(where)) if kind == "sqlite" else PostgresStore(where)
        await store.start()
        unfinished = {run.id: (run.phase, work) for run, work in await store.recover_runs(NOBODY)}
        for id, phase in acknowledged.items():
            found, _ = unfinished[id]
            assert found is Phase.RUNNING or phase == "queued"
            answered = await store.answered(make_claim(id), 0.0)
            assert answered is not None
            assert answered.object_id == id
        # Each step happened as a whole: the program is there exactly as long as it may have to be started.
        assert all((work is None) == (phase is Phase.RUNNING) for phase, work in unfinished.values())
        await store.close()
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(where)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
