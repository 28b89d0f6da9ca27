"""Everything that can be done in one transaction."""

from __future__ import annotations

from tidebox.store.sql import artifacts as captured
from tidebox.store.sql import bindings, claims, nodes, runs, sessions


class Operations:
    """The operations of a store, each with a connection as its first argument."""

    create_run = staticmethod(runs.create)
    run = staticmethod(runs.find)
    advance_run = staticmethod(runs.advance)
    list_runs = staticmethod(runs.list_runs)
    recover_runs = staticmethod(runs.recover)
    prune_runs = staticmethod(runs.prune)
    summary = staticmethod(runs.summary)
    courses = staticmethod(runs.courses)
    answered = staticmethod(claims.answered)
    list_answered = staticmethod(claims.list_answered)
    prune_claims = staticmethod(claims.prune)
    create_session = staticmethod(sessions.create)
    session = staticmethod(sessions.find)
    list_sessions = staticmethod(sessions.list_sessions)
    extend_session = staticmethod(sessions.extend)
    close_session = staticmethod(sessions.close)
    delete_session = staticmethod(sessions.delete)
    expired_sessions = staticmethod(sessions.expired)
    recover_sessions = staticmethod(sessions.recover)
    add_artifacts = staticmethod(captured.add)
    artifacts = staticmethod(captured.list_artifacts)
    artifact = staticmethod(captured.find)
    delete_artifacts = staticmethod(captured.delete)
    expired_artifacts = staticmethod(captured.expired)
    having_artifacts = staticmethod(captured.having)
    artifact_bytes = staticmethod(captured.held)
    artifact_usage = staticmethod(captured.usages)
    create_binding = staticmethod(bindings.create)
    binding = staticmethod(bindings.find)
    save_binding = staticmethod(bindings.save)
    delete_binding = staticmethod(bindings.delete)
    recover_bindings = staticmethod(bindings.recover)
    prune_bindings = staticmethod(bindings.prune)
    join_node = staticmethod(nodes.join)
    beat = staticmethod(nodes.beat)
    has_node = staticmethod(nodes.exists)
    leave_node = staticmethod(nodes.leave)
    take_over = staticmethod(nodes.take_over)
