"""The file of a SQLite store, looked at before anything of the database layer is loaded.

What keeps a server from using it shows here, within milliseconds, and so before the server says that it is ready.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from tidebox.errors import StoreUnavailable
from tidebox.store.sql.versions import VERSION_TABLE, check_database

BUSY_SECONDS = 10.0


def prepare(path: Path) -> None:
    """Make the file, for its owner only, if there is none; raises ``StoreUnavailable`` where it cannot be used."""
    where = f"the database {path}"
    try:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            revision = _revision(connection) if VERSION_TABLE in tables else None
            # Found out now and not at the first run: whether it can be written.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except OSError as error:
        raise StoreUnavailable(f"{where} cannot be used: {error.strerror}") from None
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{where} cannot be used: {error}") from None
    check_database(tables, revision, where)


def _revision(connection: sqlite3.Connection) -> str | None:
    row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    return str(row[0]) if row is not None else None
