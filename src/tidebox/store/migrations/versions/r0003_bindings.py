"""Bindings of sandboxes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"

_TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, _TEXT, nullable=False)


def upgrade() -> None:
    """Make their table."""
    op.create_table(
        "sandbox_bindings",
        sa.Column("id", _TEXT, primary_key=True),
        _text("user_id"),
        _text("scope_type"),
        _text("scope_id"),
        sa.Column("live_scope", _TEXT, unique=True),
        _text("state"),
        _text("created_at"),
        _text("active_at"),
        _text("record"),
    )
    op.create_index("idx_bindings_scope", "sandbox_bindings", ["scope_type", "scope_id", "created_at"])
    op.create_index("idx_bindings_user", "sandbox_bindings", ["user_id"])
