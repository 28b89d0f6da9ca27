"""Sessions, and what is known of artifacts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"

_TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, _TEXT, nullable=nullable)


def upgrade() -> None:
    """Make their tables."""
    op.create_table(
        "sandbox_sessions",
        sa.Column("id", _TEXT, primary_key=True),
        _text("user_id"),
        _text("state"),
        _text("created_at"),
        _text("expires_at"),
        _text("record"),
    )
    op.create_index("idx_sessions_user_created_at", "sandbox_sessions", ["user_id", "created_at"])
    op.create_index("idx_sessions_expires_at", "sandbox_sessions", ["expires_at"])
    op.create_table(
        "sandbox_artifacts",
        sa.Column("run_id", _TEXT, primary_key=True),
        sa.Column("path", _TEXT, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        _text("content_type"),
        sa.Column("is_link", sa.Boolean, nullable=False),
        _text("link_target", nullable=True),
        _text("created_at"),
        _text("expires_at"),
        sqlite_with_rowid=False,
    )
    op.create_index("idx_artifacts_expires_at", "sandbox_artifacts", ["expires_at"])
    op.create_index("idx_runs_session", "sandbox_runs", ["session_id"])
