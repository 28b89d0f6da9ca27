"""Which runsc is used, by which platform, and what is said where there is none that works."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import NO_CELLS, RunningServer
from tests.api.interpreter.service import Service, error_of
from tests.patience import patient
from tests.runtimes import NO_ENGINE
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.errors import PolicyUnsupported, RuntimeUnavailable
from tidebox.model.box import BoxSpec
from tidebox.runtime.gvisor import runsc
from tidebox.runtime.gvisor import runtime as gvisor

# Says what it is as runsc does, notes that it was called, and hangs instead of booting on one platform.
PRETENDER = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
--version) echo "runsc version {version}" ;;
flags) {real} flags ;;
*--platform=kvm*) sleep 1000 ;;
*) exec {real} "$@" ;;
esac
"""


def pretender(directory: Path, real: str, text: str = PRETENDER) -> tuple[str, Path]:
    """A runsc whose kvm never comes to an end, or another one, and where it notes how it was called."""
    log = directory / "calls"
    program = directory / "runsc"
    program.write_text(text.format(log=log, real=real, version="20990101.0"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    log.touch()
    return str(program), log


def engine_with(directory: Path, path: str, *platforms: str) -> Engine:
    settings = load_settings(
        data_dir=directory / "data", default_runtime="gvisor", gvisor_runsc=path, gvisor_platforms=platforms
    )
    return Engine(settings, pool=False)


def test_it_is_looked_for_where_the_settings_say(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="SANDBOX_GVISOR_RUNSC"):
        runsc.find(str(tmp_path / "runsc"), {})
    (tmp_path / "runsc").write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(RuntimeUnavailable, match="there is no program"):
        runsc.find(str(tmp_path / "runsc"), {})  # it cannot be executed
    (tmp_path / "runsc").chmod(0o755)
    assert runsc.find(str(tmp_path / "runsc"), {}) == str(tmp_path / "runsc")
    assert runsc.find(None, {"PATH": str(tmp_path)}) == str(tmp_path / "runsc")


async def test_what_is_no_runsc_is_not_used(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, "/bin/true")
    try:
        report = await engine.probe()
        assert not report.available
        assert report.reason == "gvisor: /bin/true is no runsc that can be used"
    finally:
        await engine.close()


async def test_a_platform_that_hangs_is_given_up(
    tmp_path: Path, runsc_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gvisor, "_BOOT_SECONDS", 3.0)
    path, log = pretender(tmp_path, runsc_path)
    engine = engine_with(tmp_path, path, "kvm")
    try:
        began = time.monotonic()
        report = await engine.runtime.probe()
        assert time.monotonic() - began < patient(20)
        assert not report.available
        assert report.reason is not None
        assert "kvm: nothing came of it within 3 s" in report.reason
        assert "--platform=kvm" in log.read_text()
        with pytest.raises(RuntimeUnavailable, match="boots nothing here"):
            await engine.runtime.open(BoxSpec())
    finally:
        await engine.close()
    assert not list((tmp_path / "data" / "gvisor" / "run").iterdir())


async def test_the_first_platform_that_boots_is_used(
    tmp_path: Path, runsc_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = pretender(tmp_path, runsc_path)
    monkeypatch.setattr(gvisor, "_BOOT_SECONDS", patient(10))
    engine = engine_with(tmp_path, path, "no-such-platform", *runsc.PLATFORMS)
    try:
        report = await engine.runtime.probe()
        assert report.available
        assert report.facts["platform"] in runsc.PLATFORMS
        assert engine.runtime.version == "20990101.0"
    finally:
        await engine.close()


async def test_egress_and_packages_are_refused_with_the_reason(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, "/nonexistent/runsc")
    try:
        with pytest.raises(PolicyUnsupported, match="sandboxes have no network"):
            await engine.runtime.open(BoxSpec(leads_out=True))
        assert not engine.runtime.features.layers
    finally:
        await engine.close()


def test_a_server_asks_nothing_of_it_before_somebody_else_does(
    tmp_path: Path, runsc_path: str, start_server: Callable[..., RunningServer]
) -> None:
    path, log = pretender(tmp_path, runsc_path)
    server = start_server(**NO_CELLS, **NO_ENGINE, default_runtime="native", gvisor_runsc=path)
    with Service.of(server) as client:
        assert client.run(["true"])["phase"] == "completed"
        assert client.get("/health").json()["runtimes"]["gvisor"] is True
        assert log.read_text() == ""
        assert not (server.data_dir / "gvisor").exists()
        deadline = time.monotonic() + patient(60)
        while not (found := told(client))["isolation"]["guarantees"]:
            assert time.monotonic() < deadline
        assert "flags" in log.read_text()
    assert found["available"] is True
    assert found["boundary_class"] == "user_kernel"
    assert found["untrusted_eligible"] is all(fact["enforced"] for fact in found["isolation"]["guarantees"])
    assert server.stop() == 0
    assert "never retrieved" not in server.log


def told(client: Service) -> dict[str, Any]:
    """What a server says of gVisor."""
    found: dict[str, Any] = next(
        item for item in client.get("/runtimes").json()["runtimes"] if item["name"] == "gvisor"
    )
    return found


def test_untrusted_runs_get_it_where_the_policy_demands(
    runsc_path: str, start_server: Callable[..., RunningServer]
) -> None:
    server = start_server(
        **NO_CELLS, **NO_ENGINE, default_runtime="native", gvisor_runsc=runsc_path, untrusted_boundary="user_kernel"
    )
    with Service.of(server) as client:
        run_id = client.start(["uname", "-r"], trust_level="untrusted")
        found = client.wait(run_id, seconds=patient(120))
        assert (found["phase"], found["runtime"]) == ("completed", "gvisor")
        refused = client.submit(["true"], trust_level="untrusted", runtime="native")
        assert error_of(refused, 422, "policy_unsupported")["details"]["required"] == "user_kernel"


def test_a_server_that_refuses_to_start_leaves_no_word_of_its_probes(
    tmp_path: Path, runsc_path: str, start_server: Callable[..., RunningServer]
) -> None:
    path, _ = pretender(tmp_path, runsc_path)
    settings = {**NO_CELLS, **NO_ENGINE, "default_runtime": "native", "gvisor_runsc": path}
    server = start_server(**settings)
    with pytest.raises(AssertionError, match="the server ended with") as refusal:
        start_server("--port", str(server.address[1]), **settings)
    assert "never retrieved" not in str(refusal.value)


def wait_for_a_bundle(data_dir: Path) -> None:
    """Wait until a sandbox is about to be started."""
    while not list(data_dir.glob("gvisor/run/*/boxes/*")):
        time.sleep(0.02)


async def test_probes_that_are_given_up_leave_nothing(tmp_path: Path, runsc_path: str) -> None:
    path, _ = pretender(tmp_path, runsc_path)
    engine = engine_with(tmp_path, path, "kvm")
    probing = asyncio.get_running_loop().create_task(engine.runtime.probe())
    await asyncio.to_thread(wait_for_a_bundle, tmp_path / "data")
    await engine.close()
    report = await probing
    assert not report.available
    assert not list((tmp_path / "data" / "gvisor" / "run").iterdir())


# Ends its connection at once, as a sandbox does that cannot start, and does not end itself.
SILENT = """#!/bin/sh
case "$*" in
--version) echo "runsc version {version}" ;;
flags) {real} flags ;;
*) exec </dev/null >/dev/null; exec sleep 1000 ;;
esac
"""


async def test_one_that_hangs_up_and_does_not_end_is_told(
    tmp_path: Path, runsc_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gvisor, "_END_SECONDS", 1.0)
    path, _ = pretender(tmp_path, runsc_path, SILENT)
    engine = engine_with(tmp_path, path, "systrap")
    try:
        report = await engine.runtime.probe()
        assert not report.available
        assert report.reason is not None
        assert "systrap: a sandbox of gVisor did not start" in report.reason
    finally:
        await engine.close()


def test_it_gets_nothing_of_the_servers_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_TOKEN_SECRET", "secret")
    program = tmp_path / "runsc"
    program.write_text(f"#!/bin/sh\nenv >> {tmp_path}/environment\necho runsc version 1\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeUnavailable, match="is no runsc"):
        runsc.look(str(program))
    told = (tmp_path / "environment").read_text()
    assert "PATH=" in told
    assert "secret" not in told
