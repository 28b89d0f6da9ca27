"""What a sandbox's own kernel does not bound or show, and why that harms nobody: what stands for the hostile tests that
``tests/escape/gvisor.py`` leaves out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.escape.kernel_objects import OBJECTS
from tests.escape.test_kernel_memory import UNCHARGED, charged_to, group_of, grown_since, slab_bytes
from tests.patience import patient
from tests.runtimes import RUNTIME
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited, OutputEvent
from tidebox.model.limits import MIB, Limits
from tidebox.model.result import Outcome
from tidebox.runtime.base import Exec
from tidebox.runtime.gvisor.box import GvisorBox
from tidebox.runtime.gvisor.bundle import OWN_BYTES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="control groups and the totals of the kernel are root's")

_TRIES = 3
_ROUNDING = MIB


@pytest_asyncio.fixture
async def engine(tmp_path: Path, runsc_path: str) -> AsyncIterator[Engine]:
    """One whose boxes are sandboxes."""
    own = Engine(load_settings(data_dir=tmp_path, default_runtime="gvisor", gvisor_runsc=runsc_path), pool=False)
    yield own
    await own.close()


# Each makes one more, for as long as it is let.
WITHOUT_END = {
    "files": 'make = lambda n: os.close(os.open("/tmp/%d" % n, os.O_CREAT))',
    "directories": 'make = lambda n: os.mkdir("/tmp/%d" % n)',
    "links": 'make = lambda n: os.symlink("x", "/tmp/%d" % n)',
    "timers": "make = lambda n: check(libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())))",
    "locks": """
files = [os.open("/tmp/%d" % n, os.O_RDWR | os.O_CREAT) for n in range(200)]
make = lambda n: fcntl.fcntl(files[n % 200], fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, 0, n * 2, 1, 0))
""",
    "watches": """
watcher = libc.inotify_init()
def make(n):
    os.mkdir("/tmp/%d" % n)
    check(libc.inotify_add_watch(watcher, b"/tmp/%d" % n, 2))
""",
}
_GREEDY = """
import ctypes, fcntl, itertools, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
"""


@pytest.mark.timeout(patient(180))
@pytest.mark.parametrize("kind", sorted(WITHOUT_END) if RUNTIME == "gvisor" else ["timers"])
async def test_what_has_no_limit_of_its_own_ends_the_box_at_its_memory(engine: Engine, kind: str) -> None:
    program = f"{_GREEDY}\n{WITHOUT_END[kind]}\nfor n in itertools.count():\n    make(n)\n"
    limits = Limits(memory=32 * MIB)
    result = await run_on(engine, program, memory=limits.memory, timeout=patient(120))
    assert (result.outcome, result.usage.oom_kills) == (Outcome.OOM, 1), result
    assert result.usage.memory_peak is not None
    assert result.usage.memory_peak <= limits.memory + OWN_BYTES + _ROUNDING


# Of descriptors and of message queues it has as many as the box may have open.
FEW = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
names = iter(range(9000))
takers = {
    "inotify": libc.inotify_init,
    "terminals": lambda: libc.posix_openpt(os.O_RDWR),
    "queues": lambda: libc.mq_open(b"/q%d" % next(names), os.O_RDWR | os.O_CREAT, 0o600, None),
}
for name, take in takers.items():
    first = held = take()
    while 0 <= held < 5000:
        held = take()
    print(name, held < 0, flush=True)
    os.closerange(first, 5000)
"""


async def test_what_is_opened_is_bounded_by_the_limit_on_descriptors(engine: Engine) -> None:
    terminals = text_of("sys/kernel/pty/nr")
    box = await opened(engine, Limits(open_files=256))
    try:
        program = await started(box, FEW + "input()")
        assert [await program.line() for _ in range(3)] == ["inotify True", "terminals True", "queues True"]
        assert text_of("sys/kernel/pty/nr") == terminals
    finally:
        await box.close()


LOCKED = """
import fcntl, os, struct
for path in ("/usr/bin/env", "/etc/passwd", "/tmp/own"):
    file = os.open(path, os.O_RDWR | os.O_CREAT if path == "/tmp/own" else os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_SH)
    fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 1, 0))
print("locked", flush=True)
input()
"""


async def test_locks_and_scores_are_none_of_the_machines(engine: Engine) -> None:
    box = await opened(engine, Limits())
    try:
        program = await started(box, LOCKED)
        assert await program.line() == "locked"
        pids = processes_of(box)
        assert len(pids) >= 3
        holders = {line.split(":", 1)[1].split()[3] for line in text_of("locks").splitlines()}
        # What runsc itself locks is a file of its own state.
        assert not holders & {str(pid) for pid in pids if pid != box.process.pid}
        # The machine ends them before the server.
        scores = [int(text_of(f"{pid}/oom_score_adj")) for pid in pids]
        assert min(scores) >= 500, scores
        assert int(text_of("self/oom_score_adj")) < 500
    finally:
        await box.close()


async def test_programs_cannot_get_back_what_their_agent_gave_up(engine: Engine) -> None:
    program = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('CapBnd')))"
    result = await run_on(engine, program, timeout=patient(60))
    # CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID, on the sandbox's own kernel; neither SETPCAP nor SYS_ADMIN.
    assert int(result.stdout, 16) == 0b11100011, result


# Some of each sort where this is one test among all.
_SOME = ("range locks", "pipes", "threads", "mappings", "timers", "connections that nobody accepts")
_MAKE = """\
import ctypes, errno, fcntl, mmap, os, select, signal, socket, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
held = []
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
{make}
print("ready", flush=True)
os.read(0, 1)
made, end = 0, time.monotonic() + 10
try:
    while made < {count} and time.monotonic() < end:
        make(made)
        made += 1
except OSError:
    pass
os.write(1, b"%d\\n" % made)
os.read(0, 1)
os._exit(0)
"""


@pytest.mark.timeout(patient(240))
@pytest.mark.parametrize("kind", sorted(OBJECTS) if RUNTIME == "gvisor" else _SOME)
async def test_what_the_machine_keeps_for_a_sandbox_is_charged_to_it(engine: Engine, kind: str) -> None:
    """As in ``tests/escape/test_kernel_memory.py``, where processes of boxes are seen from outside."""
    told = []
    for _ in range(_TRIES):
        uncharged, made = await uncharged_by(engine, kind)
        told.append(f"{uncharged / MIB:.1f} MiB ({made} made)")
        if uncharged < UNCHARGED:
            return
    pytest.fail(f"{kind}: not charged to the box: {', '.join(told)}")


async def uncharged_by(engine: Engine, kind: str) -> tuple[int, int]:
    box = await opened(engine, Limits(memory=1024 * MIB, pids=2000, open_files=65_536))
    try:
        program = await started(box, _MAKE.format(make=OBJECTS[kind].program, count=OBJECTS[kind].most))
        assert await program.line() == "ready"
        group = group_of(box.process.pid)
        before, charged = slab_bytes(), charged_to(group)
        await program.go_on()
        made = int(await program.line())
        return grown_since(before) - (charged_to(group) - charged), made
    finally:
        await box.close()


async def opened(engine: Engine, limits: Limits) -> GvisorBox:
    box = await engine.runtime.open(BoxSpec(limits=limits))
    assert isinstance(box, GvisorBox)
    return box


class Talk:
    """A program of a box, line by line."""

    def __init__(self, program: Exec) -> None:
        self._program = program
        self._events = program.events()
        self._said = b""

    async def line(self) -> str:
        """The next one that it prints."""
        async with asyncio.timeout(patient(120)):
            while b"\n" not in self._said:
                event = await anext(self._events)
                if isinstance(event, OutputEvent):
                    self._said += event.data
                assert not isinstance(event, Exited), self._said
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    async def go_on(self) -> None:
        """Let it."""
        await self._program.write(b"\n")


async def started(box: GvisorBox, program: str) -> Talk:
    return Talk(await box.exec(Command(argv=["python3", "-c", program])))


def text_of(name: str) -> str:
    """A file that the machine's kernel tells something in."""
    return Path("/proc", name).read_text()


def processes_of(box: GvisorBox) -> list[int]:
    """Those of the machine that are in its control group."""
    return [int(pid) for pid in (group_of(box.process.pid) / "cgroup.procs").read_text().split()]
