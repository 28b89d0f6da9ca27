"""Request bodies and queries of the service. No I/O."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal, TypedDict

from tidebox.errors import InvalidRequest
from tidebox.model.git_source import GitSource
from tidebox.model.idempotency import MAX_KEY_LENGTH
from tidebox.model.images import HOST
from tidebox.model.limits import MIB
from tidebox.model.packages import packages_of
from tidebox.model.requested_egress import requested_egress_of
from tidebox.model.run import Phase

# Of requests, the newer one of those that need it.
_SPEC_VERSION, _NEWER_SPEC_VERSION = "1.0", "1.1"

Trust = Literal["trusted", "standard", "untrusted"]
Network = Literal["deny_all", "allowlist"]
Sort = Literal[
    "created_at:asc", "created_at:desc", "started_at:asc", "started_at:desc", "finished_at:asc", "finished_at:desc"
]


class TermOptions(TypedDict, total=False):
    """Options of a run, and of a session for the runs in it. Sizes are bytes, times seconds."""

    base_image: str | None
    runtime: str | None
    env: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    timeout: float | None
    """How long the program may run."""
    startup_timeout: float | None
    """How long it may take until the program runs."""
    cpus: float | None
    memory: int | None
    pids: int | None
    network_policy: Network | None
    trust_level: Trust | None
    packages: Sequence[str] | Mapping[str, Sequence[str]] | None
    """Python packages, or packages by language, put on top of the image."""
    egress: Sequence[str] | Mapping[str, Any] | None
    """The egress allow-list: hosts, or ``{"hosts": ["example.com"], "secrets": ["KEY"]}`` and what else a request
    may say; ``network_policy`` is then ``allowlist``."""


class SessionOptions(TermOptions, total=False):
    """Options of a session."""

    ttl: float | None
    """How long it lives; at most what the policy allows."""


class RunCommandOptions(TermOptions, total=False):
    """Options of a run. Without ``session_id`` it has a fresh workspace."""

    session_id: str | None
    files: Mapping[str, bytes] | None
    """Small files that are put into the workspace before: path -> content."""
    workspace: int | None
    """Bytes of its workspace, if that is to be smaller than the server's own; not in a session."""
    git: GitSource | None
    """A repository that the server puts into the workspace before."""
    artifacts: Sequence[str]
    """Patterns of the files to keep."""
    language: str | None
    """Of the file that the first word of the command names; the others are its arguments."""


class StartRunOptions(RunCommandOptions, total=False):
    """Options of a run that is followed by its log."""

    interactive: bool
    """Whether input may be sent over the log."""
    stdin_max_bytes: int | None
    stdin_max_frame_bytes: int | None
    stdin_bps: int | None
    stdin_idle_timeout: float | None


class RunFilter(TypedDict, total=False):
    """Filters on everybody's runs; times include their ends."""

    user_id: str | None
    session_id: str | None
    phase: Phase | None
    runtime: str | None
    base_image: str | None
    image_digest: str | None
    node_id: str | None
    q: str | None
    """Found in the image's name or the message."""
    started_at_from: datetime | None
    started_at_to: datetime | None
    finished_at_from: datetime | None
    finished_at_to: datetime | None
    sort: Sort | None


def make_session(*, ttl: float | None = None, **terms: Any) -> dict[str, Any]:
    """The request for a session."""
    return {"spec_version": _version(terms), **_terms(**terms), **_said(ttl_sec=ttl)}


def make_run(
    command: Sequence[str],
    *,
    session_id: str | None = None,
    base_image: str | None = None,
    files: Mapping[str, bytes] | None = None,
    git: GitSource | None = None,
    artifacts: Sequence[str] = (),
    interactive: bool = False,
    stdin_max_bytes: int | None = None,
    stdin_max_frame_bytes: int | None = None,
    stdin_bps: int | None = None,
    stdin_idle_timeout: float | None = None,
    workspace: int | None = None,
    language: str | None = None,
    **terms: Any,
) -> dict[str, Any]:
    """The request for a run."""
    if isinstance(command, str):
        raise InvalidRequest('command: give a list of words; for a shell, ["sh", "-c", "..."]', field="command")
    if isinstance(artifacts, str):
        raise InvalidRequest("artifacts: give a list of patterns", field="artifacts")
    if session_id is None and base_image is None:
        base_image = HOST
    return {
        "spec_version": _NEWER_SPEC_VERSION if interactive or language is not None else _version(terms),
        "command": list(command),
        **_terms(base_image=base_image, workspace=workspace, **terms),
        **_said(
            session_id=session_id,
            language=language,
            files=None if files is None else [inline_file(path, content) for path, content in files.items()],
            git=None if git is None else git_source(git),
            capture_patterns=list(artifacts) or None,
            interactive=interactive or None,
            stdin_max_bytes=stdin_max_bytes,
            stdin_max_frame_bytes=stdin_max_frame_bytes,
            stdin_bps=stdin_bps,
            stdin_idle_timeout_sec=stdin_idle_timeout,
        ),
    }


def _version(terms: Mapping[str, Any]) -> str:
    newer = terms.get("packages") or terms.get("egress") is not None
    return _NEWER_SPEC_VERSION if newer else _SPEC_VERSION


def _terms(
    *,
    base_image: str | None = None,
    runtime: str | None = None,
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    timeout: float | None = None,
    startup_timeout: float | None = None,
    cpus: float | None = None,
    memory: int | None = None,
    pids: int | None = None,
    workspace: int | None = None,
    network_policy: Network | None = None,
    trust_level: Trust | None = None,
    packages: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    egress: Sequence[str] | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    resources = _said(cpu=cpus, memory_mb=_mebibytes(memory), pids=pids, workspace_mb=_mebibytes(workspace))
    return _said(
        base_image=base_image,
        runtime=runtime,
        env=None if env is None else dict(env),
        labels=None if labels is None else dict(labels),
        timeout_sec=timeout,
        startup_timeout_sec=startup_timeout,
        resources=resources or None,
        network_policy=network_policy or ("allowlist" if egress is not None else None),
        egress=None if egress is None else requested_egress_of(egress).shown(),
        trust_level=trust_level,
        packages=packages_of(packages).shown() if packages else None,
    )


def _mebibytes(size: int | None) -> int | None:
    return None if size is None else math.ceil(size / MIB)


def inline_file(path: str, content: bytes) -> dict[str, str]:
    """A small file within a request."""
    if not isinstance(content, bytes | bytearray | memoryview):
        raise InvalidRequest("files: give the content as bytes", field="files")
    return {"path": path, "content_b64": base64.b64encode(content).decode("ascii")}


def git_source(source: GitSource) -> dict[str, Any]:
    """A repository within a request."""
    return _said(**asdict(source))


def make_query(**given: Any) -> dict[str, str | list[str]]:
    """The query of a request, of what was given."""
    return {name: _query_value(value) for name, value in given.items() if value is not None and value != ()}


def _query_value(value: Any) -> str | list[str]:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Phase):
        return value.value
    if isinstance(value, list | tuple):
        return list(map(str, value))
    return str(value)


def check_key(key: str) -> str:
    """A key that fits into the header."""
    if not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable() and key.strip() == key):
        raise InvalidRequest(
            f"idempotency_key: give 1 to {MAX_KEY_LENGTH} printable ASCII characters", field="idempotency_key"
        )
    return key


def _said(**given: Any) -> dict[str, Any]:
    for name, value in given.items():
        # JSON has no such numbers: they would be sent as if nothing had been said, and a limit would be none.
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"{name}: give a finite number", field=name)
    return {name: value for name, value in given.items() if value is not None}
