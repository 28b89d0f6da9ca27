"""A database, used by threads so that the event loop never waits for it.

Every operation is one transaction and one visit to a thread. SQLite has one thread that writes, because SQLite has one
writer anyway, and some that read; PostgreSQL has some that do both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from tidebox.errors import InvalidRequest, StoreInDoubt, StoreUnavailable
from tidebox.store.sql.sqlite_file import BUSY_SECONDS
from tidebox.store.sql.upgrade import bring_up_to_date

_P = ParamSpec("_P")
_T = TypeVar("_T")

_SQLITE_READERS = 2
_POSTGRES_CONNECTIONS = 8
_HASTE_MILLISECONDS = 2000
# Of libpq, in seconds and milliseconds: a server behind a cut network is not waited for.
_IMPATIENT = {"connect_timeout": 2, "tcp_user_timeout": _HASTE_MILLISECONDS}
_SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA temp_store = MEMORY",
    # A program that was removed is not to be found in the file.
    "PRAGMA secure_delete = ON",
)
_WIPE = "PRAGMA wal_checkpoint(TRUNCATE)"
# Lists go through whole indexes: where they are in the kernel's memory anyway, not through copies of it.
_READER = ("PRAGMA query_only = ON", "PRAGMA mmap_size = 1073741824")
# What is told to somebody survives also the machine's end, for the price of waiting for the disk.
_WRITER = ("PRAGMA synchronous = FULL",)
# It survives this process's end, and is on the disk with the next that has to be.
_LAX_WRITER = ("PRAGMA synchronous = NORMAL",)


class _Lane:
    """An engine and the threads that use it, as many as it has connections."""

    def __init__(self, engine: sa.Engine, threads: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._threads = threads
        self._connection: Any = None

    def note_connection(self, connection: Any, _: Any) -> None:
        """Remember the driver's connection, of a lane that has one."""
        self._connection = connection

    def cut_off(self) -> None:
        """End what the connection waits for: a peer that takes bytes and never answers is told by no time limit."""
        # The driver says so in its own ways that there is none any more.
        with contextlib.suppress(Exception), socket.socket(fileno=os.dup(self._connection.fileno())) as there:
            there.shutdown(socket.SHUT_RDWR)

    async def run(self, operation: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        def transaction() -> _T:
            committing = False
            try:
                with self._engine.begin() as connection:
                    found = operation(connection, *args, **kwargs)
                    committing = True
                return found
            except (exc.DataError, UnicodeEncodeError):
                raise InvalidRequest("the request has characters that no database takes") from None
            except exc.SQLAlchemyError as error:
                kind = StoreInDoubt if committing else StoreUnavailable
                raise kind(f"the store cannot be used: {reason_of(error)}") from None

        try:
            done = asyncio.get_running_loop().run_in_executor(self._threads, transaction)
        except RuntimeError:
            raise StoreUnavailable("the store is closed") from None
        return await done

    async def outside_transactions(self, statement: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, _execute, self._engine, statement)

    def close(self) -> None:
        self._threads.shutdown()
        self._engine.dispose()


class Database:
    """An open database at the newest schema."""

    def __init__(self, reading: _Lane, writing: _Lane, stepping: _Lane, beating: _Lane) -> None:
        self._reading = reading
        self._writing = writing
        self._stepping = stepping
        self._beating = beating

    async def read(
        self, operation: Callable[Concatenate[sa.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """Do what changes nothing."""
        return await self._reading.run(operation, *args, **kw)

    async def write(
        self, operation: Callable[Concatenate[sa.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """Do what changes something, as a whole or not at all."""
        return await self._writing.run(operation, *args, **kw)

    async def step(
        self, operation: Callable[Concatenate[sa.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """As ``write``, but a machine that loses its power may lose what was done last."""
        return await self._stepping.run(operation, *args, **kw)

    async def beat(
        self, operation: Callable[Concatenate[sa.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """As ``step``, but beside everything else: what must be in time does not wait for others."""
        try:
            return await self._beating.run(operation, *args, **kw)
        except asyncio.CancelledError:
            self._beating.cut_off()
            raise

    async def wipe(self) -> None:
        """Leave nothing of what was removed, in the write-ahead log either, where there is one."""
        await self._writing.outside_transactions(_WIPE)

    def close(self) -> None:
        """End all threads, after what they are doing, and all connections. Blocks."""
        for lane in (self._reading, self._writing, self._stepping, self._beating):
            lane.close()


def open_sqlite(path: Path) -> Database:
    """Open the file of a SQLite store and bring it up to date. Blocks."""
    writer = _sqlite_engine(path, 1, "BEGIN IMMEDIATE", _WRITER)
    _bring_up_to_date(writer, f"the database {path}")
    # What an earlier server removed, and was killed before it could be overwritten.
    _execute(writer, _WIPE)
    lax_writer = _sqlite_engine(path, 1, "BEGIN IMMEDIATE", _LAX_WRITER)
    reader = _sqlite_engine(path, _SQLITE_READERS, "BEGIN", _READER)
    one = ThreadPoolExecutor(1, thread_name_prefix="store-write")
    some = ThreadPoolExecutor(_SQLITE_READERS, thread_name_prefix="store-read")
    stepping = _Lane(lax_writer, one)
    return Database(_Lane(reader, some), _Lane(writer, one), stepping, stepping)


def open_memory() -> Database:
    """Make a database in memory, on one connection: another one would have another database. Blocks."""
    engine = _sqlite_engine(":memory:", 1, "BEGIN IMMEDIATE", ())
    _bring_up_to_date(engine, "the database in memory")
    lane = _Lane(engine, ThreadPoolExecutor(1, thread_name_prefix="store"))
    return Database(lane, lane, lane, lane)


def open_postgres(url: str) -> Database:
    """Connect to a PostgreSQL database and bring it up to date. Blocks."""
    try:
        address = sa.make_url(url).set(drivername="postgresql+psycopg")
        engine = _postgres_engine(address, _POSTGRES_CONNECTIONS)
        beater = _postgres_engine(address, 1, connect_args=_IMPATIENT)
    except (exc.ArgumentError, ImportError) as error:
        raise StoreUnavailable(f"the store's URL cannot be used: {error}") from None
    _bring_up_to_date(engine, f"the database {address.database} on {address.host or 'this machine'}")
    event.listen(beater, "begin", _expect_haste)
    lane = _Lane(engine, ThreadPoolExecutor(_POSTGRES_CONNECTIONS, thread_name_prefix="store"))
    beating = _Lane(beater, ThreadPoolExecutor(1, thread_name_prefix="store-beat"))
    event.listen(beater, "connect", beating.note_connection)
    return Database(lane, lane, lane, beating)


def _postgres_engine(address: sa.URL, connections: int, **options: Any) -> sa.Engine:
    return sa.create_engine(
        address, pool_size=connections, max_overflow=0, pool_pre_ping=True, hide_parameters=True, **options
    )


def _expect_haste(connection: sa.Connection) -> None:
    """A beat that takes long is of no use, and one that is lost with the machine's power is not missed."""
    # For the transaction only: a connection may be shared with others by a proxy.
    connection.exec_driver_sql(
        f"SET LOCAL statement_timeout = {_HASTE_MILLISECONDS}; SET LOCAL synchronous_commit = off"
    )


def _sqlite_engine(path: Path | str, connections: int, begin: str, settings: tuple[str, ...]) -> sa.Engine:
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=sa.QueuePool,
        pool_size=connections,
        max_overflow=0,
        hide_parameters=True,
        # Without the driver's own transactions: it would begin them late, and never for reading.
        connect_args={"timeout": BUSY_SECONDS, "isolation_level": None, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        for setting in _SETTINGS + settings:
            cursor.execute(setting)
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _execute(engine: sa.Engine, statement: str) -> None:
    with contextlib.closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.fetchall()
        cursor.close()


def _bring_up_to_date(engine: sa.Engine, where: str) -> None:
    try:
        with engine.begin() as connection:
            bring_up_to_date(connection, where)
    except BaseException as error:
        engine.dispose()
        if isinstance(error, exc.SQLAlchemyError):
            raise StoreUnavailable(f"{where} cannot be used: {reason_of(error)}") from None
        raise


def reason_of(error: exc.SQLAlchemyError) -> str:
    """The database's error message, without the statement and its values, which may be secret."""
    said = str(error.orig if isinstance(error, exc.DBAPIError) else error)
    return said.strip().partition("\n")[0] or type(error).__name__
