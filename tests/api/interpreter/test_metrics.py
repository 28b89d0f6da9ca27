"""The names of the document's metrics, counted when it says."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from tests.api.conftest import RunningServer
from tests.api.interpreter.streams import Streams, saying
from tests.runtimes import RUNTIME

StartServer = Callable[..., RunningServer]
StreamsOf = Callable[..., Streams]
EXITED = f'{{outcome="completed",reason="exit_code_0",runtime="{RUNTIME}"}}'


@pytest.fixture
def fresh(start_server: StartServer, streams_of: StreamsOf) -> Streams:
    """Whom a server that has done nothing yet serves."""
    return streams_of(
        start_server(rate_limit="off", max_concurrent_runs="1", max_log_bytes="100", ws_heartbeat_sec="0.2")
    )


def test_a_run_is_counted_on_each_of_its_steps(fresh: Streams) -> None:
    blocker = fresh.python(saying("x" * 50) + "; import time; time.sleep(30)")
    with fresh.stream(blocker["run_id"]) as stream:
        stream.until("stdout")
    waiting = fresh.python("print('y' * 500)")
    assert fresh.metric(f'sandbox_runs_started_total{{runtime="{RUNTIME}"}}') == 2
    assert fresh.metric(f'sandbox_queue_wait_seconds_count{{runtime="{RUNTIME}"}}') == 1
    assert fresh.metric(f'sandbox_run_start_latency_seconds_count{{runtime="{RUNTIME}"}}') == 1
    assert fresh.metric('sandbox_runs_in_phase{phase="running"}') == 1
    assert fresh.metric('sandbox_runs_in_phase{phase="queued"}') == 1
    assert fresh.metric("sandbox_runs_active") == 1
    assert fresh.metric("sandbox_queue_length") == 1
    fresh.cancel(blocker["run_id"])
    fresh.wait(blocker["run_id"])
    fresh.wait(waiting["run_id"])
    killed = f'{{outcome="killed",reason="canceled_by_user",runtime="{RUNTIME}"}}'
    for labels in (killed, EXITED):
        assert fresh.metric(f"sandbox_runs_completed_total{labels}") == 1
        assert fresh.metric(f"sandbox_run_duration_seconds_count{labels}") == 1
    assert fresh.metric(f'sandbox_queue_wait_seconds_count{{runtime="{RUNTIME}"}}') == 2
    assert fresh.metric(f'sandbox_queue_wait_seconds_sum{{runtime="{RUNTIME}"}}') > 0
    assert fresh.metric(f'sandbox_run_exit_codes_total{{exit_code="0",runtime="{RUNTIME}"}}') == 1
    assert fresh.metric(f'sandbox_log_bytes_total{{runtime="{RUNTIME}"}}') == 51 + 100
    assert fresh.metric('sandbox_log_truncations_total{component="ws",reason="log_cap"}') == 1
    assert fresh.metric('sandbox_runs_in_phase{phase="running"}') == 0


def test_streams_are_counted(fresh: Streams) -> None:
    run = fresh.python("import time; time.sleep(1)")
    with fresh.stream(run["run_id"]) as stream:
        stream.next()
        assert fresh.metric('sandbox_ws_connections_opened_total{component="ws"}') == 1
        assert fresh.metric('sandbox_ws_connections{component="ws"}') == 1
        frames = stream.rest()
    beats = [frame["type"] for frame in frames].count("heartbeat")
    deadline = time.monotonic() + 30
    while fresh.metric('sandbox_ws_disconnects_total{component="ws"}') < 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert fresh.metric('sandbox_ws_heartbeats_sent_total{component="ws"}') == beats > 0
    # A refused upgrade is no connection.
    assert fresh.get("/runs/unknown/logs").status_code == 404
    assert fresh.metric('sandbox_ws_connections_opened_total{component="ws"}') == 1


def test_sessions_and_input_are_counted(fresh: Streams) -> None:
    fresh.session(base_image="python:3.11-slim")
    assert fresh.metric(f'sandbox_sessions_created_total{{runtime="{RUNTIME}"}}') == 1
    run = fresh.python("import sys; sys.stdin.read()", interactive=True, stdin_max_bytes=2)
    with fresh.stream(run["run_id"]) as stream:
        stream.send(type="stdin", data="123")
        stream.rest()
    assert fresh.metric('sandbox_log_truncations_total{component="ws",reason="stdin_max_bytes"}') == 1


def test_admins_see_the_same_numbers_as_a_map(fresh: Streams) -> None:
    fresh.run(["python3", "-c", "print('hello')"])
    series = fresh.get("/admin/metrics").json()
    labels = {"runtime": RUNTIME, "outcome": "completed", "reason": "exit_code_0"}
    assert series["sandbox_runs_completed_total"] == [{"labels": labels, "value": 1}]
    assert series["sandbox_run_duration_seconds_count"] == [{"labels": labels, "value": 1}]


def test_every_metric_is_explained(fresh: Streams) -> None:
    page = fresh.http.get(f"{fresh.server.url}/metrics").text
    named = set(re.findall(r"^# TYPE (sandbox_\w+)", page, re.MULTILINE))
    explained = set(re.findall(r"^# HELP (sandbox_\w+) \S+", page, re.MULTILINE))
    assert named == explained
    for name in (
        "sandbox_sessions_created_total",
        "sandbox_runs_started_total",
        "sandbox_runs_completed_total",
        "sandbox_run_duration_seconds",
        "sandbox_queue_wait_seconds",
        "sandbox_queue_full_total",
        "sandbox_queue_ttl_expired_total",
        "sandbox_upload_bytes_total",
        "sandbox_upload_files_total",
        "sandbox_log_bytes_total",
        "sandbox_log_truncations_total",
        "sandbox_ws_connections_opened_total",
        "sandbox_ws_heartbeats_sent_total",
        "sandbox_ws_disconnects_total",
        "sandbox_ws_queue_drops_total",
    ):
        assert name in named
