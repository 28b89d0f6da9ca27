"""Nodes: servers that share the database, and who of them owns a run or a binding."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"

_TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Make their table. What there is has no owner: the next server that starts takes it."""
    op.create_table(
        "sandbox_nodes",
        sa.Column("node_id", _TEXT, primary_key=True),
        sa.Column("home", _TEXT, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("beat_at", sa.Double, nullable=False),
    )
    op.add_column("sandbox_runs", sa.Column("node_id", _TEXT, nullable=False, server_default=""))
    op.add_column("sandbox_runs", sa.Column("node_epoch", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("sandbox_runs", sa.Column("attempt", sa.Integer, nullable=False, server_default="1"))
    op.add_column("sandbox_bindings", sa.Column("node_id", _TEXT, nullable=False, server_default=""))
