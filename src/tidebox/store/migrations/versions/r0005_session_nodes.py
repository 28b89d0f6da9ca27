"""Sessions have an owner: the node that has their files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"

_TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Add owners to sessions. Those there are have none: the next server that starts takes them."""
    op.add_column("sandbox_sessions", sa.Column("node_id", _TEXT, nullable=False, server_default=""))
