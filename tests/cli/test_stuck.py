"""Commands end on their time limits and on signals, also when what makes their boxes does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.command import TIDEBOX
from tests.contract.test_native_faults import alive, command_lines, wait_until

WEAK = {"SANDBOX_ALLOW_WEAK_ISOLATION": "1"}


def start(*arguments: str, data_dir: Path, **variables: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "SANDBOX_DATA_DIR": str(data_dir), **variables}
    pipe = subprocess.PIPE
    return subprocess.Popen([TIDEBOX, *arguments], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment)


def stop_spawner(command: subprocess.Popen[bytes]) -> int:
    """Stop the spawner of a command while it starts."""

    found: list[int] = []
    deadline = time.monotonic() + 30
    # At once: it starts in a few hundredths of a second.
    while not found:
        assert time.monotonic() < deadline, "no spawner was started"
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        found = [pid for pid in map(int, children) if b"boot.py" in b"".join(command_lines([pid]))]
    os.kill(found[0], signal.SIGSTOP)
    return found[0]


@pytest.mark.parametrize("variables", [{}, WEAK], ids=["strict", "weak"])
def test_a_start_that_hangs_is_an_error_in_time(tmp_path: Path, variables: dict[str, str]) -> None:
    limit = {"SANDBOX_DEFAULT_STARTUP_TIMEOUT_SEC": "1", **variables}
    process = start("run", "--timeout", "2", "-c", "print(1)", data_dir=tmp_path, **limit)
    spawner = stop_spawner(process)
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 15
    assert (process.returncode, out) == (2, b"")
    assert err in (
        b"tidebox: the program could not be started within 1 s\n",
        b"tidebox: boxes could not be made ready within 1 s\n",
    )
    wait_until(lambda: not alive([spawner]), "the spawner was left")


@pytest.mark.parametrize("command", [("run", "-c", "print(1)"), ("doctor",)], ids=["run", "doctor"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_start_that_hangs(tmp_path: Path, command: tuple[str, ...], number: signal.Signals) -> None:
    process = start(*command, data_dir=tmp_path)
    spawner = stop_spawner(process)
    began = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 15
    assert process.returncode == 128 + number
    assert b"Traceback" not in err
    wait_until(lambda: not alive([spawner]), "the spawner was left")


def test_a_server_whose_start_hangs_is_ended_by_a_signal(tmp_path: Path) -> None:
    process = start("serve", "--port", "0", data_dir=tmp_path)
    spawner = stop_spawner(process)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 15
    assert process.returncode == 0
    assert b"Traceback" not in err
    wait_until(lambda: not alive([spawner]), "the spawner was left")


BUILDER = """#!/bin/sh
trap 'echo cleaned > {marks}/cleaned; exit 1' TERM
echo $$ > {marks}/started
while :; do sleep 0.05; done
"""


def test_a_signal_ends_the_build_of_an_image_and_what_builds_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    builder = tmp_path / "bin" / "mmdebstrap"
    builder.write_text(BUILDER.format(marks=tmp_path))
    builder.chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    data_dir = tmp_path / "data"
    process = start("image", "build", "test", "--suite", "bookworm", data_dir=data_dir, PATH=path)
    wait_until(
        lambda: (tmp_path / "started").exists() and (tmp_path / "started").read_text() != "", "nothing was built"
    )
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 15
    assert process.returncode == 128 + signal.SIGTERM
    assert b"Traceback" not in err
    assert (tmp_path / "cleaned").exists()
    assert not alive([int((tmp_path / "started").read_text())])
    assert list((data_dir / "images").glob("staging-*")) == []
