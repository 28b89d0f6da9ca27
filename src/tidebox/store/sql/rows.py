"""Model objects as rows and back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidebox.model.artifact import Artifact
from tidebox.model.idempotency import Answered, Claim
from tidebox.model.node import Owner
from tidebox.model.run import Phase, Run
from tidebox.model.run_query import searched
from tidebox.model.session import Session, SessionState
from tidebox.model.timestamps import iso_time

_encode = msgspec.json.Encoder().encode
_decode_run = msgspec.json.Decoder(Run).decode
_decode_session = msgspec.json.Decoder(Session).decode


def stamp(moment: float) -> str:
    """A time as it is kept: ISO-8601, UTC, always of one length."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def stamp_within(moment: float) -> str:
    """The last stamp in the millisecond of a time."""
    return iso_time(moment).replace("Z", "999Z")


def moment(stamp: str) -> float:
    """A time from how it is kept."""
    return datetime.fromisoformat(stamp).timestamp()


def _stamped(moment: float | None) -> str | None:
    return None if moment is None else stamp(moment)


def _without_nul(text: str | None) -> str | None:
    """A text without the one character that PostgreSQL does not take; the record has it as it was."""
    return None if text is None else text.replace("\0", "\ufffd")


def record_of(thing: Run | Session) -> str:
    """A run or session as one text."""
    return _encode(thing).decode()


def changing_columns(run: Run) -> dict[str, Any]:
    """The columns of a run's row that change during its life."""
    return {
        "phase": run.phase.value,
        "exit_code": run.exit_status,
        "started_at": _stamped(run.started_at),
        "finished_at": _stamped(run.finished_at),
        "message": _without_nul(run.message),
        "reason_code": run.reason.value if run.reason is not None else None,
        "cpu_time_sec": run.usage.cpu_seconds if run.usage is not None else None,
        "log_bytes": run.log_bytes,
        "artifact_bytes": run.artifact_bytes,
        "image_digest": run.facts.image_digest,
        "search": _without_nul(searched(run)),
    }


def run_row(run: Run) -> dict[str, Any]:
    """The row of a new run."""
    facts = run.facts
    return {
        "id": run.id,
        "user_id": run.user,
        "spec_version": facts.spec_version,
        "runtime": facts.runtime,
        "runtime_version": facts.runtime_version,
        "base_image": facts.base_image,
        "policy_hash": facts.policy_hash,
        "session_id": facts.session_id,
        "created_at": stamp(run.created_at),
        **owner_columns(run),
        **changing_columns(run),
    }


def owner_columns(run: Run) -> dict[str, Any]:
    """Whose a run is."""
    return {"node_id": run.owner.node_id, "node_epoch": run.owner.epoch, "attempt": run.attempt}


def run_of(record: str, phase: str, started_at: str | None, node_id: str, node_epoch: int, attempt: int) -> Run:
    """A run from its record, and from those columns that may be newer."""
    run = _decode_run(record)
    if run.phase.terminal:
        return run
    return replace(
        run,
        phase=Phase(phase),
        started_at=None if started_at is None else moment(started_at),
        owner=Owner(node_id, node_epoch),
        attempt=attempt,
    )


def session_row(session: Session) -> dict[str, Any]:
    """The row of a new session."""
    return {
        "id": session.id,
        "user_id": session.user,
        "state": session.state.value,
        "created_at": stamp(session.created_at),
        "expires_at": stamp(session.expires_at),
        "node_id": session.node_id,
        "record": record_of(session),
    }


def session_of(record: str, state: str, expires_at: str, node_id: str) -> Session:
    """A session from its record, and from those columns that may be newer."""
    session = _decode_session(record)
    return replace(session, state=SessionState(state), expires_at=moment(expires_at), node_id=node_id)


def answered_row(answered: Answered) -> dict[str, Any]:
    """The row of an answered claim."""
    endpoint, user, key = answered.claim.scope
    return {
        "endpoint": endpoint,
        "user_key": user,
        "key": key,
        "fingerprint": answered.claim.fingerprint,
        "object_id": answered.object_id,
        "response_body": answered.response.decode(),
        "created_at": answered.created_at,
    }


def answered_of(row: Any) -> Answered:
    """An answered claim from its row."""
    return Answered(
        claim=Claim(row.endpoint, row.user_key, row.key, row.fingerprint),
        object_id=row.object_id,
        response=row.response_body.encode(),
        created_at=row.created_at,
    )


def artifact_row(artifact: Artifact) -> dict[str, Any]:
    """The row of an artifact."""
    return {
        "run_id": artifact.run_id,
        "path": artifact.path,
        "size": artifact.size,
        "content_type": artifact.content_type,
        "is_link": artifact.is_link,
        "link_target": artifact.link_target,
        "created_at": stamp(artifact.created_at),
        "expires_at": stamp(artifact.expires_at),
    }


def artifact_of(row: Any) -> Artifact:
    """An artifact from its row."""
    return Artifact(
        run_id=row.run_id,
        path=row.path,
        size=row.size,
        content_type=row.content_type,
        created_at=moment(row.created_at),
        expires_at=moment(row.expires_at),
        is_link=row.is_link,
        link_target=row.link_target,
    )
