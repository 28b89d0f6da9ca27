"""Discovery: every field and default, what is enforced here, and what is not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.api.conftest import NO_CELLS, RunningServer
from tests.api.interpreter.service import Service, error_of
from tests.runtimes import RUNTIME

# On these servers no engine answers.
ABSENT = tuple(name for name in ("docker", "gvisor", "firecracker", "qemu") if name != RUNTIME)


def test_the_defaults_of_the_document(ada: Service) -> None:
    found = ada.get("/runtimes").json()
    native = found["runtimes"][0]
    assert native["name"] == "native"
    assert native["available"] is True
    assert {
        "max_cpu": 4,
        "max_mem_mb": 8192,
        "max_upload_mb": 64,
        "max_log_bytes": 10485760,
        "queue_max_length": 100,
        "queue_ttl_sec": 120,
        "workspace_cap_mb": 256,
        "artifact_ttl_hours": 24,
        "supported_spec_versions": ["1.0", "1.1"],
        "interactive_supported": True,
        "egress_allowlist_supported": False,
        "notes": None,
    }.items() <= native.items()
    assert native["default_images"][0].startswith("host@sha256:")


def test_the_store_is_told_at_the_top_and_for_each(ada: Service) -> None:
    found = ada.get("/runtimes").json()
    assert found["store_mode"] == "sqlite"
    assert {runtime["store_mode"] for runtime in found["runtimes"]} == {"sqlite"}


def test_what_is_enforced_here(ada: Service) -> None:
    native = ada.get("/runtimes").json()["runtimes"][0]
    isolation = native["isolation"]
    assert isolation["boundary_class"] == native["boundary_class"] == "namespaces"
    assert isolation["network_policies"] == ["deny_all"]
    enforced = {fact["guarantee"]: fact["enforced"] for fact in isolation["guarantees"]}
    assert {"file_system", "network", "memory", "pids", "syscall_filter"} <= enforced.keys()
    assert native["untrusted_eligible"] == all(enforced.values())
    assert all(fact["how"] for fact in isolation["guarantees"])


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_not_there_is_listed_with_the_reason(ada: Service, name: str) -> None:
    runtimes = {runtime["name"]: runtime for runtime in ada.get("/runtimes").json()["runtimes"]}
    assert runtimes[name]["available"] is False
    assert runtimes[name]["untrusted_eligible"] is False
    assert name in runtimes[name]["reason"].lower()
    assert runtimes[name]["notes"] == runtimes[name]["reason"]


@pytest.mark.parametrize("name", ABSENT)
def test_asking_for_what_is_not_there(ada: Service, name: str) -> None:
    session = ada.post("/sessions", json={"spec_version": "1.0", "runtime": name})
    for response in (ada.submit(runtime=name), session):
        error = error_of(response, 503, "runtime_unavailable")
        assert error["message"] == f"Requested runtime '{name}' is not available"
        suggested = ["native"] if RUNTIME == "native" else ["native", RUNTIME]
        assert error["details"] == {"runtime": name, "available": False, "suggested": suggested}


def test_settings_are_told(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(
        **NO_CELLS,
        store_backend="memory",
        max_cpu="2",
        max_mem_mb="1024",
        max_upload_mb="5",
        max_log_bytes="1000",
        queue_max_length="7",
        queue_ttl_sec="9",
        workspace_cap_mb="32",
        artifact_ttl_hours="1",
        supported_spec_versions='["1.0"]',
    )
    with Service.of(server) as client:
        found = client.get("/runtimes").json()
        native = found["runtimes"][0]
        assert {
            "max_cpu": 2,
            "max_mem_mb": 1024,
            "max_upload_mb": 5,
            "max_log_bytes": 1000,
            "queue_max_length": 7,
            "queue_ttl_sec": 9,
            "workspace_cap_mb": 32,
            "artifact_ttl_hours": 1,
            "supported_spec_versions": ["1.0"],
            "store_mode": "memory",
        }.items() <= native.items()
        error = error_of(client.submit(spec_version="1.1"), 400, "invalid_spec_version")
        assert error["details"] == {"supported": ["1.0"], "provided": "1.1"}
        run = client.run(resources={"cpu": 4, "memory_mb": 4096})
        assert run["resource_usage"]["limits"]["cpu"] == 2
        assert run["resource_usage"]["limits"]["memory_mb"] == 1024


def test_a_server_that_runs_nothing_says_so(start_server: Callable[..., RunningServer]) -> None:
    with Service.of(start_server(**NO_CELLS, enable_execution="false")) as client:
        found = client.get("/runtimes").json()
        assert found["execution_enabled"] is False
        assert not any(runtime["available"] for runtime in found["runtimes"])
        assert found["runtimes"][0]["notes"] == "execution is turned off on this server"
        error_of(client.submit(), 403, "forbidden")
