"""Planning: from a request to the plan of a run: policy, limits, program, files, egress."""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidebox.broker.runs.run_plan import RunPlan
from tidebox.broker.runs.stdin import StdinRules
from tidebox.errors import InvalidRequest, PayloadTooLarge, PolicyUnsupported, UnknownImage
from tidebox.model.box import BoxSpec
from tidebox.model.command_size import check_command_size
from tidebox.model.egress import Allowlist, allowlist_of
from tidebox.model.git_source import GitSource
from tidebox.model.ids import new_id
from tidebox.model.images import HOST
from tidebox.model.languages import BUILT_IN, Languages
from tidebox.model.launch import WORKSPACE, Launch, plan_command, plan_file
from tidebox.model.limits import MIB
from tidebox.model.packages import NO_PACKAGES, Packages, make_packages
from tidebox.model.policy import (
    ALLOWLIST,
    DENY_ALL,
    Policy,
    ResourceRequest,
    RunTerms,
    boundary_for,
    policy_hash,
    terms_of,
)
from tidebox.model.requested_egress import BoxEgress, EgressRules, RequestedEgress, read_requested_egress
from tidebox.model.run import RunFacts
from tidebox.model.runtimes import RuntimeCatalog, RuntimeInfo
from tidebox.model.session import Session
from tidebox.untrusted_files.file_names import refuse, split_name

MAX_INLINE_BYTES = MIB
_MAX_INLINE_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Requester:
    """The user who requests a run."""

    name: str
    owner: bool
    """Whether they hold the server's own key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRun:
    """A request for a run, parsed but not yet checked against the policy."""

    spec_version: str
    command: Sequence[str]
    asked: ResourceRequest
    runtime: str | None = None
    base_image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    capture_patterns: tuple[str, ...] = ()
    git: GitSource | None = None
    interactive: StdinRules | None = None
    packages: Packages = NO_PACKAGES
    egress: RequestedEgress | None = None
    language: str = ""
    """Where given, the command is a file of the workspace in that language, and the program's arguments."""


class Planner:
    """Knows the policy, the runtimes and what programs may reach."""

    def __init__(
        self, policy: Policy, runtimes: RuntimeCatalog, egress: EgressRules, languages: Languages = BUILT_IN
    ) -> None:
        self.policy = policy
        self.egress = egress
        self.hash = policy_hash(policy)
        self._runtimes = runtimes
        self.languages = languages

    def plan(self, order: RequestedRun, session: Session | None, user: Requester) -> tuple[RunFacts, RunPlan]:
        """Return the facts to record of a run, and its plan."""
        if session is not None and order.runtime not in (None, session.runtime):
            raise InvalidRequest(f"the session's runtime is {session.runtime}", field="runtime")
        packages = order.packages if session is None else packages_of_session(session) | order.packages
        asked = patient(order.asked, order.packages, self.policy)
        terms = terms_of(self.policy, asked, asked_by(session) if session is not None else None)
        wanted = session.runtime if session is not None else order.runtime
        boundary = boundary_for(self.policy, terms.trust_level)
        runtime = self._runtimes.choose(wanted, self.policy.default_runtime, boundary)
        require_layers(runtime, packages)
        base_image = order.base_image if session is None else session.base_image
        assert base_image is not None
        image, digest = self._resolve(runtime.name, base_image, order)
        env = {**session.env, **order.env} if session is not None else dict(order.env)
        check_command_size(order.command, env)
        labels = {**session.labels, **order.labels} if session is not None else dict(order.labels)
        asks = [egress_of_session(session) if session is not None else None, order.egress]
        former = former_allowlist(session) if session is not None else None
        egress = self.way_out(runtime, terms.network_policy, asks, user, former)
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
        work = RunPlan(
            launch=self._launch(order, env, terms),
            spec=replace(self._spec(runtime.name, image, terms), packages=packages),
            files=order.files,
            interactive=order.interactive,
            startup_timeout=terms.startup_timeout_sec,
            log_cap=self.policy.max_log_bytes,
            cancel_grace=self.policy.cancel_grace_seconds,
            capture_patterns=order.capture_patterns,
            git=order.git,
            egress=egress,
        )
        return facts, work

    def way_out(
        self,
        runtime: RuntimeInfo,
        network: str,
        asks: Sequence[RequestedEgress | None],
        user: Requester,
        former: Allowlist | None = None,
    ) -> BoxEgress | None:
        """Decide the egress of a box; raises where it is not available or not allowed."""
        given = [ask for ask in asks if ask is not None]
        if network == DENY_ALL:
            if asks[-1] is not None:
                raise InvalidRequest(
                    f"egress goes with network_policy {ALLOWLIST!r}, and it is {network!r}", field="egress"
                )
            return None
        if not runtime.features.egress:
            raise PolicyUnsupported(
                f"network_policy {network!r} cannot be enforced by the runtime {runtime.name} here",
                field="network_policy",
                supported=[DENY_ALL],
            )
        return self.egress.agree(given, user=user.name, owner=user.owner, former=former, box=new_id("box"))

    def _spec(self, runtime: str, image: str, terms: RunTerms) -> BoxSpec:
        return BoxSpec(
            runtime=runtime,
            image=image,
            limits=terms.limits(self.policy),
            executable=not self.policy.workspace_noexec,
        )

    def _launch(self, order: RequestedRun, env: Mapping[str, str], terms: RunTerms) -> Launch:
        if not order.language:
            return plan_command(order.command, env=env)
        name, *arguments = order.command
        launch = plan_file(
            order.language,
            name,
            arguments=arguments,
            env=env,
            memory=terms.memory_mb * MIB,
            languages=self.languages,
        )
        executes = launch.compilation is not None and launch.compilation.executes
        if executes and self.policy.workspace_noexec and not self.policy.executable_scratch:
            raise PolicyUnsupported(
                f"programs in {launch.language} are executed where they were compiled, and here nothing can be "
                "(SANDBOX_EXECUTABLE_SCRATCH)",
                field="language",
            )
        return launch

    def _resolve(self, runtime: str, base_image: str, order: RequestedRun) -> tuple[str, str | None]:
        """The image's name as the runtime knows it, and its digest; a run of an unknown one fails when it starts."""
        if order.language and base_image == HOST:
            base_image = self._runtimes.image_with(runtime, self.languages.named(order.language))
        try:
            language = self.languages.of_command(order.command[0]) if order.command else ""
            image = self._runtimes.resolve(runtime, base_image, language)
        except UnknownImage:
            return base_image, None
        return image.name, image.digest or None


def patient(asked: ResourceRequest, packages: Packages, policy: Policy) -> ResourceRequest:
    """Return the request, with the longest startup timeout where packages may have to be fetched first."""
    if not packages or asked.startup_timeout_sec is not None:
        return asked
    return replace(asked, startup_timeout_sec=policy.max_startup_timeout_sec)


def require_layers(runtime: RuntimeInfo, packages: Packages) -> None:
    """Refuse packages where they cannot be put on top of images."""
    if packages and not runtime.features.layers:
        raise PolicyUnsupported(f"the runtime {runtime.name} has no packages on top of its images", field="packages")


def packages_of_session(session: Session) -> Packages:
    """Return the packages of a session."""
    kept = session.policy.get("packages") or {}
    return make_packages(kept.get("python", ()), kept.get("node", ()))


def egress_of_session(session: Session) -> RequestedEgress | None:
    """Return the egress that a session requests for its runs."""
    kept = session.policy.get("egress")
    return None if kept is None else read_requested_egress(kept)


def former_allowlist(session: Session) -> Allowlist | None:
    """The server's list when a session was made."""
    kept = session.policy.get("egress_server")
    return None if kept is None else allowlist_of(kept)


def asked_by(session: Session) -> ResourceRequest:
    """Return the limits that runs of a session default to."""
    kept = session.policy
    return ResourceRequest(
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
