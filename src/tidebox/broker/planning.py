"""From what a request asks for to what is run: terms, program, files."""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidebox.broker.stdin import StdinRules
from tidebox.broker.work import Work
from tidebox.errors import InvalidRequest, PayloadTooLarge, UnknownImage
from tidebox.files.names import refuse, split_name
from tidebox.model.box import BoxSpec
from tidebox.model.launch import WORKSPACE, plan_command
from tidebox.model.limits import MIB
from tidebox.model.policy import Policy, Request, Terms, policy_hash, terms_of
from tidebox.model.run import RunFacts
from tidebox.model.runtimes import Runtimes
from tidebox.model.session import Session
from tidebox.model.source import GitSource
from tidebox.model.words import check_words

MAX_INLINE_BYTES = MIB
_MAX_INLINE_DEPTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """What a request for a run asks for, parsed but not yet held against the policy."""

    spec_version: str
    command: Sequence[str]
    asked: Request
    runtime: str | None = None
    base_image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    capture_patterns: tuple[str, ...] = ()
    git: GitSource | None = None
    interactive: StdinRules | None = None


class Planner:
    """Knows the policy and the runtimes."""

    def __init__(self, policy: Policy, runtimes: Runtimes) -> None:
        self.policy = policy
        self.hash = policy_hash(policy)
        self._runtimes = runtimes

    def plan(self, order: RunOrder, session: Session | None) -> tuple[RunFacts, Work]:
        """What is remembered of a run, and what is done for it."""
        if session is not None and order.runtime not in (None, session.runtime):
            raise InvalidRequest(f"the session's runtime is {session.runtime}", field="runtime")
        wanted = session.runtime if session is not None else order.runtime or self.policy.default_runtime
        runtime = self._runtimes.named(wanted)
        terms = terms_of(self.policy, order.asked, asked_by(session) if session is not None else None)
        base_image = order.base_image if session is None else session.base_image
        assert base_image is not None
        image, digest = self._resolve(runtime.name, base_image)
        env = {**session.env, **order.env} if session is not None else dict(order.env)
        check_words(order.command, env)
        labels = {**session.labels, **order.labels} if session is not None else dict(order.labels)
        facts = RunFacts(
            runtime=runtime.name,
            runtime_version=runtime.version,
            base_image=base_image,
            image_digest=digest,
            spec_version=order.spec_version,
            policy_hash=self.hash,
            session_id=session.id if session is not None else None,
            labels=labels,
            limits=terms.shown(),
            network_policy=terms.network_policy,
            trust_level=terms.trust_level,
        )
        work = Work(
            launch=plan_command(order.command, env=env),
            spec=self._spec(runtime.name, image, terms),
            files=order.files,
            interactive=order.interactive,
            startup_timeout=terms.startup_timeout_sec,
            log_cap=self.policy.max_log_bytes,
            cancel_grace=self.policy.cancel_grace_seconds,
            capture_patterns=order.capture_patterns,
            git=order.git,
        )
        return facts, work

    def _spec(self, runtime: str, image: str, terms: Terms) -> BoxSpec:
        return BoxSpec(
            runtime=runtime,
            image=image,
            limits=terms.limits(self.policy),
            executable=not self.policy.workspace_noexec,
        )

    def _resolve(self, runtime: str, base_image: str) -> tuple[str, str | None]:
        """The image's name as the runtime knows it, and its digest; a run of an unknown one fails when it starts."""
        try:
            image = self._runtimes.resolve(runtime, base_image)
        except UnknownImage:
            return base_image, None
        return image.name, image.digest


def asked_by(session: Session) -> Request:
    """What a session's runs ask for where they do not say."""
    kept = session.policy
    return Request(
        cpu=kept.get("cpu"),
        memory_mb=kept.get("memory_mb"),
        pids=kept.get("pids"),
        timeout_sec=kept.get("timeout_sec"),
        startup_timeout_sec=kept.get("startup_timeout_sec"),
        network_policy=kept.get("network_policy"),
        trust_level=kept.get("trust_level"),
    )


def inline_files(given: Iterable[tuple[str, str]]) -> dict[str, bytes]:
    """The files of a request: paths in the box, and what is in them."""
    files: dict[str, bytes] = {}
    total = 0
    for path, encoded in given:
        parts = split_name(path, _MAX_INLINE_DEPTH)
        if not parts or path.endswith("/"):
            raise refuse(path, "not the name of a file")
        # Four characters are three bytes: what is too long need not be decoded.
        total += len(encoded) * 3 // 4
        if total > MAX_INLINE_BYTES + 2:
            raise _too_large()
        try:
            content = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest("content_b64 is not base64", field="files", path=path) from None
        target = posixpath.join(WORKSPACE, *parts)
        if target in files:
            raise refuse(path, "the same file twice")
        files[target] = content
    if sum(map(len, files.values())) > MAX_INLINE_BYTES:
        raise _too_large()
    for target in files:
        parent = posixpath.dirname(target)
        while parent != WORKSPACE:
            if parent in files:
                raise refuse(posixpath.relpath(target, WORKSPACE), "below another file")
            parent = posixpath.dirname(parent)
    return files


def _too_large() -> PayloadTooLarge:
    return PayloadTooLarge(
        f"inline files may have {MAX_INLINE_BYTES} bytes in all; upload more to a session", limit=MAX_INLINE_BYTES
    )
