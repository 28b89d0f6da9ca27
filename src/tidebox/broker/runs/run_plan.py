"""The plan of a journaled run, serialized in the store, so that it outlives the server that accepted it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from tidebox.broker.runs.stdin import StdinRules
from tidebox.errors import InvalidRequest
from tidebox.model.box import BoxSpec
from tidebox.model.execution_request import CANCEL_GRACE_SECONDS, STARTUP_SECONDS, ExecutionRequest
from tidebox.model.git_source import GitSource
from tidebox.model.launch import Launch
from tidebox.model.limits import MIB, RANGES
from tidebox.model.requested_egress import BoxEgress


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The program, box and files of a run, and the rules that are not the runtime's."""

    launch: Launch
    spec: BoxSpec
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes | None = None
    interactive: StdinRules | None = None
    """Where given, the client sends the input while the program runs."""
    startup_timeout: float = STARTUP_SECONDS
    log_cap: int = 10 * MIB
    """Output beyond this is dropped from the log; the program goes on."""
    cancel_grace: float = CANCEL_GRACE_SECONDS
    """How long a cancelled program may go on after it was told to end."""
    capture_patterns: tuple[str, ...] = ()
    """Which files of the workspace are kept as artifacts."""
    git: GitSource | None = None
    """Where given, its files are put into the workspace before those of ``files``."""
    egress: BoxEgress | None = None
    """Beside ``spec`` until it is run: by then the server's list may be another one."""

    def order(self, stdin: AsyncIterator[bytes] | None, user: str = "") -> ExecutionRequest:
        """Return the order for the runtime. Output is cut where it is logged: it is no reason to stop the program."""
        unlimited = replace(self.spec.limits, output=int(RANGES["output"].high))
        return ExecutionRequest(
            launch=self.launch,
            spec=replace(self.spec, limits=unlimited, packages_for=user, egress=self.egress),
            files=self.files,
            stdin=self.stdin if stdin is None else stdin,
            cancel_grace=self.cancel_grace,
            startup_timeout=self.startup_timeout,
        )


def encode_plan(plan: RunPlan) -> bytes:
    """Encode a plan for the store."""
    try:
        return msgspec.msgpack.encode(plan)
    except UnicodeEncodeError as error:
        raise InvalidRequest("text that cannot be encoded", field="command") from error


def decode_plan(data: bytes) -> RunPlan:
    """Decode the bytes of ``encode_plan``."""
    return msgspec.msgpack.decode(data, type=RunPlan)
