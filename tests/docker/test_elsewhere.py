"""Where native cannot be: the server and the command work with Docker, and load nothing that is Linux's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer, finish, started
from tests.api.interpreter.service import Service
from tests.boxes import ROOT
from tests.patience import patient
from tests.runtimes import runtime_settings

MAC = [sys.executable, str(ROOT / "tests/docker/mac.py")]
HELLO = "import sys; print('hello from', sys.platform)"


def environment(host: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
    return {**clean, "SANDBOX_DOCKER_HOST": host, "PYTHONPATH": str(ROOT / "src")}


def assert_nothing_of_linux(listing: Path) -> None:
    loaded = listing.read_text().split()
    assert "tidebox.runtime.docker.runtime" in loaded
    assert not [name for name in loaded if name.startswith("tidebox.runtime.native")]


def test_the_server_starts_with_docker_as_its_default(docker_host: str, tmp_path: Path) -> None:
    listing = tmp_path / "modules"
    words = ["serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(
        [*MAC, str(listing), *words],
        env=environment(docker_host),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server: RunningServer = started(process, tmp_path / "data", {})
    try:
        with Service.of(server) as client:
            found = client.get("/runtimes").json()
            rows = {row["name"]: row for row in found["runtimes"]}
            assert found["default_runtime"] == "docker"
            assert rows["docker"]["available"]
            assert rows["docker"]["default_images"][0].startswith("python:3.11-slim@sha256:")
            assert (rows["native"]["available"], rows["native"]["reason"]) == (False, "the native runtime needs Linux")
            run = client.run(command=["python3", "-c", HELLO])
            assert (run["runtime"], run["phase"], run["exit_code"]) == ("docker", "completed", 0)
            assert client.log(run["run_id"]) == "hello from linux\n"
    finally:
        finish(server)
    assert_nothing_of_linux(listing)


@pytest.mark.parametrize(
    "words", [["run", "-c", HELLO], ["run", "--", "sh", "-c", "echo hello from linux"]], ids=["code", "command"]
)
def test_the_command_runs_programs(docker_host: str, tmp_path: Path, words: list[str]) -> None:
    listing = tmp_path / "modules"
    done = subprocess.run(
        [*MAC, str(listing), *words],
        env=environment(docker_host),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(100),
        check=False,
    )
    assert (done.stdout, done.returncode) == ("hello from linux\n", 0), done.stderr
    assert_nothing_of_linux(listing)


def test_the_library_runs_programs(docker_host: str, tmp_path: Path) -> None:
    program = f"import tidebox; result = tidebox.run({HELLO!r}); print(result.text, end='')"
    listing = tmp_path / "modules"
    done = subprocess.run(
        [*MAC, str(listing), "-c", program],
        env={**environment(docker_host), "SANDBOX_DATA_DIR": str(tmp_path / "data")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(100),
        check=False,
    )
    assert (done.stdout, done.returncode) == ("hello from linux\n", 0), done.stderr
    assert_nothing_of_linux(listing)


def test_without_an_engine_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MAC, str(tmp_path / "modules"), "run", "--json", "-c", "pass"],
        env=environment(runtime_settings("native")["docker_host"]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert done.returncode != 0
    assert "Docker" in done.stderr + json.dumps(done.stdout)
