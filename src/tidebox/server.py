"""The composition root of the server: settings in, a running server until it is told to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import hashlib
import ipaddress
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import structlog
import uvloop

import tidebox
from tidebox import logs
from tidebox.config import Settings
from tidebox.data_dir import DataDir
from tidebox.embedded import Engine, egress_rules
from tidebox.errors import Conflict, GuaranteeMissing, InvalidRequest, RuntimeUnavailable
from tidebox.model.box import BoxSpec
from tidebox.model.images import HOST
from tidebox.model.limits import MIB, Limits
from tidebox.model.policy import Policy, ResourceRequest, terms_of
from tidebox.model.runtimes import RuntimeCatalog, RuntimeReport
from tidebox.runtime.base import Runtime
from tidebox.runtime.machine import processors
from tidebox.runtime.offers import LanguageImages, Offers
from tidebox.runtime.survey import Survey

if TYPE_CHECKING:
    from tidebox.api.app import Application
    from tidebox.api.asgi import App
    from tidebox.api.auth import Authenticator
    from tidebox.api.mcp import McpApp
    from tidebox.api.services import Services
    from tidebox.broker.audit.audit_log import Audit
    from tidebox.broker.run_metrics import RunMetrics
    from tidebox.broker.runs.stored_run_files import StoredFileManager
    from tidebox.broker.sandboxes.access_tokens import KeyRing
    from tidebox.broker.sandboxes.grants import Sandboxes
    from tidebox.broker.sandboxes.providers.base import Providers
    from tidebox.broker.sandboxes.warm_boxes import WarmBoxes
    from tidebox.cluster.membership import Membership
    from tidebox.store.base import Store

_log = structlog.get_logger("tidebox.server")
_BACKLOG = 2048
# The store and the logs are used by threads: what they bring must not wait for the event loop's next pause.
_SWITCH_SECONDS = 0.0005
_DESCRIPTORS = 65536
# That are made at once; sandboxes beyond that are better made by another server.
_BOXES_PER_PROCESSOR = 2


Guest = Callable[["App", str], Coroutine[Any, Any, None]]
"""A program in the process of a server that uses it (MCP, LSP): it is given the server's app and its address."""


def serve(settings: Settings, guest: Guest | None = None) -> None:
    """Serve until a signal says to stop; raises what keeps it from starting.

    With a guest nothing is printed, and the server ends with it.
    """
    logs.configure(settings.log_level)
    sys.setswitchinterval(_SWITCH_SECONDS)
    _allow_many_connections()
    with DataDir(settings.data_dir) as data_dir, _listening_socket(settings) as sock:
        data_dir.sweep(settings.agent_sockets)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings, data_dir, sock, guest))


def _allow_many_connections() -> None:
    """Raise the soft limit on descriptors, which is low for programs that still use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Stop:
    """Stop requests by signals: the first to stop, the second to stop at once, the third to be gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    async def comes_after(self, work: asyncio.Task[RuntimeReport]) -> bool:
        """Wait for ``work``; False, and it is cancelled, if the server is to stop first."""
        asked = asyncio.create_task(self.asked.wait())
        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        return work.done() or not work.cancel()

    def _on_signal(self) -> None:
        if self.hurried.is_set():
            os._exit(1)
        if self.asked.is_set():
            self.hurried.set()
        self.asked.set()


async def _run(settings: Settings, data_dir: DataDir, sock: socket.socket, guest: Guest | None) -> None:
    loop = asyncio.get_running_loop()
    logs.report_loop_failures(loop)
    stop = _Stop(loop)
    # Boxes of the interpreter service have another shape than those of an execution.
    shapes = (BoxSpec(), _service_shape(_policy(settings)))
    # What a server offers is what its operator decided on, not what the machine happens to have; one within a guest's
    # program has no other operator than the machine's own user.
    engine = Engine(settings, shapes=shapes, host_tools=guest is not None)
    survey: Survey | None = None
    offers = Offers(engine.runners)
    try:
        runtimes = RuntimeCatalog(engine.runners.resolve, image_with=engine.runners.image_with)
        survey = Survey(engine.runners, runtimes, settings.default_startup_timeout_sec)
        probing = survey.begin(settings.default_runtime)
        # What makes boxes starts, as a program of its own, while this one loads the rest of itself.
        await asyncio.sleep(0)
        services = _compose(settings, data_dir, engine, runtimes, offers)
        if not await stop.comes_after(probing):
            return
        report = probing.result()
        _require_guarantees(report, engine.runtime, settings)
        if settings.egress_allowlist is not None:
            engine.runtime.expect_egress()
        try:
            await services.broker.open()
        except OSError as error:
            raise InvalidRequest(f"the audit log in {data_dir.path} cannot be written: {error.strerror}") from None
        giving_way = loop.create_task(_give_way(services.broker.membership, stop))
        try:
            # A guest uses some of the surfaces, and starts with its process: what it does not ask for can wait.
            everything = guest is None
            if guest is None:
                guest = _greeting(_banner(settings, data_dir, sock, report), stop)
            await _serve(services, engine, sock, guest, stop, everything=everything)
        finally:
            giving_way.cancel()
            await services.sandboxes.close()
            await services.broker.close()
        if services.broker.membership.superseded.is_set():
            raise Conflict(
                f"another server has joined as the node {services.broker.membership.node_id}: give each its own"
            )
    finally:
        if survey is not None:
            await survey.close()
        await offers.close()
        await engine.close()


async def _give_way(membership: Membership, stop: _Stop) -> None:
    """Stop when another server is this node: two cannot be one."""
    await membership.superseded.wait()
    stop.asked.set()


def _compose(
    settings: Settings, data_dir: DataDir, engine: Engine, runtimes: RuntimeCatalog, offers: Offers
) -> Services:
    from tidebox.api.health import HealthEndpoint
    from tidebox.api.log_followers import LogFollowerQuota
    from tidebox.api.metrics import Levels, ServerMetrics
    from tidebox.api.rate_limit import RateLimiter
    from tidebox.api.services import Services
    from tidebox.api.signed_urls import UrlSigner
    from tidebox.broker.audit.audit_log import Audit
    from tidebox.broker.broker import Broker
    from tidebox.broker.runs.journaled import Retention
    from tidebox.broker.runs.log_hub import LogHub
    from tidebox.broker.runs.log_writer import PIECE_BYTES
    from tidebox.broker.runs.planning import Planner
    from tidebox.broker.runs.quotas import Quotas
    from tidebox.broker.sandboxes.warm_boxes import WarmBoxes
    from tidebox.broker.storage.log_files import LogFiles

    def levels() -> Levels:
        load = broker.load
        return Levels(
            active=load.active,
            queued=load.queued,
            cells=sum(runner.pool.parked_total() for runner in engine.runners),
            boxes=sum(runner.runtime.live_boxes() for runner in engine.runners),
            gauges=[gauge for runner in engine.runners for gauge in runner.runtime.gauges()],
            starts={place: start for runner in engine.runners for place, start in runner.pool.starts().items()},
            phases={phase.value: count for phase, count in broker.runs.phases().items()},
            sandboxes={state.value: count for state, count in sandboxes.bindings.count().items()},
            stock=warm_boxes.ready,
            grants=sandboxes.granted,
        )

    egress = egress_rules(settings, embedded=False)
    metrics = ServerMetrics(engine.runtime.name, levels)
    store = _store(settings)
    membership = _membership(settings, data_dir, store)
    audit = Audit(settings.data_dir / "audit", retention_days=settings.audit_retention_days)
    files = _files(settings, store, metrics, audit)
    own_slots, own_places = _shares(settings)
    broker = Broker(
        runner=engine.runners,
        store=store,
        file_manager=files,
        audit=audit,
        max_concurrent=settings.max_concurrent_runs,
        max_concurrent_per_user=own_slots,
        queue_max=settings.queue_max_length,
        queue_max_per_user=own_places,
        queue_ttl=settings.queue_ttl_sec,
        metrics=metrics,
        quotas=Quotas(
            runs_per_session=settings.max_runs_per_session,
            cpu_seconds_per_day=settings.max_cpu_seconds_per_day,
            sessions=settings.max_sessions_per_user,
        ),
        retention=Retention(
            claims=settings.idempotency_ttl_sec,
            # A run is known for as long as its artifacts are.
            runs=max(Retention().runs, settings.artifact_ttl_hours * 3600),
            log_bytes=settings.logs_cap_mb * MIB,
        ),
        reaper_interval=settings.reaper_interval_sec,
        membership=membership,
        allowlist=egress.server,
        hub=LogHub(
            LogFiles(settings.data_dir / "runs"),
            buffer_bytes=settings.ws_buffer_frames * PIECE_BYTES,
            heartbeat_seconds=settings.ws_heartbeat_sec,
            on_drop=metrics.dropped,
        ),
    )
    ready = settings.warm_boxes(engine.runtime.name) if engine.runtime.external else settings.pool_sandboxes
    warm_boxes = WarmBoxes(engine.runtime, _live_shape(settings, engine), ready, engine.runners.with_packages)
    sandboxes = _sandboxes(settings, warm_boxes, store, audit, membership)
    policy = _policy(settings)
    return Services(
        settings=settings,
        broker=broker,
        languages=LanguageImages(engine.runners, engine.runtime),
        known_languages=engine.languages,
        offered=offers.of,
        authenticator=_authenticator(settings, data_dir),
        rate_limiter=RateLimiter(settings.rate_limit),
        metrics=metrics,
        health=HealthEndpoint(),
        log_followers=LogFollowerQuota(settings.ws_max_streams_per_user),
        policy=policy,
        planner=Planner(policy, runtimes, egress, engine.languages),
        runtimes=runtimes,
        files=files,
        audit=audit,
        sandboxes=sandboxes,
        signer=UrlSigner(
            settings.ws_signing_secret or settings.api_key or data_dir.api_key(),
            ttl=settings.ws_signed_url_ttl_sec,
            enabled=settings.ws_signed_urls,
        ),
    )


def _shares(settings: Settings) -> tuple[int | None, int | None]:
    """How many programs of one user may run and wait; None for as many as of all users."""
    from tidebox.broker.runs.admission_control import places_of_one, slots_of_one

    slots, places = settings.max_concurrent_runs_per_user, settings.queue_max_length_per_user
    if settings.several_users:
        slots = slots_of_one(settings.max_concurrent_runs) if slots is None else slots
        places = places_of_one(settings.queue_max_length) if places is None else places
    return slots, places


def _files(settings: Settings, store: Store, metrics: RunMetrics, audit: Audit) -> StoredFileManager:
    from tidebox.broker.runs.stored_run_files import StoredFileManager
    from tidebox.broker.storage.artifacts import ArtifactRules, RunArtifacts
    from tidebox.broker.storage.git_fetch import GitRules
    from tidebox.broker.storage.local_blob_store import LocalBlobStore
    from tidebox.broker.storage.local_workspace_store import LocalWorkspaceStore
    from tidebox.broker.storage.staging_area import LocalStagingArea
    from tidebox.broker.storage.uploads import UploadRules, Uploads
    from tidebox.broker.storage.workspaces import Workspaces
    from tidebox.untrusted_files.staging import StageLimits
    from tidebox.untrusted_files.trees import TreeLimits

    workspace = settings.workspace_cap_mb * MIB
    tree_limits = TreeLimits(max_bytes=workspace, max_entries=Limits().inodes - 1)
    workspaces = Workspaces(LocalWorkspaceStore(settings.data_dir / "sessions", tree_limits))
    rules = ArtifactRules(
        max_run_bytes=settings.max_artifact_bytes_per_run_mb * MIB,
        max_user_bytes=settings.max_artifact_bytes_per_user_mb * MIB,
        ttl=settings.artifact_ttl_hours * 3600,
    )
    stage = StageLimits(max_bytes=workspace, max_files=settings.max_upload_files, max_depth=settings.max_upload_depth)
    git = GitRules(
        schemes=settings.git_schemes, hosts=settings.git_hosts, timeout=settings.git_timeout_sec, max_bytes=workspace
    )
    upload_rules = UploadRules(max_received=settings.max_upload_mb * MIB, stage=stage)
    uploads = Uploads(LocalStagingArea(settings.data_dir / "uploads"), workspaces, upload_rules, git, metrics, audit)
    artifacts = RunArtifacts(LocalBlobStore(settings.data_dir / "runs"), store, rules, metrics)
    return StoredFileManager(store, workspaces, artifacts, uploads, audit)


def _sandboxes(
    settings: Settings, warm_boxes: WarmBoxes, store: Store, audit: Audit, membership: Membership
) -> Sandboxes:
    from tidebox.broker.sandboxes.bindings import Bindings
    from tidebox.broker.sandboxes.grants import Sandboxes
    from tidebox.broker.sandboxes.leases import LeaseTerms
    from tidebox.model.sandbox import Capability, CapabilityPolicy

    def keys() -> KeyRing:
        from tidebox.broker.sandboxes.access_tokens import KeyRing

        return KeyRing(
            settings.data_dir / "keys" / "sandbox-tokens.json",
            token_ttl=settings.token_ttl_sec,
            rotation=settings.token_key_rotation_sec,
        )

    def allowed(names: Sequence[str]) -> frozenset[Capability]:
        return frozenset(map(Capability, names))

    bindings = Bindings(
        store=store,
        audit=audit,
        providers=_providers(settings, warm_boxes),
        membership=membership,
        terms=LeaseTerms(
            token_ttl=settings.token_ttl_sec,
            lease_ttl=settings.lease_ttl_sec,
            idle_timeout=settings.idle_timeout_sec,
            hard_ttl=settings.hard_ttl_sec,
            grace=settings.reaper_grace_sec,
        ),
        max_per_user=settings.max_sandboxes_per_user,
        claims_kept=settings.idempotency_ttl_sec,
    )
    membership.register(bindings)
    return Sandboxes(
        bindings,
        audit=audit,
        keys=keys,
        capabilities=CapabilityPolicy(
            human=allowed(settings.capabilities_human),
            agent=allowed(settings.capabilities_agent),
            roles={
                role: allowed(names.split("+"))
                for role, _, names in (rule.partition("=") for rule in settings.capabilities_roles)
            },
        ),
        bind_address=settings.token_bind_address,
        reap_interval=settings.reaper_interval_sec,
    )


def _providers(settings: Settings, warm_boxes: WarmBoxes) -> Providers:
    from tidebox.broker.sandboxes.providers.base import Provider, Providers
    from tidebox.broker.sandboxes.providers.local_provider import LocalProvider

    here = LocalProvider(
        warm_boxes, most_opening=_BOXES_PER_PROCESSOR * processors(), enabled=settings.enable_execution
    )
    found: list[Provider] = [here]
    if settings.providers:
        # It comes with an HTTP client.
        from tidebox.broker.sandboxes.providers.remote_provider import make_remote

        found += [make_remote(server, bind_address=settings.token_bind_address) for server in settings.providers]
    return Providers(found)


def _live_shape(settings: Settings, engine: Engine) -> BoxSpec:
    """Return the box spec that sandboxes share."""
    workspace = settings.workspace_cap_mb * MIB
    return BoxSpec(
        image=engine.runners.image_of(engine.runtime, HOST, "shell"),
        limits=Limits(
            memory=settings.live_mem_mb * MIB,
            pids=settings.pids_limit,
            workspace=workspace,
            file_size=workspace,
            open_files=settings.ulimit_nofile,
        ),
        kind="sandbox",
    )


def _store(settings: Settings) -> Store:
    from tidebox.store.sql.store import MemoryStore, PostgresStore, SqliteStore

    if settings.store_backend == "memory":
        return MemoryStore()
    if settings.store_backend == "postgres":
        if settings.store_url is None:
            raise InvalidRequest(
                "SANDBOX_STORE_BACKEND is postgres: SANDBOX_STORE_URL must say where", field="store_url"
            )
        return PostgresStore(settings.store_url)
    return SqliteStore(settings.store_db_path or settings.data_dir / "meta" / "sandbox_store.db")


def _membership(settings: Settings, data_dir: DataDir, store: Store) -> Membership:
    node_id = settings.node_id or data_dir.node_id()
    if store.shared:
        from tidebox.cluster.shared import SharedMembership

        return SharedMembership(store, node_id, data_dir.home())
    from tidebox.cluster.membership import Membership

    return Membership(node_id)


def _policy(settings: Settings) -> Policy:
    """The part of the settings that says what runs may use."""
    names = {item.name for item in dataclasses.fields(Settings)}
    found = {item.name: getattr(settings, item.name) for item in dataclasses.fields(Policy) if item.name in names}
    if (profile := settings.docker_seccomp_profile()) is not None:
        # By its content: where the file lies says nothing of what programs may do.
        found["docker_seccomp"] = "sha256:" + hashlib.sha256(profile.encode()).hexdigest()
    return Policy(**found)


def _service_shape(policy: Policy) -> BoxSpec:
    """Return the box spec that runs of the interpreter service share."""
    limits = terms_of(dataclasses.replace(policy, network_default="deny_all"), ResourceRequest()).limits(policy)
    return BoxSpec(limits=limits, executable=not policy.workspace_noexec)


def _authenticator(settings: Settings, data_dir: DataDir) -> Authenticator:
    from tidebox.api.auth import Authenticator

    verify = None
    if settings.auth_jwt_secret or settings.auth_jwks_file:
        # Loaded only where tokens are accepted: cryptography takes its time.
        from tidebox.api.jwt_verifier import JwtVerifier

        verify = JwtVerifier(
            secret=settings.auth_jwt_secret,
            jwks_file=settings.auth_jwks_file,
            audience=settings.auth_jwt_audience,
            issuer=settings.auth_jwt_issuer,
        )
    return Authenticator(settings.api_key or data_dir.api_key(), verify)


async def _serve(
    services: Services, engine: Engine, sock: socket.socket, guest: Guest, stop: _Stop, *, everything: bool
) -> None:
    from tidebox.api.app import create_app
    from tidebox.api.listener import Listener

    app = create_app(services, lambda client_of: _mcp(services.settings, client_of))
    listener = Listener(app, services.settings)
    async with listener.listening(sock):
        if services.settings.enable_execution:
            engine.start()
        recovering = asyncio.create_task(_recover(services, app, everything=everything))
        hosted = asyncio.create_task(guest(app, _address(sock)), name="guest")
        hosted.add_done_callback(lambda _: stop.asked.set())
        asked = asyncio.create_task(stop.asked.wait())
        await asyncio.wait({recovering, asked}, return_when=asyncio.FIRST_COMPLETED)
        if recovering.done():
            recovering.result()
            await asked
        else:
            recovering.cancel()
        _log.info("stopping", grace_sec=services.settings.drain_grace_sec)
        services.health.draining = True
        listener.stop_accepting()
        hosted.cancel()
        await asyncio.wait({hosted})
        draining = asyncio.create_task(_drain(services, app))
        hurried = asyncio.create_task(stop.hurried.wait())
        await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if stop.hurried.is_set():
            listener.hurry()
        draining.cancel()
        hurried.cancel()
    if not hosted.cancelled():
        hosted.result()


async def _recover(services: Services, app: Application, *, everything: bool) -> None:
    await services.sandboxes.start()
    # After the store, which is loaded by its first use: two threads that import at once are no sooner done, and leave
    # the event loop no room.
    loading = asyncio.create_task(app.load_first())
    await services.broker.recover()
    await loading
    await services.sandboxes.open()
    if everything:
        await app.load()
    # What there is now stays: to look through it for garbage again and again would stop the loop for 0.1 s each time.
    gc.freeze()
    gc.enable()


async def _drain(services: Services, app: Application) -> None:
    await services.broker.drain(services.settings.drain_grace_sec)
    # What waits for programs has had its answers; what is left would keep connections open.
    await app.close()


def _require_guarantees(report: RuntimeReport, runtime: Runtime, settings: Settings) -> None:
    if not settings.enable_execution:
        return
    if not report.available and runtime.external:
        _log.warning("the default runtime does not work, until it does", runtime=report.runtime, reason=report.reason)
        return
    if not report.available:
        raise RuntimeUnavailable(f"the {report.runtime} runtime does not work here: {report.reason}")
    if report.missing and not settings.allow_weak_isolation:
        names = [finding.guarantee.value for finding in report.missing]
        remedies = dict.fromkeys(finding.remedy for finding in report.missing if finding.remedy)
        raise GuaranteeMissing(
            f"the {report.runtime} runtime cannot enforce {', '.join(names)} here. What helps: "
            f"{'; '.join([*remedies, 'SANDBOX_ALLOW_WEAK_ISOLATION=1 accepts boxes without it'])}",
            guarantees=names,
        )


def _listening_socket(settings: Settings) -> socket.socket:
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidRequest(f"cannot listen on {host}: {error.strerror}", field="host") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(f"port {port} of {host} is taken by another program", field="port") from None
        raise InvalidRequest(f"cannot listen on port {port} of {host}: {error.strerror}", field="port") from None
    return sock


def _mcp(settings: Settings, app: App) -> McpApp:
    from tidebox.mcp.http import HttpServer

    return HttpServer(
        app,
        public_url=settings.public_url,
        dotted_names=settings.mcp_dotted_names,
        max_body_bytes=settings.max_inline_body_bytes,
    )


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _banner(settings: Settings, data_dir: DataDir, sock: socket.socket, report: RuntimeReport) -> str:
    host = sock.getsockname()[0]
    key = "as SANDBOX_API_KEY says" if settings.api_key else str(data_dir.key_file)
    missing = [finding.guarantee.value for finding in report.missing]
    isolation = f"all {len(report.findings)} guarantees enforced"
    if not settings.enable_execution:
        isolation = "execution is turned off"
    elif not report.available:
        isolation = f"nothing can be run until it works: {report.reason}"
    elif missing:
        isolation = f"WEAK, as allowed: {', '.join(missing)} not enforced"
    rows = [
        ("url", _address(sock)),
        ("API key", key),
        ("runtime", report.runtime),
        ("isolation", isolation),
    ]
    if settings.public_url:
        rows.insert(1, ("public url", settings.public_url))
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        rows.append(("note", "reachable from other machines, without encryption: put a proxy with TLS before it"))
    return "\n".join([f"Tidebox {tidebox.__version__}", *(f"  {name:<11}{value}" for name, value in rows)])


def _greeting(banner: str, stop: _Stop) -> Guest:
    """The guest of a server that has none: says where it is, and stays."""

    async def greet(app: App, address: str) -> None:
        # The reader may have gone: nobody has to read it.
        try:
            sys.stdout.write(banner + "\n")
            sys.stdout.flush()
        except OSError:
            pass
        await stop.asked.wait()

    return greet
