"""What is hostile in containers only: an agent of the same user, images that were made to lead it, weaker profiles."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.boxes import BoxRunner, start_runner, stop_runner
from tests.docker.daemon import ask
from tests.docker.images import BUSYBOX_IMAGE, write_image
from tests.patience import patient
from tests.runtimes import runtime_settings
from tidebox.errors import GuaranteeMissing
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited, OutputEvent
from tidebox.model.limits import MIB, Limits
from tidebox.model.result import Outcome
from tidebox.runtime.base import Box

# A frame of the agent protocol that says how a program ended, and others that say nothing sensible.
FORGED = b"\x00\x00\x00\x20\x00\x00\x00\x01\x01" + b"\xa3avat" + b"x" * 64


async def output_of(box: Box, *argv: str) -> tuple[bytes, int | None]:
    program = await box.exec(Command(argv=argv))
    await program.end_input()
    events = [event async for event in program.events()]
    last = events[-1]
    assert isinstance(last, Exited)
    return b"".join(event.data for event in events if isinstance(event, OutputEvent)), last.code


def test_no_signal_ends_or_stops_the_agent(docker_runner: BoxRunner) -> None:
    program = """
import os
for number in range(1, 65):
    if number not in (32, 33):
        try:
            os.kill(1, number)
        except OSError:
            pass
print("still here", flush=True)
"""
    for _ in range(2):
        result = docker_runner(program)
        assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXITED, 0, b"still here\n")


def test_a_program_has_no_descriptor_of_the_agent(docker_runner: BoxRunner) -> None:
    program = "import os; print(*(n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)))"
    assert docker_runner(program).stdout.split() == [b"0", b"1", b"2"]


def test_frames_cannot_be_forged(docker_runner: BoxRunner) -> None:
    """Neither on the agent's own streams, nor on a program's: there they are output like any other."""
    program = f"""
import os, sys
reached = []
for place in ["/proc/1/fd/0", "/proc/1/fd/1", "/proc/1/fd/2", "/dev/console", "/dev/tty", "/dev/pts/0"]:
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_NOCTTY)
        os.write(descriptor, {FORGED!r})
        reached.append(place)
    except OSError:
        pass
os.write(1, {FORGED!r} * 100)
os.write(2, repr(reached).encode())
sys.exit(7)
"""
    result = docker_runner(program)
    assert (result.exit_code, result.stderr, result.stdout) == (7, b"[]", FORGED * 100)


def test_the_agents_own_files_cannot_be_changed(docker_runner: BoxRunner) -> None:
    program = """
import os
changed = []
for directory, _, names in os.walk("/.tidebox"):
    for path in [directory, *(os.path.join(directory, name) for name in names)]:
        if os.access(path, os.W_OK):
            changed.append(path)
        try:
            os.chmod(path, 0o777)
            changed.append(path)
        except OSError:
            pass
print(changed)
"""
    assert docker_runner(program).stdout == b"[]\n"


def test_a_fork_bomb_in_one_sandbox_is_not_felt_in_another(docker_runner: BoxRunner) -> None:
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"

    async def beside() -> tuple[bytes, int | None]:
        runtime = docker_runner.engine.runtime
        spec = BoxSpec(image="python:3.11-slim", kind="sandbox", limits=Limits(pids=64, cpus=0.5))
        hostile, other = await asyncio.gather(runtime.open(spec), runtime.open(spec))
        try:
            await hostile.exec(Command(argv=["python3", "-c", bomb]))
            await asyncio.sleep(1)
            answer = await asyncio.wait_for(output_of(other, "echo", "calm"), patient(30))
            await asyncio.wait_for(hostile.stop(), patient(30))
            return answer
        finally:
            await asyncio.gather(hostile.close(), other.close())

    assert docker_runner.submit(beside()).result(patient(100)) == (b"calm\n", 0)


def test_a_box_whose_memory_is_full_still_gives_its_files(docker_runner: BoxRunner) -> None:
    fill = "open('first.txt', 'w').write('kept')\nopen('/tmp/fill', 'wb').write(bytes(1 << 30))"
    result = docker_runner(fill, memory=48 * MIB, artifacts=["first.txt"])
    assert result.outcome in (Outcome.OOM, Outcome.EXITED)
    assert result.artifacts == {"first.txt": b"kept"}


def test_a_directory_that_becomes_a_link_leads_nowhere(docker_runner: BoxRunner) -> None:
    program = """
import os, time
os.mkdir("out")
open("out/passwd", "w").write("mine")
if os.fork() == 0:
    while True:
        os.rename("out", "real")
        os.symlink("/etc", "out")
        os.unlink("out")
        os.rename("real", "out")
time.sleep(0.3)
"""
    result = docker_runner(program, artifacts=["out/**", "real/**"])
    assert set(result.artifacts.values()) <= {b"mine"}


# Images


@pytest.fixture
def hostile_image(docker_host: str) -> Iterator[str]:
    """An image that was made to lead whatever is started in it."""
    socket = Path(docker_host.removeprefix("unix://"))
    name = "hostile:configuration"
    changes = [
        "ENV LD_PRELOAD=/evil.so LD_LIBRARY_PATH=/evil PYTHONPATH=/evil PYTHONHOME=/evil PYTHONSTARTUP=/evil.py",
        "ENV PATH=/usr/bin",
        'ENTRYPOINT ["/bin/echo", "entered"]',
        'CMD ["/bin/echo", "commanded"]',
        "USER root",
        "WORKDIR /no/such/place",
        'VOLUME ["/.tidebox", "/data"]',
        "HEALTHCHECK CMD touch /workspace/checked",
    ]
    query = [("fromSrc", "-"), ("repo", "hostile"), ("tag", "configuration")]
    query += [("changes", change) for change in changes]
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory, "image.tar")
        with archive.open("wb") as file:
            write_image(BUSYBOX_IMAGE, file)
        with archive.open("rb") as file:
            ask(socket, "POST", f"/images/create?{urlencode(query)}", file)
    yield name
    ask(socket, "DELETE", f"/images/{name}?force=1")


def test_an_image_does_not_lead_the_agent(docker_runner: BoxRunner, hostile_image: str) -> None:
    script = "id -u; grep -c . /proc/1/environ; touch file; ls -A /workspace; echo end"
    result = docker_runner(command=["sh", "-c", script], image=hostile_image)
    user, *rest = result.stdout.decode().split()
    assert int(user) >= 20_000
    # What the agent has in its environment is not for programs, and nothing was done before this one.
    assert rest == ["file", "end"], result


@pytest.fixture
def permissive(docker_host: str, tmp_path: Path) -> Iterator[BoxRunner]:
    """An engine with a profile that allows every system call."""
    profile = tmp_path / "all.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW"}))
    runner = start_runner(tmp_path / "data", **runtime_settings("docker"), docker_seccomp=profile)
    yield runner
    stop_runner(runner)


def test_a_profile_that_guards_nothing_is_noticed(permissive: BoxRunner) -> None:
    report = permissive.submit(permissive.engine.runtime.probe()).result(patient(60))
    assert "syscall_filter" in {finding.guarantee.value for finding in report.missing}
    with pytest.raises(GuaranteeMissing) as refused:
        permissive("print('unguarded')")
    assert "syscall_filter" in refused.value.details["guarantees"]


def test_nothing_of_an_engine_is_within_reach(docker_runner: BoxRunner) -> None:
    program = """
import os, socket
reached = []
for place in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock"):
    try:
        socket.socket(socket.AF_UNIX).connect(place)
        reached.append(place)
    except OSError:
        pass
print(reached)
"""
    assert docker_runner(program).stdout == b"[]\n"


def test_time_is_up_for_a_program_that_ignores_everything(docker_runner: BoxRunner) -> None:
    program = """
import os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(10):
    if os.fork() == 0:
        os.setsid()
        break
while True:
    time.sleep(100)
"""
    began = time.monotonic()
    assert docker_runner(program, timeout=1.0).outcome is Outcome.TIMEOUT
    assert time.monotonic() - began < patient(30)
