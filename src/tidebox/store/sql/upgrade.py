"""A database brought to the schema of this program."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from tidebox.store.sql.schema import metadata
from tidebox.store.sql.versions import HEAD, VERSION_TABLE, check_database

# Of several servers that start at once on one database, one does it. The number means nothing.
_LOCK = sa.text("SELECT pg_advisory_xact_lock(7215303021)")

_version = sa.Table(
    VERSION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), primary_key=True),
)


def bring_up_to_date(connection: sa.Connection, where: str) -> None:
    """Make the tables, or change older ones; raises ``StoreUnavailable`` for what is newer or somebody else's."""
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCK)
    tables = set(sa.inspect(connection).get_table_names())
    found = connection.scalar(sa.select(_version.c.version_num)) if _version.name in tables else None
    check_database(tables, found, where)
    if found is None:
        # The migrations would make the same, after loading all that runs them.
        metadata.create_all(connection)
        _version.create(connection, checkfirst=True)
        connection.execute(sa.insert(_version), {"version_num": HEAD})
    elif found != HEAD:
        migrate(connection, HEAD)


def migrate(connection: sa.Connection, revision: str) -> None:
    """Run the migrations up to a revision, inside the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    # The options of alembic know the percent sign as the beginning of a variable.
    scripts = str(Path(__file__).parent.parent / "migrations").replace("%", "%%")
    config.set_main_option("script_location", scripts)
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
