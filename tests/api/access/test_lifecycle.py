"""The life of a sandbox: idle, suspended, expired, lost and made anew."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.access.clients import Client, error_of, found, use, wait_for
from tests.api.conftest import NO_CELLS, RunningServer
from tests.patience import patient
from tidebox.broker.sandboxes.leases import LeaseTerms, due
from tidebox.model.sandbox import TRANSITIONS, Binding, SandboxState, Scope, ScopeType

FAST = {"reaper_interval_sec": "0.1", "rate_limit": "off", **NO_CELLS}


def make_binding(state: SandboxState = SandboxState.ACTIVE) -> Binding:
    return Binding(
        id="b",
        scope=Scope(ScopeType.THREAD, "t"),
        user="ada",
        provider="local",
        state=state,
        created_at=0.0,
        active_at=100.0,
        lease_expires_at=500.0,
        expires_at=1000.0,
    )


@pytest.mark.parametrize(
    ("state", "now", "in_use", "following"),
    [
        ("active", 100.0, False, None),
        ("active", 149.0, False, None),
        ("active", 150.0, False, "idle"),
        ("active", 150.0, True, None),
        ("idle", 151.0, False, "suspended"),
        ("idle", 151.0, True, None),
        ("suspended", 159.0, False, None),
        ("suspended", 160.0, False, "terminated"),
        ("active", 600.0, True, None),
        ("failed", 120.0, False, None),
        ("failed", 160.0, False, "terminated"),
        ("active", 1000.0, True, "terminated"),
    ],
)
def test_the_next_state_that_is_due(state: str, now: float, in_use: bool, following: str | None) -> None:
    found = due(make_binding(SandboxState(state)), LeaseTerms(idle_timeout=50.0, grace=10.0), now, in_use=in_use)
    assert (found.value if found is not None else None) == following


def test_a_lease_ends_before_the_idle_time() -> None:
    terms = LeaseTerms(idle_timeout=5000.0, grace=10.0)
    assert due(make_binding(), terms, 509.0, in_use=False) is None
    assert due(make_binding(), terms, 510.0, in_use=False) is SandboxState.TERMINATED
    assert due(make_binding(), terms, 510.0, in_use=True) is None


def test_every_sandbox_state_can_be_terminated() -> None:
    assert set(TRANSITIONS) == set(SandboxState)
    assert TRANSITIONS[SandboxState.TERMINATED] == frozenset()
    for state in set(SandboxState) - {SandboxState.TERMINATED}:
        assert SandboxState.TERMINATED in TRANSITIONS[state]


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "access.md").read_text()
    for state, following in TRANSITIONS.items():
        if following:
            names = ", ".join(f"`{other.value}`" for other in SandboxState if other in following)
            assert f"| `{state.value}` | {names} |\n" in page


BEATING = "(while :; do date +%s.%N >> beats; sleep 0.02; done) >/dev/null 2>&1 &"


def beats(server: RunningServer, token: str) -> list[float]:
    """When the program that was left behind did something."""
    return [float(line) for line in use(server, token, command="cat beats").json()["stdout"].split()]


def longest_pause(moments: list[float]) -> float:
    return max(after - before for before, after in itertools.pairwise(moments))


def test_idle_sandboxes_are_frozen_and_go_on_when_used(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(idle_timeout_sec="1.5", reaper_grace_sec="60", **FAST)
    with Client(server) as client:
        session = client.ensure("t")
        use(server, session["token"], command=BEATING)
        wait_for(lambda: client.state(session["session_id"]) == "suspended")
        time.sleep(1.5)
        assert client.state(session["session_id"]) == "suspended"
        before = beats(server, session["token"])
        assert client.state(session["session_id"]) == "active"
        wait_for(lambda: len(beats(server, session["token"])) > len(before) + 5)
        assert longest_pause(beats(server, session["token"])) > 1.4, "it did not run while it was frozen"
        client.of_session("DELETE", session["session_id"])


def test_what_is_in_use_is_not_idle(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(idle_timeout_sec="4", reaper_grace_sec="1", **FAST)
    with Client(server) as client:
        session = client.ensure("t")
        assert use(server, session["token"], command="sleep 7; echo done").json()["stdout"] == "done\n"


def test_idle_sandboxes_end_after_the_grace(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(idle_timeout_sec="0.3", reaper_grace_sec="0.3", pool_sandboxes="0", **FAST)
    with Client(server) as client:
        session = client.ensure("t")
        path = session["session_id"]
        wait_for(lambda: client.of_session("GET", path).status_code == 410)
        error_of(client.of_session("POST", path, "/refresh"), 410, "SESSION_EXPIRED")
        error_of(client.of_session("POST", path, "/refresh-token"), 410, "BINDING_EXPIRED")
        error_of(client.of_session("POST", path, "/heartbeat"), 410, "BINDING_EXPIRED")
        error_of(use(server, session["token"]), 401, "UNAUTHENTICATED")
        wait_for(lambda: not list((server.data_dir / "run" / "agents").glob("*.sock")))
        again = client.ensure("t")
        assert again["session_id"] != session["session_id"]
        assert not again["recreated"]


def test_heartbeats_keep_a_sandbox(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(idle_timeout_sec="2", lease_ttl_sec="2", reaper_grace_sec="0.1", **FAST)
    with Client(server) as client:
        session = client.ensure("t")
        for _ in range(6):
            time.sleep(0.5)
            found(client.of_session("POST", session["session_id"], "/heartbeat"))
        assert client.ensure("t")["sandbox"]["id"] == session["sandbox"]["id"]


def test_a_shared_sandbox_lives_as_long_as_one_needs_it(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(idle_timeout_sec="1", reaper_grace_sec="2", pool_sandboxes="0", **FAST)
    with Client(server) as client:
        left = client.ensure("left")
        needed = client.ensure("needed", sandbox_hint=left["sandbox"]["id"])
        use(server, needed["token"], command=BEATING)

        def is_over() -> bool:
            found(client.of_session("POST", needed["session_id"], "/heartbeat"))
            return client.of_session("GET", left["session_id"]).status_code == 410

        wait_for(is_over)
        error_of(use(server, left["token"]), 401, "UNAUTHENTICATED")
        assert longest_pause(beats(server, needed["token"])) < 1.5, "it was frozen"
        wait_for(lambda: client.of_session("GET", needed["session_id"]).status_code == 410)
        wait_for(lambda: not list((server.data_dir / "run" / "agents").glob("*.sock")))


def test_a_sandbox_in_use_ends_at_its_hard_ttl(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(hard_ttl_sec="1.5", **FAST)
    with Client(server) as client:
        session = client.ensure("t")
        started = time.monotonic()
        cut_off = use(server, session["token"], command="sleep 30")
        assert time.monotonic() - started < 25
        assert cut_off.status_code != 200 or cut_off.json()["exit_code"] != 0
        # A token ends at a whole second, so the command may have ended a moment before the sandbox does.
        deadline = time.monotonic() + patient(10)
        while (refreshed := client.of_session("POST", session["session_id"], "/refresh")).status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        error_of(refreshed, 410, "SESSION_EXPIRED")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_bindings_survive_a_restart_and_sandboxes_do_not(
    start_server: Callable[..., RunningServer], tmp_path: Path, how: signal.Signals
) -> None:
    server = start_server(data_dir=tmp_path / "d", **FAST)
    with Client(server) as client:
        before = client.ensure("t")
        use(server, before["token"], command="echo kept > note")
        released = client.ensure("other")
        client.of_session("DELETE", released["session_id"])
    server.stop(how)
    server = start_server(data_dir=tmp_path / "d", **FAST)
    with Client(server) as client:
        assert client.state(before["session_id"]) == "failed"
        error_of(use(server, before["token"]), 401, "UNAUTHENTICATED")
        error_of(client.of_session("POST", before["session_id"], "/refresh"), 410, "SESSION_EXPIRED")
        error_of(client.of_session("GET", released["session_id"]), 404, "BINDING_NOT_FOUND")
        after = found(client.negotiate(thread_id="t", mode="get"))
        assert after["recreated"] is True
        assert after["session_id"] == before["session_id"]
        assert after["sandbox"]["id"] != before["sandbox"]["id"]
        assert use(server, after["token"], command="ls").json()["stdout"] == ""
        assert client.ensure("t")["recreated"] is False


def test_a_sandbox_that_dies_is_made_anew(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(pool_sandboxes="0", **FAST)
    with Client(server) as client:
        before = client.ensure("t")
        use(server, before["token"], command="sleep 987 >/dev/null 2>&1 &")
        # It is the shell's copy of itself until it has become the program.
        wait_for(lambda: bool(_processes(b"sleep\x00987\x00")))
        (inside,) = _processes(b"sleep\x00987\x00")
        status = (inside / "status").read_text()
        agent = int(status.partition("PPid:")[2].split()[0])
        os.kill(agent, signal.SIGKILL)
        wait_for(lambda: client.state(before["session_id"]) == "failed")
        error_of(use(server, before["token"]), 401, "UNAUTHENTICATED")
        after = client.ensure("t")
        assert after["recreated"] is True
        assert after["session_id"] == before["session_id"]
        assert use(server, after["token"]).status_code == 200


def _processes(command: bytes) -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _command(entry) == command]


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""
