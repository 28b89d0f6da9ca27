"""The policy: defaults, bounds that only narrow, trust, and the fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.interpreter.service import Service, error_of
from tidebox.broker.runs.planning import Planner, Requester
from tidebox.errors import InvalidRequest, InvalidSpecVersion, PolicyUnsupported
from tidebox.model.egress import make_allowlist
from tidebox.model.policy import (
    TRUST_PROFILES,
    Policy,
    ResourceRequest,
    bounds_of,
    check_spec_version,
    hashed_policy,
    policy_hash,
    terms_of,
)
from tidebox.model.requested_egress import EgressRules
from tidebox.model.runtimes import Features, ResolvedImage, RuntimeCatalog, RuntimeInfo

DEFAULT_HASH = "55910d18f4d8ed7f0db0cad024ba19b5534dbea5bba00953f75f131a071af2c9"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "interpreter.md"

# The settings that the document lists, in its own order.
LISTED = [
    "SANDBOX_DEFAULT_RUNTIME",
    "SANDBOX_NETWORK_DEFAULT",
    "SANDBOX_MAX_UPLOAD_MB",
    "SANDBOX_MAX_LOG_BYTES",
    "SANDBOX_WORKSPACE_CAP_MB",
    "SANDBOX_ARTIFACT_TTL_HOURS",
    "SANDBOX_MAX_ARTIFACT_BYTES_PER_RUN_MB",
    "SANDBOX_MAX_ARTIFACT_BYTES_PER_USER_MB",
    "SANDBOX_MAX_CPU",
    "SANDBOX_MAX_MEM_MB",
    "SANDBOX_PIDS_LIMIT",
    "SANDBOX_ULIMIT_NOFILE",
    "SANDBOX_ULIMIT_NPROC",
    "SANDBOX_DEFAULT_STARTUP_TIMEOUT_SEC",
    "SANDBOX_DEFAULT_EXEC_TIMEOUT_SEC",
    "SANDBOX_CANCEL_GRACE_SECONDS",
    "SANDBOX_ENABLE_EXECUTION",
    "SANDBOX_BACKGROUND_EXECUTION",
    "SANDBOX_DOCKER_SECCOMP",
    "SANDBOX_DOCKER_APPARMOR_PROFILE",
    "SANDBOX_SUPPORTED_SPEC_VERSIONS",
]


def test_the_fingerprint_of_the_default_policy() -> None:
    assert policy_hash(Policy()) == DEFAULT_HASH


def test_the_fingerprint_is_made_of_the_listed_settings_and_no_others() -> None:
    assert sorted(hashed_policy(Policy())) == sorted(LISTED)


def test_the_worked_example_of_the_page() -> None:
    text = PAGE.read_text()
    document = re.search(r"```\n(\{\"SANDBOX_.*\})\n```", text)
    assert document is not None
    digest = hashlib.sha256(b"tldw.sandbox.policy:v1\n" + document[1].encode()).hexdigest()
    assert digest == DEFAULT_HASH
    assert digest in text
    assert json.loads(document[1]) == hashed_policy(Policy())


def test_what_is_in_the_fingerprint_changes_it_and_nothing_else_does() -> None:
    for item in dataclasses.fields(Policy):
        value = getattr(Policy(), item.name)
        if isinstance(value, bool):
            other: Any = not value
        elif isinstance(value, int | float):
            other = value + 1
        elif isinstance(value, tuple):
            other = (*value, "2.0")
        else:
            other = "other"
        changed = policy_hash(dataclasses.replace(Policy(), **{item.name: other})) != DEFAULT_HASH
        assert changed == bool(item.metadata.get("hashed")), item.name


def test_one_and_one_point_zero_are_one_number() -> None:
    assert policy_hash(dataclasses.replace(Policy(), max_cpu=4)) == policy_hash(Policy())


def test_the_default_limits() -> None:
    terms = terms_of(Policy(), ResourceRequest())
    assert terms.shown() == {
        "cpu": 1,
        "memory_mb": 512,
        "pids": 256,
        "nofile": 1024,
        "startup_timeout_sec": 20,
        "timeout_sec": 60,
    }
    assert (terms.network_policy, terms.trust_level) == ("deny_all", "standard")


def test_a_machine_with_less_than_the_default_gives_what_it_has() -> None:
    terms = terms_of(Policy(max_cpu=0.5, max_mem_mb=128, max_exec_timeout_sec=10), ResourceRequest())
    assert (terms.cpu, terms.memory_mb, terms.timeout_sec) == (0.5, 128, 10)


numbers = st.floats(min_value=0.01, max_value=1e9, allow_nan=False)
policies = st.builds(
    Policy,
    max_cpu=st.floats(0.01, 1024),
    max_mem_mb=st.integers(8, 10**6),
    pids_limit=st.integers(4, 32768),
    ulimit_nproc=st.integers(4, 32768),
    max_exec_timeout_sec=st.floats(0.1, 86400),
    max_startup_timeout_sec=st.floats(0.1, 86400),
)
requests = st.builds(
    ResourceRequest,
    cpu=st.none() | numbers,
    memory_mb=st.none() | st.integers(1, 10**9),
    pids=st.none() | st.integers(1, 10**9),
    timeout_sec=st.none() | numbers,
    startup_timeout_sec=st.none() | numbers,
    trust_level=st.none() | st.sampled_from(sorted(TRUST_PROFILES)),
)


@given(policies, requests, st.none() | requests)
def test_nothing_that_is_asked_for_widens_the_policy(
    policy: Policy, request: ResourceRequest, session: ResourceRequest | None
) -> None:
    terms = terms_of(policy, request, session)
    assert terms.cpu <= policy.max_cpu
    assert terms.memory_mb <= policy.max_mem_mb
    assert terms.pids <= min(policy.pids_limit, policy.ulimit_nproc)
    assert terms.timeout_sec <= policy.max_exec_timeout_sec
    assert terms.startup_timeout_sec <= policy.max_startup_timeout_sec


@given(policies, requests, requests)
def test_a_run_is_never_trusted_more_than_its_session(
    policy: Policy, request: ResourceRequest, session: ResourceRequest
) -> None:
    trust = terms_of(policy, request, session).trust_level
    levels = list(TRUST_PROFILES)
    for asked in (request.trust_level, session.trust_level):
        assert asked is None or levels.index(trust) >= levels.index(asked)


@pytest.mark.parametrize("trust", TRUST_PROFILES)
def test_profiles_only_narrow(trust: str) -> None:
    wide, narrow = Policy(), bounds_of(Policy(), trust)
    assert narrow.cpu <= wide.max_cpu
    assert narrow.memory_mb <= wide.max_mem_mb
    assert narrow.pids <= wide.pids_limit
    assert narrow.timeout_sec <= wide.max_exec_timeout_sec


def test_what_cannot_be_enforced_is_refused() -> None:
    planner = Planner(Policy(), RuntimeCatalog(lambda runtime, image, user: ResolvedImage(image, "")), EgressRules())
    able = RuntimeInfo(name="native", available=True, boundary="namespaces", features=Features(egress=True))
    unable = RuntimeInfo(name="native", available=True, boundary="namespaces")
    user = Requester("ada", owner=False)
    for runtime in (able, unable):
        with pytest.raises(PolicyUnsupported):
            planner.way_out(runtime, "allowlist", [None], user)
    listed = Planner(
        planner.policy,
        RuntimeCatalog(lambda runtime, image, user: ResolvedImage(image, "")),
        EgressRules(server=make_allowlist(["a.test"])),
    )
    assert listed.way_out(able, "allowlist", [None], user) is not None
    with pytest.raises(PolicyUnsupported):
        listed.way_out(unable, "allowlist", [None], user)
    with pytest.raises(InvalidRequest):
        terms_of(Policy(), ResourceRequest(network_policy="allowlist"), ResourceRequest(network_policy="deny_all"))
    with pytest.raises(InvalidRequest):
        terms_of(Policy(), ResourceRequest(trust_level="boundless"))


def test_versions() -> None:
    check_spec_version(Policy(), "1.1")
    with pytest.raises(InvalidSpecVersion) as caught:
        check_spec_version(Policy(), "0.9")
    assert caught.value.details == {"supported": ["1.0", "1.1"], "provided": "0.9"}


# Over the server.


def test_limits_are_clamped_and_told(ada: Service) -> None:
    run = ada.run(resources={"cpu": 900, "memory_mb": 1000000, "pids": 30000}, timeout_sec=100000)
    assert run["resource_usage"]["limits"] == {
        "cpu": 4,
        "memory_mb": 8192,
        "pids": 256,
        "nofile": 1024,
        "startup_timeout_sec": 20,
        "timeout_sec": 900,
    }


def test_an_untrusted_run_gets_less(ada: Service) -> None:
    run = ada.run(trust_level="untrusted", resources={"cpu": 4, "memory_mb": 8192}, timeout_sec=900)
    limits = run["resource_usage"]["limits"]
    assert (limits["cpu"], limits["memory_mb"], limits["pids"], limits["timeout_sec"]) == (1, 512, 64, 60)
    assert run["trust_level"] == "untrusted"


def test_limits_hold_in_the_box(ada: Service) -> None:
    code = "import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE))"
    run_id = ada.start(["python", "-c", code])
    ada.wait(run_id)
    assert ada.log(run_id) == "(1024, 1024) (1, 1)\n"


@pytest.mark.parametrize("place", ["/workspace", "/tmp"])
def test_files_of_a_run_cannot_be_executed(ada: Service, place: str) -> None:
    script = f"cp /bin/true {place}/x && {place}/x"
    run_id = ada.start(["sh", "-c", script])
    assert ada.wait(run_id)["exit_code"] == 126
    assert "Permission denied" in ada.log(run_id)


def test_the_network_is_not_there(ada: Service) -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 1)"
    run_id = ada.start(["python", "-c", code])
    assert ada.wait(run_id)["phase"] == "failed"
    assert "Network is unreachable" in ada.log(run_id)


def test_an_allowlist_is_refused(ada: Service) -> None:
    error_of(ada.submit(network_policy="allowlist"), 422, "policy_unsupported")
    error_of(
        ada.post("/sessions", json={"spec_version": "1.0", "network_policy": "allowlist"}), 422, "policy_unsupported"
    )


def test_sessions_and_runs_tell_the_fingerprint(ada: Service) -> None:
    expected = ada.get("/runtimes").json()["policy_hash"]
    assert re.fullmatch("[0-9a-f]{64}", expected)
    assert ada.run()["policy_hash"] == expected
    session = ada.post("/sessions", json={"spec_version": "1.0"}).json()
    assert session["policy_hash"] == expected
