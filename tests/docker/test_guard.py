"""Agent and program have one user in a container: what hostile programs try on it, beside the escape suite."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.docker.images import PYTHON_IMAGE
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited, OutputEvent
from tidebox.runtime.base import Box, Exec

# Looks, as fast as it can, for children of the agent that have not become their program yet.
WATCH_CHILDREN = """
import json, os, sys, time
print("ready", flush=True)
held = {}
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (1, os.getpid()):
            continue
        try:
            if not os.readlink(f"/proc/{name}/exe").startswith("/.tidebox/"):
                continue
            found = {fd: os.readlink(f"/proc/{name}/fd/{fd}") for fd in os.listdir(f"/proc/{name}/fd") if int(fd) > 2}
        except OSError:
            continue
        own = f"/proc/{name}/oom_score_adj"
        held[name] = sorted(link.partition(":")[0] for link in found.values() if link != own)
print(json.dumps(held))
"""


@pytest.fixture
async def sandbox(docker_host: str, tmp_path: Path) -> AsyncIterator[Box]:
    settings = load_settings(data_dir=tmp_path, default_runtime="docker", docker_host=docker_host)
    engine = Engine(settings, pool=False)
    box = await engine.runtime.open(BoxSpec(image=PYTHON_IMAGE, kind="sandbox"))
    yield box
    assert not box.gone
    await box.close()
    await engine.close()


async def output(program: Exec) -> str:
    said = b""
    async for event in program.events():
        if isinstance(event, OutputEvent):
            said += event.data
        elif isinstance(event, Exited):
            assert event.code == 0, said
    return said.decode()


async def run(box: Box, *argv: str) -> str:
    program = await box.exec(Command(argv=argv))
    await program.end_input()
    return await output(program)


async def test_no_child_of_the_agent_shows_what_is_the_agents(sandbox: Box) -> None:
    watching = await sandbox.exec(Command(argv=["python3", "-c", WATCH_CHILDREN, "3"]))
    events = watching.events()
    async for event in events:
        if isinstance(event, OutputEvent) and b"ready" in event.data:
            break
    deadline = asyncio.get_running_loop().time() + 2.5
    while asyncio.get_running_loop().time() < deadline:
        await run(sandbox, "true")
    said = b"".join([event.data async for event in events if isinstance(event, OutputEvent)])
    # Only the pipe that tells whether it could become its program, /proc itself, and a file there that is its own.
    for held in json.loads(said).values():
        assert set(held) <= {"pipe", "/proc"}
        assert held.count("pipe") <= 1


async def test_killing_everybody_leaves_the_agent_which_serves_on(sandbox: Box) -> None:
    beside = await sandbox.exec(Command(argv=["sleep", "60"]))
    assert await run(sandbox, "python3", "-c", "import os; os.kill(-1, 9); print('killed')") == "killed\n"
    exited = [event async for event in beside.events() if isinstance(event, Exited)]
    assert [event.signal for event in exited] == [signal.SIGKILL]
    assert await run(sandbox, "echo", "alive") == "alive\n"


CLOSED = ["mem", "environ", "maps", "fd", "fdinfo", "cwd", "root", "exe", "syscall", "stack", "oom_score_adj"]
OPEN_FILES_OF_INIT = """
import os, sys
for place in sys.argv[1:]:
    path = f"/proc/1/{place}"
    try:
        if os.path.islink(path):
            os.readlink(path)
        elif os.path.isdir(path):
            os.listdir(path)
        else:
            open(path, "r+").close()
        print("BREACH", place)
    except (PermissionError, FileNotFoundError):
        print("closed", place)
"""


async def test_the_files_of_the_agent_are_closed(sandbox: Box) -> None:
    said = await run(sandbox, "python3", "-c", OPEN_FILES_OF_INIT, *CLOSED)
    assert said.split("\n")[:-1] == [f"closed {place}" for place in CLOSED]


# A daemon, as they are made: a session of its own, and no parent that is known.
DAEMON = """
import os, time
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    print("forked", flush=True)
    time.sleep(60)
os.wait()
time.sleep(60)
"""


async def sleepers(box: Box) -> int:
    said = await run(box, "sh", "-c", "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; done 2>/dev/null || true")
    return said.count("os.setsid")


async def test_a_kill_reaches_what_has_left_the_session_of_its_program_and_no_other(sandbox: Box) -> None:
    programs = [await sandbox.exec(Command(argv=["python3", "-c", DAEMON])) for _ in range(2)]
    told = [program.events() for program in programs]
    for events in told:
        async for event in events:
            if isinstance(event, OutputEvent):
                break
    # Each with the one that started it.
    assert await sleepers(sandbox) == 4
    for left, program, events in ((2, programs[0], told[0]), (0, programs[1], told[1])):
        await program.signal(signal.SIGKILL)
        assert [event.signal async for event in events if isinstance(event, Exited)] == [signal.SIGKILL]
        assert await sleepers(sandbox) == left
