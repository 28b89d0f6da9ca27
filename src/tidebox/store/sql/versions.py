"""The versions of the schema, known without loading the database layer."""

from __future__ import annotations

from collections.abc import Iterable

from tidebox.errors import StoreUnavailable

REVISIONS = ("0001", "0002", "0003", "0004", "0005")
"""From the first to the one this program works with; each but the last has a migration to the next."""
HEAD = REVISIONS[-1]


VERSION_TABLE = "alembic_version"
_OURS = "sandbox_"


def check_database(tables: Iterable[str], revision: str | None, where: str) -> None:
    """Refuse a database that is somebody else's, or whose schema this program does not know."""
    if revision is None and any(name.startswith(_OURS) for name in tables):
        raise StoreUnavailable(f"{where} has tables of another program: give Tidebox one of its own")
    if revision is not None and revision not in REVISIONS:
        raise StoreUnavailable(
            f"{where} was written by a newer Tidebox (its schema is {revision}, this one knows {HEAD}): "
            "use that version, or another database"
        )
