"""A journaled run: its phases, how it may pass from one to the next, and why it ended.

Two rules. Every transition is in ``TRANSITIONS``, and nobody changes a phase but by a store's compare-and-set along
it. A run that has ended never changes again: there is no way out of a terminal phase.

A run belongs to one node at a time. Its owner and attempt are its fence: a store changes it only for a worker that has
them right, so a worker whose run was taken over cannot change it any more.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tidebox.errors import (
    ExecFailed,
    GuaranteeMissing,
    InvalidImage,
    InvalidPackage,
    InvalidRequest,
    PackageUnresolvable,
    ProvisionFailed,
    QueueExpired,
    RuntimeUnavailable,
    ShuttingDown,
    StartupTimeout,
    TideboxError,
    UnknownImage,
)
from tidebox.model.node import NOBODY, Owner
from tidebox.model.principal import Caller
from tidebox.model.result import Outcome, Usage, exit_status


class Phase(enum.Enum):
    """Where a run is in its life."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    KILLED = "killed"

    @property
    def terminal(self) -> bool:
        """Whether the run is over."""
        return not TRANSITIONS[self]


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        # Given a slot; or cancelled, or expired, while it waited for one.
        Phase.QUEUED: frozenset({Phase.STARTING, Phase.KILLED, Phase.FAILED}),
        # Its program began; or never did. Back to the queue goes what a server had not begun when it died.
        Phase.STARTING: frozenset({Phase.RUNNING, Phase.FAILED, Phase.TIMED_OUT, Phase.KILLED, Phase.QUEUED}),
        Phase.RUNNING: frozenset({Phase.COMPLETED, Phase.FAILED, Phase.TIMED_OUT, Phase.KILLED}),
        Phase.COMPLETED: frozenset(),
        Phase.FAILED: frozenset(),
        Phase.TIMED_OUT: frozenset(),
        Phase.KILLED: frozenset(),
    }
)
UNFINISHED = frozenset(phase for phase, following in TRANSITIONS.items() if following)
STARTABLE = frozenset({Phase.QUEUED, Phase.STARTING})
"""Phases of a run whose program may still have to be started, by this server or the next."""


def sources(target: Phase) -> frozenset[Phase]:
    """The phases from which a run may pass to ``target``."""
    return frozenset(phase for phase, following in TRANSITIONS.items() if target in following)


class Reason(enum.Enum):
    """Why a run ended the way it did."""

    EXIT_ZERO = "exit_code_0"
    EXIT_NONZERO = "exit_code_nonzero"
    SIGNALED = "killed_by_signal"
    STARTUP_TIMEOUT = "startup_timeout"
    EXECUTION_TIMEOUT = "execution_timeout"
    CANCELED_BY_USER = "canceled_by_user"
    SESSION_EXPIRED = "session_expired"
    SESSION_DELETED = "session_deleted"
    OOM_KILLED = "oom_killed"
    PIDS_LIMIT_EXCEEDED = "pids_limit_exceeded"
    LOG_CAP_EXCEEDED = "log_cap_exceeded"
    QUEUE_TTL_EXPIRED = "queue_ttl_expired"
    IMAGE_PULL_FAILED = "image_pull_failed"
    PROVISION_FAILED = "provision_failed"
    EXEC_FAILED = "exec_failed"
    COMPILE_FAILED = "compile_failed"
    COMPILE_TIMEOUT = "compile_timeout"
    POLICY_DENIED = "policy_denied"
    RUNTIME_UNAVAILABLE = "runtime_unavailable"
    RUNTIME_ERROR = "runtime_error"
    SERVER_SHUTDOWN = "server_shutdown"
    SERVER_RESTARTED = "server_restarted"
    NODE_LOST = "node_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The terminal state of a run."""

    phase: Phase
    reason: Reason
    message: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage | None = None


NODE_LOST = Conclusion(
    phase=Phase.FAILED, reason=Reason.NODE_LOST, message="the server that had the run was lost before its end"
)


_BY_OUTCOME: Mapping[Outcome, tuple[Phase, Reason]] = {
    Outcome.SIGNALED: (Phase.FAILED, Reason.SIGNALED),
    Outcome.TIMEOUT: (Phase.TIMED_OUT, Reason.EXECUTION_TIMEOUT),
    Outcome.OOM: (Phase.FAILED, Reason.OOM_KILLED),
    Outcome.OUTPUT_LIMIT: (Phase.FAILED, Reason.LOG_CAP_EXCEEDED),
    Outcome.CANCELLED: (Phase.KILLED, Reason.CANCELED_BY_USER),
    Outcome.COMPILE_FAILED: (Phase.FAILED, Reason.COMPILE_FAILED),
    Outcome.COMPILE_TIMEOUT: (Phase.TIMED_OUT, Reason.COMPILE_TIMEOUT),
}

# The first class that fits counts, so those below come before those above them in the tree.
_BY_ERROR: tuple[tuple[type[TideboxError], Reason], ...] = (
    (QueueExpired, Reason.QUEUE_TTL_EXPIRED),
    (ShuttingDown, Reason.SERVER_SHUTDOWN),
    (UnknownImage, Reason.IMAGE_PULL_FAILED),
    (InvalidImage, Reason.IMAGE_PULL_FAILED),
    (GuaranteeMissing, Reason.POLICY_DENIED),
    (PackageUnresolvable, Reason.PROVISION_FAILED),
    (InvalidPackage, Reason.PROVISION_FAILED),
    (InvalidRequest, Reason.POLICY_DENIED),
    (RuntimeUnavailable, Reason.RUNTIME_UNAVAILABLE),
    (StartupTimeout, Reason.STARTUP_TIMEOUT),
    (ProvisionFailed, Reason.PROVISION_FAILED),
    (ExecFailed, Reason.EXEC_FAILED),
)

_PHASES = {Reason.SERVER_SHUTDOWN: Phase.KILLED, Reason.STARTUP_TIMEOUT: Phase.TIMED_OUT}


def conclusion_of(
    outcome: Outcome, exit_code: int | None, signal: int | None, usage: Usage, *, pids_limit: int | None = None
) -> Conclusion:
    """The terminal state of a run whose program ended, by itself or because it was stopped.

    A program that failed after it had as many processes as it may have failed for want of more.
    """
    if outcome is Outcome.EXITED:
        phase, reason = (Phase.COMPLETED, Reason.EXIT_ZERO) if exit_code == 0 else (Phase.FAILED, Reason.EXIT_NONZERO)
    else:
        phase, reason = _BY_OUTCOME[outcome]
    crowded = pids_limit is not None and usage.pids_peak is not None and usage.pids_peak >= pids_limit
    if crowded and reason in (Reason.EXIT_NONZERO, Reason.SIGNALED):
        reason = Reason.PIDS_LIMIT_EXCEEDED
    message = reason.value if reason is Reason.CANCELED_BY_USER else None
    return Conclusion(phase=phase, reason=reason, message=message, exit_code=exit_code, signal=signal, usage=usage)


def conclusion_of_failure(error: TideboxError) -> Conclusion:
    """The terminal state of a run that could not be started, or whose box was lost."""
    reason = next((reason for kind, reason in _BY_ERROR if isinstance(error, kind)), Reason.RUNTIME_ERROR)
    phase = _PHASES.get(reason, Phase.FAILED)
    return Conclusion(phase=phase, reason=reason, message=error.message)


_SEQS_OF_AN_ATTEMPT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The request, without the program itself: enough to say later under which rules it ran."""

    runtime: str
    base_image: str
    spec_version: str
    policy_hash: str
    runtime_version: str | None = None
    image_digest: str | None = None
    session_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    network_policy: str = "deny_all"
    trust_level: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run: its caller, its request, its phase and its conclusion. Times are seconds since the epoch."""

    id: str
    caller: Caller
    facts: RunFacts
    created_at: float
    phase: Phase = Phase.QUEUED
    started_at: float | None = None
    """When it was given a slot."""
    finished_at: float | None = None
    reason: Reason | None = None
    message: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage | None = None
    log_bytes: int = 0
    log_truncated: bool = False
    artifact_bytes: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Files that were not kept, by the reason."""
    owner: Owner = NOBODY
    """The node that works on it, or did so last."""
    attempt: int = 1
    """Counts its owners: raised when another node takes it over."""

    @property
    def user(self) -> str:
        """Whose it is."""
        return self.caller.principal.user

    @property
    def exit_status(self) -> int | None:
        """Its ``exit_code`` as the interpreter service shows it: 128+n where signal n killed the program."""
        return exit_status(self.exit_code, self.signal)

    @property
    def first_seq(self) -> int:
        """The number of the first entry in the log of its attempt.

        The log of an attempt is on the disk of its node. A run that is taken over has only waited; the numbers of its
        next log begin after all that can have been used meanwhile, so that nobody who goes on by number misses any.
        """
        return 1 + _SEQS_OF_AN_ATTEMPT * (self.attempt - 1)

    @property
    def movable(self) -> bool:
        """Whether another node can do it: it has not begun, and needs no files that its owner alone has."""
        return self.phase is Phase.QUEUED and self.facts.session_id is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One step of a run: where to, when, and at the end how."""

    to: Phase
    at: float
    conclusion: Conclusion | None = None
    log_bytes: int = 0
    log_truncated: bool = False
    artifact_bytes: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    image_digest: str | None = None
    """Of what it ran in, for a run of which that was not known before."""

    def __post_init__(self) -> None:
        concluded = self.conclusion.phase if self.conclusion is not None else None
        if concluded is not (self.to if self.to.terminal else None):
            raise ValueError(f"a run cannot pass to {self.to} with the conclusion {concluded}")


def ended(
    conclusion: Conclusion,
    at: float,
    *,
    log_bytes: int = 0,
    log_truncated: bool = False,
    artifact_bytes: int = 0,
    left_out: Mapping[str, int] | None = None,
    image_digest: str | None = None,
) -> Transition:
    """The last step of a run."""
    return Transition(
        to=conclusion.phase,
        at=at,
        conclusion=conclusion,
        log_bytes=log_bytes,
        log_truncated=log_truncated,
        artifact_bytes=artifact_bytes,
        left_out=left_out or {},
        image_digest=image_digest,
    )


def taken_over(run: Run, by: Owner) -> Run:
    """The run in the hands of another node."""
    return replace(run, owner=by, attempt=run.attempt + 1)


def advanced(run: Run, step: Transition) -> Run | None:
    """The run after a step, or None where the run, as it is, cannot take it."""
    if step.to not in TRANSITIONS[run.phase]:
        return None
    if step.to is Phase.QUEUED:
        return replace(run, phase=step.to, started_at=None)
    if step.to is Phase.STARTING:
        return replace(run, phase=step.to, started_at=step.at)
    if step.conclusion is None:
        return replace(run, phase=step.to)
    facts = run.facts
    if facts.image_digest is None and step.image_digest is not None:
        facts = replace(facts, image_digest=step.image_digest)
    return replace(
        run,
        facts=facts,
        phase=step.to,
        finished_at=step.at,
        reason=step.conclusion.reason,
        message=step.conclusion.message,
        exit_code=step.conclusion.exit_code,
        signal=step.conclusion.signal,
        usage=step.conclusion.usage,
        log_bytes=step.log_bytes,
        log_truncated=step.log_truncated,
        artifact_bytes=step.artifact_bytes,
        left_out=step.left_out,
    )
