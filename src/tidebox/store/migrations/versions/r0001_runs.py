"""Runs, idempotency keys and what users hold.

A migration describes the tables as they were: it names no table of the program, which will have changed since.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

_TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, _TEXT, nullable=nullable)


def upgrade() -> None:
    """Make the first tables."""
    op.create_table(
        "sandbox_runs",
        sa.Column("id", _TEXT, primary_key=True),
        _text("user_id"),
        _text("spec_version"),
        _text("runtime"),
        _text("runtime_version", nullable=True),
        _text("base_image"),
        _text("image_digest", nullable=True),
        _text("phase"),
        sa.Column("exit_code", sa.Integer),
        _text("started_at", nullable=True),
        _text("finished_at", nullable=True),
        _text("message", nullable=True),
        _text("policy_hash"),
        _text("session_id", nullable=True),
        _text("created_at"),
        _text("reason_code", nullable=True),
        sa.Column("cpu_time_sec", sa.Double),
        sa.Column("log_bytes", sa.BigInteger, nullable=False),
        sa.Column("artifact_bytes", sa.BigInteger, nullable=False),
        _text("search"),
        sqlite_with_rowid=False,
    )
    filters = ["phase", "runtime", "user_id", "base_image", "image_digest", "search"]
    for name, columns in {
        "idx_runs_started_at": ["started_at"],
        "idx_runs_finished_at": ["finished_at"],
        "idx_runs_phase": ["phase"],
        "idx_runs_runtime": ["runtime"],
        "idx_runs_image_digest": ["image_digest"],
        "idx_runs_base_image": ["base_image"],
        "idx_runs_user_started_at": ["user_id", "started_at"],
        "idx_runs_user_phase": ["user_id", "phase"],
        "idx_runs_created_at": ["created_at"],
        "idx_runs_user_created_at": ["user_id", "created_at"],
        "idx_runs_runtime_phase_started_at": ["runtime", "phase", "started_at"],
        "idx_runs_search": ["search"],
        "idx_runs_list_started": ["started_at", "id", "finished_at", *filters],
        "idx_runs_list_finished": ["finished_at", "id", "started_at", *filters],
    }.items():
        op.create_index(name, "sandbox_runs", columns)
    op.create_table("sandbox_run_records", sa.Column("run_id", _TEXT, primary_key=True), _text("record"))
    op.create_table(
        "sandbox_run_work",
        sa.Column("run_id", _TEXT, primary_key=True),
        sa.Column("work", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "sandbox_idempotency",
        sa.Column("endpoint", _TEXT, primary_key=True),
        sa.Column("user_key", _TEXT, primary_key=True),
        sa.Column("key", _TEXT, primary_key=True),
        _text("fingerprint"),
        _text("object_id"),
        _text("response_body"),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_index("idx_idem_created_at", "sandbox_idempotency", ["created_at"])
    op.create_index("idx_idem_user_key", "sandbox_idempotency", ["user_key"])
    op.create_table(
        "sandbox_usage",
        sa.Column("user_id", _TEXT, primary_key=True),
        sa.Column("artifact_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("idx_usage_artifact_bytes", "sandbox_usage", ["artifact_bytes"])
