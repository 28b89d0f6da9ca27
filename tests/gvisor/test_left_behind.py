"""What many runs leave on a machine: the agent's files, and nothing else; also after a server that was killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import Service
from tests.boxes import cgroups_of
from tests.patience import patient
from tests.runtimes import NO_ENGINE, RUNTIME

# All of them where the suites are run on gVisor; elsewhere a few.
RUNS = 100 if RUNTIME == "gvisor" else 12
AT_ONCE = 4
ENDINGS = (
    (["python3", "-c", "print('hello')"], "completed"),
    (["sh", "-c", "echo file > left; (setsid sleep 100 &); exit 3"], "failed"),
    (["python3", "-c", "import os; os.kill(os.getpid(), 9)"], "failed"),
    (["/no/such/program"], "failed"),
)


def processes_of(data_dir: Path) -> list[int]:
    """Every process of this machine that was started with the path of something in a data directory of a server."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.fsencode(data_dir / "gvisor") in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def left(data_dir: Path, server: int) -> dict[str, list[str]]:
    """What there is of sandboxes."""
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(data_dir) in line]
    # Not listed by pathlib: what is being removed is nothing.
    leaves = [place for group in cgroups_of(server) for place, _, _ in os.walk(group) if place != str(group)]
    files = [path for path in (data_dir / "gvisor" / "run").glob("*/*/*") if path.parent.name in ("boxes", "state")]
    found: dict[str, Sequence[object]] = {
        "processes": processes_of(data_dir),
        "mounts": mounts,
        "control groups": leaves,
        "files": files,
    }
    return {name: [str(item) for item in items] for name, items in found.items() if items}


def wait_until_nothing_is_left(data_dir: Path, server: int) -> None:
    deadline = time.monotonic() + patient(60)
    while found := left(data_dir, server):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


@pytest.mark.timeout(400)
def test_runs_and_a_killed_server_leave_nothing(
    runsc_path: str, start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    settings = {
        "default_runtime": "gvisor",
        "gvisor_runsc": runsc_path,
        "gvisor_warm": "0",
        "rate_limit": "off",
        "data_dir": data_dir,
        **NO_ENGINE,
    }
    server = start_server(max_concurrent_runs=str(AT_ONCE), **settings)

    def run(number: int) -> tuple[str, str]:
        command, phase = ENDINGS[number % len(ENDINGS)]
        with Service.of(server) as client:
            run_id = client.start(command)
            return client.wait(run_id, seconds=patient(120))["phase"], phase

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for found, expected in threads.map(run, range(RUNS)):
            assert found == expected
    wait_until_nothing_is_left(data_dir, server.pid)

    with Service.of(server) as client:
        runs = [client.start(["sleep", "1000"]) for _ in range(AT_ONCE)]
        for run_id in runs:
            client.wait(run_id, "running", seconds=patient(120))
    killed = server.pid
    assert len(processes_of(data_dir)) >= AT_ONCE
    # What belongs to another server stays.
    other = start_server(**{**settings, "data_dir": tmp_path / "other"})
    with Service.of(other) as client:
        others = client.start(["sleep", "1000"])
        client.wait(others, "running", seconds=patient(120))
        server.stop(signal.SIGKILL)
        # Processes end with the server, whether or not another one comes.
        deadline = time.monotonic() + patient(30)
        while processes_of(data_dir):
            assert time.monotonic() < deadline, processes_of(data_dir)
            time.sleep(0.1)
        again = start_server(**settings)
        with Service.of(again) as next_client:
            for run_id in runs:
                assert next_client.wait(run_id, seconds=patient(60))["phase"] in ("failed", "killed")
            assert next_client.run(["true"])["phase"] == "completed"
        wait_until_nothing_is_left(data_dir, killed)
        assert not cgroups_of(killed)
        assert len(list((data_dir / "gvisor" / "run").iterdir())) == 1
        assert client.get(f"/runs/{others}").json()["phase"] == "running"
        assert processes_of(tmp_path / "other")
    again.stop()
    assert not list((data_dir / "gvisor" / "run").iterdir())
    assert not list((data_dir / "gvisor" / "owners").iterdir())
