"""``GET /metrics``: what happens in the server, in the format of Prometheus."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector

from tidebox.api.asgi import Receive, Scope, Send
from tidebox.broker.run_metrics import RunMetrics
from tidebox.errors import Overloaded, TideboxError
from tidebox.model.egress import REASONS
from tidebox.model.events import EgressSeen
from tidebox.model.result import EgressUsage
from tidebox.model.run import Conclusion, Phase, Reason
from tidebox.model.runtimes import Gauge as RuntimeGauge

_COMPONENT = "orchestrator"
_STREAMS = "ws"
_DROP_OLDEST = "drop_oldest"
_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_WAITS = (0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 120)


@dataclass(frozen=True, slots=True)
class Levels:
    """Gauges: levels that can be read at any moment."""

    active: int
    queued: int
    cells: int
    boxes: int
    gauges: Sequence[RuntimeGauge] = ()
    """Of the runtimes' own."""
    starts: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """How interpreters start, by image and kind."""
    phases: Mapping[str, int] = field(default_factory=dict)
    sandboxes: Mapping[str, int] = field(default_factory=dict)
    """By state."""
    stock: int = 0
    grants: int = 0
    """Given out since the start."""


class ServerMetrics(RunMetrics):
    """The Prometheus metrics of the server: counters, histograms and gauges, and the endpoint that shows them."""

    def __init__(self, runtime: str, read_levels: Callable[[], Levels]) -> None:
        self._read_levels = read_levels
        self._registry = registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        self._sessions = Counter("sandbox_sessions_created", "Sessions made.", ["runtime"], registry=registry)
        self._started = Counter("sandbox_runs_started", "Programs accepted.", ["runtime"], registry=registry)
        self._completed = Counter(
            "sandbox_runs_completed", "Programs that are over.", ["runtime", "outcome", "reason"], registry=registry
        )
        self._duration = Histogram(
            "sandbox_run_duration_seconds",
            "From the slot to the end.",
            ["runtime", "outcome", "reason"],
            buckets=_DURATIONS,
            registry=registry,
        )
        self._waited = Histogram(
            "sandbox_queue_wait_seconds", "From the order to the slot.", ["runtime"], buckets=_WAITS, registry=registry
        )
        self._latency = Histogram(
            "sandbox_run_start_latency_seconds",
            "From the order to the program's start.",
            ["runtime"],
            buckets=_DURATIONS,
            registry=registry,
        )
        self._exit_codes = Counter(
            "sandbox_run_exit_codes", "Exit codes of programs.", ["runtime", "exit_code"], registry=registry
        )
        self._refused = Counter("sandbox_runs_refused", "Orders that were not accepted.", ["reason"], registry=registry)
        self._full = Counter(
            "sandbox_queue_full",
            "Orders refused because the queue was full.",
            ["component", "runtime", "reason"],
            registry=registry,
        )
        self._expired = Counter(
            "sandbox_queue_ttl_expired",
            "Orders that waited too long.",
            ["component", "runtime", "reason"],
            registry=registry,
        )
        self._requests = Counter(
            "sandbox_http_requests", "Requests answered.", ["component", "status"], registry=registry
        )
        self._opened = Counter(
            "sandbox_ws_connections_opened", "WebSocket connections opened.", ["component"], registry=registry
        )
        self._closed = Counter(
            "sandbox_ws_disconnects", "WebSocket connections ended.", ["component"], registry=registry
        )
        self._open = Gauge("sandbox_ws_connections", "WebSocket connections now.", ["component"], registry=registry)
        self._heartbeats = Counter(
            "sandbox_ws_heartbeats_sent", "Heartbeats sent to log streams.", ["component"], registry=registry
        )
        self._drops = Counter(
            "sandbox_ws_queue_drops",
            "Frames that clients were too slow for.",
            ["component", "reason"],
            registry=registry,
        )
        self._log_bytes = Counter("sandbox_log_bytes", "Output put into logs.", ["runtime"], registry=registry)
        self._truncations = Counter(
            "sandbox_log_truncations", "Logs and inputs that were cut.", ["component", "reason"], registry=registry
        )
        self._upload_bytes = Counter("sandbox_upload_bytes", "Bytes uploaded.", ["kind"], registry=registry)
        self._upload_files = Counter("sandbox_upload_files", "Files uploaded.", ["kind"], registry=registry)
        self._artifact_bytes = Counter("sandbox_artifact_bytes", "Artifacts kept.", ["runtime"], registry=registry)
        self._egress_seen = Counter(
            "sandbox_egress_events",
            "Connections of programs that were allowed or denied, the first of each kind in a run.",
            ["runtime", "outcome", "reason"],
            registry=registry,
        )
        self._egress_connections = Counter(
            "sandbox_egress_connections", "Connections of programs.", ["runtime", "outcome"], registry=registry
        )
        self._egress_bytes = Counter(
            "sandbox_egress_bytes",
            "Bytes that programs sent and received.",
            ["runtime", "direction"],
            registry=registry,
        )
        self._of_runtimes: dict[str, ServerMetrics] = {}
        self._count_for(runtime)

    def for_runtime(self, runtime: str | None) -> ServerMetrics:
        """The same counters, labelled with another runtime than the default one."""
        if runtime is None:
            return self
        found = self._of_runtimes.get(runtime)
        if found is None:
            found = copy.copy(self)
            found._count_for(runtime)
        return found

    # Looked up once: most programs end alike, and the way through the labels costs more than to count.
    def _count_for(self, runtime: str) -> None:
        self._of_runtimes[runtime] = self
        self._runtime = runtime
        self._started_here = self._started.labels(runtime)
        self._waited_here = self._waited.labels(runtime)
        self._latency_here = self._latency.labels(runtime)
        self._by_end = functools.cache(self._find_by_end)
        self._by_exit_code = functools.cache(self._find_by_exit_code)

    def _find_by_end(self, phase: Phase, reason: Reason) -> tuple[Counter, Histogram]:
        labels = (self._runtime, phase.value, reason.value)
        return self._completed.labels(*labels), self._duration.labels(*labels)

    def _find_by_exit_code(self, code: int) -> Counter:
        return self._exit_codes.labels(self._runtime, str(code))

    def refused(self, error: TideboxError) -> None:
        """An order was not accepted."""
        self._refused.labels(error.code).inc()
        if isinstance(error, Overloaded):
            self._full.labels(_COMPONENT, self._runtime, error.code).inc()

    def accepted(self) -> None:
        """An order was accepted."""
        self._started_here.inc()

    def started(self, waited: float) -> None:
        """A program was given a slot after so many seconds."""
        self._waited_here.observe(waited)

    def running(self, seconds: float) -> None:
        """A program runs, so many seconds after its order was accepted."""
        self._latency_here.observe(seconds)

    def ended(self, conclusion: Conclusion, seconds: float) -> None:
        """A program is over, so many seconds after it was given its slot."""
        completed, duration = self._by_end(conclusion.phase, conclusion.reason)
        completed.inc()
        if seconds:
            duration.observe(seconds)
        if conclusion.exit_code is not None:
            self._by_exit_code(conclusion.exit_code).inc()
        if conclusion.reason is Reason.QUEUE_TTL_EXPIRED:
            self._expired.labels(_COMPONENT, self._runtime, conclusion.reason.value).inc()

    def reached(self, seen: EgressSeen) -> None:
        """A program made a connection of a new kind, or was denied one."""
        outcome = "allowed" if seen.allowed else "denied"
        reason = seen.reason if seen.reason in (None, *REASONS) else "other"
        self._egress_seen.labels(self._runtime, outcome, reason or "").inc()

    def transferred(self, usage: EgressUsage) -> None:
        """Count the network usage of a program that is over."""
        self._egress_connections.labels(self._runtime, "allowed").inc(usage.connections)
        self._egress_connections.labels(self._runtime, "denied").inc(usage.denied)
        self._egress_bytes.labels(self._runtime, "sent").inc(usage.sent)
        self._egress_bytes.labels(self._runtime, "received").inc(usage.received)

    def session_created(self) -> None:
        """A session was made."""
        self._sessions.labels(self._runtime).inc()

    def logged(self, size: int) -> None:
        """Count bytes of output that were put into a log."""
        self._log_bytes.labels(self._runtime).inc(size)

    def truncated(self, reason: str) -> None:
        """A log is not continued, or an input was closed."""
        self._truncations.labels(_STREAMS, reason).inc()

    def dropped(self, frames: int) -> None:
        """A client of a log was too slow for so many frames."""
        self._drops.labels(_STREAMS, _DROP_OLDEST).inc(frames)

    def uploaded(self, kind: str, size: int, files: int) -> None:
        """Files came in."""
        self._upload_bytes.labels(kind).inc(size)
        self._upload_files.labels(kind).inc(files)

    def artifacts_kept(self, size: int) -> None:
        """Count bytes of artifacts that were stored."""
        self._artifact_bytes.labels(self._runtime).inc(size)

    def heartbeat_sent(self, component: str) -> None:
        """A client was told that the server is still there."""
        self._heartbeats.labels(component).inc()

    def request(self, surface: str, status: int) -> None:
        """A request was answered."""
        self._requests.labels(surface, str(status)).inc()

    @contextlib.contextmanager
    def connection(self, surface: str) -> Iterator[None]:
        """Count a WebSocket connection for as long as it lasts."""
        self._opened.labels(surface).inc()
        self._open.labels(surface).inc()
        try:
            yield
        finally:
            self._open.labels(surface).dec()
            self._closed.labels(surface).inc()

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges, for the registry."""
        levels = self._read_levels()
        yield GaugeMetricFamily("sandbox_runs_active", "Programs that run now.", levels.active)
        yield GaugeMetricFamily("sandbox_queue_length", "Programs that wait for their turn.", levels.queued)
        yield GaugeMetricFamily("sandbox_pool_cells", "Cells that wait for a program or are being made.", levels.cells)
        yield GaugeMetricFamily("sandbox_boxes", "Boxes that exist now, parked ones included.", levels.boxes)
        for gauge in levels.gauges:
            yield GaugeMetricFamily(gauge.name, gauge.help, gauge.value)
        starts = GaugeMetricFamily(
            "sandbox_image_start",
            "How interpreters of an image start: forked, parked or cold.",
            labels=["image", "interpreter", "start"],
        )
        for (image, kind), start in levels.starts.items():
            starts.add_metric([image, kind, start], 1)
        yield starts
        phases = GaugeMetricFamily("sandbox_runs_in_phase", "Journaled runs that are not over.", labels=["phase"])
        for phase, count in levels.phases.items():
            phases.add_metric([phase], count)
        yield phases
        sandboxes = GaugeMetricFamily("sandbox_live_sandboxes", "Sandboxes that scopes are bound to.", labels=["state"])
        for state, count in levels.sandboxes.items():
            sandboxes.add_metric([state], count)
        yield sandboxes
        yield GaugeMetricFamily("sandbox_bindings", "Scopes that are bound.", sum(levels.sandboxes.values()))
        yield GaugeMetricFamily("sandbox_stock_ready", "Sandboxes that wait to be bound.", levels.stock)
        yield CounterMetricFamily("sandbox_grants", "Tokens given out for sandboxes.", levels.grants)

    def series(self) -> dict[str, list[dict[str, Any]]]:
        """Everything that was counted: by name, one entry for each set of labels."""
        found: dict[str, list[dict[str, Any]]] = {}
        for family in self._registry.collect():
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    found.setdefault(sample.name, []).append({"labels": sample.labels, "value": sample.value})
        return found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = generate_latest(self._registry)
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
        await send({"type": "http.response.body", "body": body})
