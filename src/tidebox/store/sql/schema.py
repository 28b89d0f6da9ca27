"""The tables, one schema for every database.

The names of ``sandbox_runs``, ``sandbox_idempotency``, ``sandbox_usage``, of their first columns and indexes are those
of the interpreter service's specification, so that its queries run. Times are ISO-8601 in UTC, all of one length, so
that their order is the order of time; only idempotency keys have seconds since the epoch.

A run is three rows: the narrow one that lists and counts go through, its whole record, and its work while that may be
needed. What the record says too is in the columns for queries; of a run's phase, start and owner only the columns are
right.
"""

from __future__ import annotations

import sqlalchemy as sa

# Code point order in every database: file names sort as Python sorts them. The dialect's own type would say the same,
# and loading the dialect takes longer than everything else here.
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

metadata = sa.MetaData()


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, TEXT, nullable=nullable)


def _node_id() -> sa.Column[str]:
    """The node that owns something; empty for nobody."""
    return sa.Column("node_id", TEXT, nullable=False, server_default="")


runs = sa.Table(
    "sandbox_runs",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
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
    # What a search looks through, in small letters.
    _text("search"),
    # Its owner, and how many it has had.
    _node_id(),
    sa.Column("node_epoch", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("attempt", sa.Integer, nullable=False, server_default="1"),
    # Without a row id SQLite keeps the primary key in every index: an index on a time then gives pages in their order.
    sqlite_with_rowid=False,
)
sa.Index("idx_runs_started_at", runs.c.started_at)
sa.Index("idx_runs_finished_at", runs.c.finished_at)
sa.Index("idx_runs_phase", runs.c.phase)
sa.Index("idx_runs_runtime", runs.c.runtime)
sa.Index("idx_runs_image_digest", runs.c.image_digest)
sa.Index("idx_runs_base_image", runs.c.base_image)
sa.Index("idx_runs_user_started_at", runs.c.user_id, runs.c.started_at)
sa.Index("idx_runs_user_phase", runs.c.user_id, runs.c.phase)
sa.Index("idx_runs_created_at", runs.c.created_at)
sa.Index("idx_runs_user_created_at", runs.c.user_id, runs.c.created_at)
sa.Index("idx_runs_session", runs.c.session_id)
sa.Index("idx_runs_runtime_phase_started_at", runs.c.runtime, runs.c.phase, runs.c.started_at)
sa.Index("idx_runs_search", runs.c.search)
# All that a list filters by, in the order of a time: SQLite goes through a hundred thousand entries in 20 ms, but
# through as many rows that an index only points at in 300 ms.
_FILTERS = (runs.c.phase, runs.c.runtime, runs.c.user_id, runs.c.base_image, runs.c.image_digest, runs.c.search)
sa.Index("idx_runs_list_started", runs.c.started_at, runs.c.id, runs.c.finished_at, *_FILTERS)
sa.Index("idx_runs_list_finished", runs.c.finished_at, runs.c.id, runs.c.started_at, *_FILTERS)

run_records = sa.Table("sandbox_run_records", metadata, sa.Column("run_id", TEXT, primary_key=True), _text("record"))
run_work = sa.Table(
    "sandbox_run_work",
    metadata,
    sa.Column("run_id", TEXT, primary_key=True),
    sa.Column("work", sa.LargeBinary, nullable=False),
)

idempotency = sa.Table(
    "sandbox_idempotency",
    metadata,
    sa.Column("endpoint", TEXT, primary_key=True),
    sa.Column("user_key", TEXT, primary_key=True),
    sa.Column("key", TEXT, primary_key=True),
    _text("fingerprint"),
    _text("object_id"),
    _text("response_body"),
    sa.Column("created_at", sa.Double, nullable=False),
)
sa.Index("idx_idem_created_at", idempotency.c.created_at)
sa.Index("idx_idem_user_key", idempotency.c.user_key)

usage = sa.Table(
    "sandbox_usage",
    metadata,
    sa.Column("user_id", TEXT, primary_key=True),
    sa.Column("artifact_bytes", sa.BigInteger, nullable=False),
)
sa.Index("idx_usage_artifact_bytes", usage.c.artifact_bytes)

sessions = sa.Table(
    "sandbox_sessions",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    _text("user_id"),
    _text("state"),
    _text("created_at"),
    _text("expires_at"),
    _text("record"),
    # Where its files are.
    _node_id(),
)
sa.Index("idx_sessions_user_created_at", sessions.c.user_id, sessions.c.created_at)
sa.Index("idx_sessions_expires_at", sessions.c.expires_at)

artifacts = sa.Table(
    "sandbox_artifacts",
    metadata,
    sa.Column("run_id", TEXT, primary_key=True),
    sa.Column("path", TEXT, primary_key=True),
    sa.Column("size", sa.BigInteger, nullable=False),
    _text("content_type"),
    sa.Column("is_link", sa.Boolean, nullable=False),
    _text("link_target", nullable=True),
    _text("created_at"),
    _text("expires_at"),
    sqlite_with_rowid=False,
)
sa.Index("idx_artifacts_expires_at", artifacts.c.expires_at)

bindings = sa.Table(
    "sandbox_bindings",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    _text("user_id"),
    _text("scope_type"),
    _text("scope_id"),
    # The scope again while the binding lives, and nothing afterwards: a scope has one binding that lives.
    sa.Column("live_scope", TEXT, unique=True),
    _text("state"),
    _text("created_at"),
    _text("active_at"),
    _text("record"),
    _node_id(),
)
sa.Index("idx_bindings_scope", bindings.c.scope_type, bindings.c.scope_id, bindings.c.created_at)
sa.Index("idx_bindings_user", bindings.c.user_id)

nodes = sa.Table(
    "sandbox_nodes",
    metadata,
    sa.Column("node_id", TEXT, primary_key=True),
    # What only one server at a time can use: who has the same is the same server, started again.
    _text("home"),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    # In seconds since the epoch, by the clock of the database.
    sa.Column("beat_at", sa.Double, nullable=False),
)
