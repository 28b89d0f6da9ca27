"""What many runs leave on an engine: the agent's volume, and nothing else; also after a server that was killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import Service
from tests.docker.daemon import Daemon
from tests.patience import patient
from tests.runtimes import RUNTIME

# All of them where the suites are run on docker; elsewhere a few.
RUNS = 200 if RUNTIME == "docker" else 24
AT_ONCE = 8
ENDINGS = (
    (["python3", "-c", "print('hello')"], "completed"),
    (["sh", "-c", "echo file > left; (sleep 100 &); exit 3"], "failed"),
    (["python3", "-c", "import os; os.kill(os.getpid(), 9)"], "failed"),
    (["/no/such/program"], "failed"),
)


def assert_only_the_tools_are_left(daemon: Daemon) -> None:
    deadline = time.monotonic() + patient(60)
    while left := daemon.containers():
        assert time.monotonic() < deadline, [container["Names"] for container in left]
        time.sleep(0.1)
    volumes = daemon.volumes()
    assert len(volumes) == 1, volumes
    assert volumes[0].startswith("tidebox-tools-")
    assert not [name for name in daemon.images() if "tidebox" in name]


def test_runs_and_a_killed_server_leave_nothing(
    docker_daemon: Daemon, start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    settings = {"default_runtime": "docker", "docker_host": docker_daemon.host, "rate_limit": "off"}
    server = start_server(data_dir=tmp_path / "data", max_concurrent_runs=str(AT_ONCE), **settings)

    def run(number: int) -> tuple[str, str]:
        command, phase = ENDINGS[number % len(ENDINGS)]
        with Service.of(server) as client:
            run_id = client.start(command)
            return client.wait(run_id, seconds=patient(120))["phase"], phase

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for found, expected in threads.map(run, range(RUNS)):
            assert found == expected
    assert_only_the_tools_are_left(docker_daemon)

    with Service.of(server) as client:
        runs = [client.start(["sleep", "1000"]) for _ in range(AT_ONCE)]
        for run_id in runs:
            client.wait(run_id, "running", seconds=patient(120))
    assert len(docker_daemon.containers()) >= AT_ONCE
    server.stop(signal.SIGKILL)
    # What belongs to another server stays.
    other = docker_daemon.make_container()
    again = start_server(data_dir=tmp_path / "data", **settings)
    with Service.of(again) as client:
        for run_id in runs:
            assert client.wait(run_id, seconds=patient(60))["phase"] in ("failed", "killed")
        assert client.run(["true"])["phase"] == "completed"
    assert [container["Id"] for container in docker_daemon.containers()].count(other) == 1
    docker_daemon.remove_container(other)
    assert_only_the_tools_are_left(docker_daemon)
