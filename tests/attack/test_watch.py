"""What is planted is found: growth and stalls, with the step that did it. What the machine explains is not."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.attack import campaign, counts, grammars
from tests.attack.__main__ import refused
from tests.attack.campaign import Plan, Report, attack
from tests.attack.counts import grown
from tests.attack.grammars import Grammar
from tests.attack.latency import Reading, stalls
from tests.attack.target import Target
from tests.boxes import is_root

Act = Callable[[random.Random, Target], Awaitable[list[str]]]
Campaigner = Callable[[Act], Report]


@pytest.fixture
def campaigner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Campaigner:
    """A short campaign of one planted step."""

    def run(act: Act) -> Report:
        monkeypatch.setitem(grammars.GRAMMARS, "planted", Grammar("planted", act))
        monkeypatch.setattr(campaign, "SETTLE_SECONDS", 1.0)
        monkeypatch.setattr(campaign, "HEARTBEAT_SECONDS", 0.0)
        plan = Plan(5, seconds=3.0, grammars=("planted",), most_programs=50, batch_seconds=2.0)
        return asyncio.run(attack(plan, tmp_path, lambda _: None))

    return run


def test_nothing_is_found_where_nothing_happens(campaigner: Campaigner) -> None:
    carried_out = []

    async def nothing(chance: random.Random, target: Target) -> list[str]:
        carried_out.append(chance)
        await asyncio.sleep(0.2)
        return []

    report = campaigner(nothing)
    assert not [finding for finding in report.findings if finding.certain]
    # Without the one that warms up; one that a stall was put down to for a moment was carried out again.
    assert 0 < report.steps["planted"] <= len(carried_out) - 1
    assert {reading.kind for reading in report.readings} == {"healthz", "hello", "echo", "bare", "sleep"}


def test_connections_that_stay_are_found(campaigner: Campaigner) -> None:
    with contextlib.ExitStack() as kept:

        async def keep(chance: random.Random, target: Target) -> list[str]:
            # One that was used is kept open for the next request.
            for _ in range(20):
                connection = kept.enter_context(socket.create_connection(target.address))
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.sleep(1.0)
            return []

        report = campaigner(keep)
    found = [finding for finding in report.findings if finding.what.startswith("server descriptors")]
    assert [finding.certain for finding in found] == [True]
    assert found[0].steps[0][0] == "planted"
    assert "--seed 5 --only planted --step" in "".join(found[0].lines(5))
    assert report.failed


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Counts of the kernel that only this test changes: real ones would be seen by other campaigns on the machine."""
    planted = {"slab planted MiB": 0.0}
    monkeypatch.setattr(counts, "of_machine", lambda: dict(planted))
    return planted


def test_what_the_kernel_keeps_is_found(campaigner: Campaigner, objects: dict[str, float]) -> None:
    async def leak(chance: random.Random, target: Target) -> list[str]:
        objects["slab planted MiB"] += 20
        await asyncio.sleep(1.0)
        return []

    report = campaigner(leak)
    assert [(finding.certain, finding.steps[0][0]) for finding in report.findings] == [(True, "planted")]
    assert report.findings[0].what.startswith("slab planted MiB 20 -> ")
    assert report.failed


def test_what_others_make_the_kernel_keep_is_not_put_down_to_us(
    campaigner: Campaigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(chance: random.Random, target: Target) -> list[str]:
        await asyncio.sleep(1.0)
        return []

    monkeypatch.setattr(counts, "of_machine", lambda: {"slab planted MiB": 20 * time.monotonic()})
    report = campaigner(nothing)
    assert report.findings
    assert not any(finding.certain for finding in report.findings)


def test_a_server_that_stands_still_is_found(campaigner: Campaigner) -> None:
    async def stop(chance: random.Random, target: Target) -> list[str]:
        target.server.signal(signal.SIGSTOP)
        await asyncio.sleep(2.0)
        target.server.signal(signal.SIGCONT)
        return []

    report = campaigner(stop)
    certain = [finding.what for finding in report.findings if finding.certain]
    assert any(what.startswith("neighbour's healthz took") for what in certain)
    assert report.failed


def test_what_a_step_tells_is_told_once(campaigner: Campaigner) -> None:
    async def complain(chance: random.Random, target: Target) -> list[str]:
        await asyncio.sleep(0.2)
        return ["answered 500"]

    report = campaigner(complain)
    assert [finding.what for finding in report.findings].count("answered 500") == 1


def test_a_stall_that_the_machine_explains_is_none() -> None:
    slow = Reading("healthz", 10.0, 2.5)
    assert [stall.reading for stall in stalls([slow])] == [slow]
    assert not stalls([slow, Reading("echo", 10.5, 1.8)])
    assert stalls([slow, Reading("echo", 20.0, 1.8)]), "at another time"
    assert stalls([slow, Reading("bare", 10.0, 1.8)]), "what does something else explains nothing"
    assert not stalls([Reading("hello", 10.0, 2.5), Reading("bare", 13.0, 1.8)])
    assert not stalls([Reading("echo", 10.0, 9.0), Reading("healthz", 10.0, 0.9)])


def test_a_neighbour_who_is_not_served_is_a_stall() -> None:
    wrong = Reading("hello", 1.0, 0.01, "ValueError: SANDBOX_OVERLOADED")
    assert "SANDBOX_OVERLOADED" in str(stalls([wrong])[0])


def test_growth_within_its_tolerance_is_none() -> None:
    before = {"server descriptors": 20.0, "slab file_lock_cache MiB": 0.1, "unfinished files": 0.0}
    assert not grown(before, {"server descriptors": 30.0, "slab file_lock_cache MiB": 4.0, "unfinished files": 0.0})
    after = {"server descriptors": 60.0, "slab file_lock_cache MiB": 20.0, "unfinished files": 1.0}
    assert [growth.name for growth in grown(before, after)] == list(after)


def test_kernel_resources_are_not_attacked_where_that_may_stop_the_machine() -> None:
    assert "virtual machine" in (refused("6.18.44", virtual_machine=False, force=False) or "")
    assert refused("no version", virtual_machine=False, force=False)
    assert refused("6.18.44", virtual_machine=True, force=False) is None
    assert refused("6.18.44", virtual_machine=False, force=True) is None
    assert refused("6.1.0-40-cloud", virtual_machine=False, force=False) is None


def test_kernel_counts_are_there_for_root() -> None:
    found = counts.of_machine()
    assert {"mounts", "terminals", "sockets", "pages of TCP"} <= set(found)
    if is_root():
        assert "slab file_lock_cache MiB" in found
        assert "BPF programs" in found
