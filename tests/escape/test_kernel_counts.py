"""What the kernel counts by user or by machine is bounded for each box, and so is what it counts nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from tests.escape.probes import MIB, AsyncRun, Run, python, said
from tests.patience import patient
from tests.runtimes import AGENT_MEMORY, RUNTIME

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="the totals that show it are for root alone")

Needs = Callable[[str], None]

TAKE = """
def take(action):
    taken = 0
    while taken < 20_000 and action() >= 0:
        taken += 1
    print(taken, flush=True)

"""
# Each takes as many as it can get, up to far more than a box should, and prints how many that were.
TAKERS = {
    "inotify instances": (8, "take(_libc.inotify_init)"),
    "inotify watches": (
        8192,
        """
        watcher = _libc.inotify_init()
        for number in range(9000):
            os.mkdir(f"d{number}")
        names = iter(range(9000))
        take(lambda: _libc.inotify_add_watch(watcher, b"d%d" % next(names), 2))
        """,
    ),
    "timers": (1024, "take(lambda: _libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())))"),
    "queued signals": (
        1024,
        """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [40])
        take(lambda: _libc.sigqueue(os.getpid(), 40, ctypes.c_void_p()))
        """,
    ),
    "terminals": (64, "take(lambda: _libc.posix_openpt(os.O_RDWR))"),
    "message queues": (
        16,
        """
        names = iter(range(9000))
        take(lambda: _libc.mq_open(b"/q%d" % next(names), os.O_RDWR | os.O_CREAT, 0o600, None))
        """,
    ),
}


ENGINE_WIDE = {
    "inotify instances": "the machine's limit for each user, and each container has a user of its own,",
    "inotify watches": "the machine's limit for each user, and each container has a user of its own,",
    "terminals": "the machine's limit for all",
}


def taker(kind: str) -> str:
    return python(TAKE + dedent(TAKERS[kind][1]))


@pytest.mark.parametrize("kind", sorted(TAKERS))
def test_a_box_gets_its_share_and_no_more(box_run: Run, kind: str) -> None:
    if RUNTIME != "native" and kind in ENGINE_WIDE:
        pytest.skip(f"native only: an engine has no limit on {kind} of a container; {ENGINE_WIDE[kind]} bounds them")
    most, _ = TAKERS[kind]
    assert 1 <= int(said(box_run(taker(kind), open_files=4096, inodes=16384))) <= most


async def _two_at_once(box_arun: AsyncRun, program: str) -> list[str]:
    waiting = program + "\nimport time; time.sleep(1)"
    return [said(result) for result in await asyncio.gather(box_arun(waiting), box_arun(waiting))]


@pytest.mark.parametrize("kind", ["inotify instances", "timers", "queued signals", "terminals", "message queues"])
def test_boxes_at_once_have_a_share_each(box_arun: AsyncRun, kind: str) -> None:
    first, second = asyncio.run(_two_at_once(box_arun, taker(kind)))
    assert int(first) == int(second) > 0


FILL_CONNECTIONS = """
import socket
held = []
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
for _ in range(400):
    held.append(socket.create_connection(listener.getsockname()))
    held.append(listener.accept()[0])
    for end in held[-2:]:
        end.setblocking(False)
        try:
            while True:
                end.send(b"x" * 65536)
        except OSError:
            pass
"""
FILL_DATAGRAMS = """
import socket
held = []
for _ in range(400):
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(receiver.getsockname())
    for _ in range(300):
        sender.send(b"x" * 1000)
    held.append(receiver)
"""
# Told for the whole machine: nothing else here has much.
PRINT_SOCKET_PAGES = """
for line in open("/proc/net/sockstat"):
    if line.startswith(("TCP:", "UDP:")):
        print(line.split()[line.split().index("mem") + 1])
"""


@pytest.mark.parametrize("program", [FILL_CONNECTIONS, FILL_DATAGRAMS], ids=["TCP", "UDP"])
def test_buffers_of_sockets_are_within_the_memory_of_a_box(box_run: Run, needs: Needs, program: str) -> None:
    needs("memory")
    result = box_run(program + PRINT_SOCKET_PAGES, memory=64 * MIB, open_files=4096)
    # Where they are counted with all other memory a box may end for it.
    if result.outcome.value != "oom":
        assert sum(map(int, said(result).split())) * 4096 <= 64 * MIB + AGENT_MEMORY


# Connections that nobody accepts, each with as much sent to it as it takes: in memory that nothing counts.
UNACCEPTED = """
import socket, time
held = []
while True:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    held.append(listener)
    for _ in range(100):
        with socket.socket() as client:
            client.setblocking(False)
            try:
                client.connect(listener.getsockname())
            except BlockingIOError:
                pass
            try:
                while True:
                    client.send(b"x" * 65536)
            except OSError:
                pass
"""


@as_root
def test_connections_that_nobody_accepts_end_a_box(box_run: Run) -> None:
    before = _tcp_bytes()
    assert box_run(UNACCEPTED, memory=64 * MIB, open_files=4096).outcome.value == "oom"
    assert _tcp_bytes() - before < 160 * MIB


def _tcp_bytes() -> int:
    words = next(line.split() for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith("TCP"))
    return int(words[words.index("mem") + 1]) * 4096


LOCKS = """
import fcntl, os, struct, time
files = [os.open(f"f{number}", os.O_RDWR | os.O_CREAT) for number in range(200)]
for place in range(2000, 0, -1):
    lock = struct.pack("hhqqi", fcntl.F_RDLCK, 0, place * 2, 1, 0)
    for file in files:
        fcntl.fcntl(file, COMMAND, lock)
time.sleep(100)
"""
POSIX_LOCKS = LOCKS.replace("COMMAND", "fcntl.F_SETLK")
# Locks stay when the process that took them is gone, as long as another has the same descriptors.
LOCKS_OF_THE_DEAD = """
import ctypes
files = [os.open(f"f{number}", os.O_RDWR | os.O_CREAT) for number in range(50)]
import fcntl, struct, time
for _ in range(8):
    # CLONE_FILES
    if call(NR.clone, 0x400 | 17, 0, 0, 0, 0) == 0:
        for place in range(1000 * (_ + 1), 1000 * _, -1):
            for file in files:
                fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, 0, place * 2, 1, 0))
        os._exit(0)
    os.wait()
time.sleep(100)
"""
# They stay too when nobody has a descriptor of the file, as long as it is mapped.
HIDDEN_LOCKS = """
import ctypes, fcntl, mmap, os, struct, time
library = ctypes.CDLL(None)
for number in range(20):
    file = os.open(f"f{number}", os.O_RDWR | os.O_CREAT)
    os.truncate(file, 4096)
    # Python's own mmap would keep a descriptor.
    library.mmap(None, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_SHARED, file, ctypes.c_long(0))
    for place in range(2000, 0, -1):
        fcntl.fcntl(file, 37, struct.pack("hhqqi", fcntl.F_RDLCK, 0, place * 2, 1, 0))
    os.close(file)
time.sleep(100)
"""
BUSY = """
import os, time
end = time.monotonic() + 4
while time.monotonic() < end:
    for _ in range(1000):
        os.getppid(); os.stat("/")
print("done")
"""


@as_root
@pytest.mark.parametrize(
    "program",
    [POSIX_LOCKS, LOCKS.replace("COMMAND", "37"), python(LOCKS_OF_THE_DEAD), HIDDEN_LOCKS],
    ids=["POSIX", "open-file-description", "of-the-dead", "hidden"],
)
def test_locks_without_end_end_a_box(box_run: Run, program: str) -> None:
    result = box_run(program, open_files=1024, timeout=patient(60))
    assert (result.outcome.value, result.usage.oom_kills) == ("oom", 1)


@as_root
@pytest.mark.parametrize("program", [POSIX_LOCKS, HIDDEN_LOCKS], ids=["POSIX", "hidden"])
def test_a_busy_neighbour_is_not_taken_for_the_one_with_the_locks(box_arun: AsyncRun, program: str) -> None:
    async def both() -> list[str]:
        neighbour, guilty = await asyncio.gather(
            box_arun(BUSY), box_arun(program, open_files=1024, timeout=patient(60))
        )
        return [neighbour.outcome.value, guilty.outcome.value]

    assert asyncio.run(both()) == ["exited", "oom"]


def _lock(files: contextlib.ExitStack, directory: Path) -> None:
    for number in range(150):
        file = files.enter_context((directory / str(number)).open("w+b"))
        for place in range(200, 0, -1):
            fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, 0, place * 2, 1, 0))


@as_root
def test_locks_of_the_machine_end_no_box(box_arun: AsyncRun, tmp_path: Path) -> None:
    async def beside_locks() -> str:
        neighbour = asyncio.ensure_future(box_arun(BUSY))
        await asyncio.sleep(1)
        with contextlib.ExitStack() as files:
            _lock(files, tmp_path)
            return str((await neighbour).outcome.value)

    assert asyncio.run(beside_locks()) == "exited"


def test_databases_lock_their_files(box_run: Run) -> None:
    program = """
import sqlite3
connections = [sqlite3.connect("data.db", isolation_level=None) for _ in range(20)]
connections[0].execute("create table t (n)")
for number in range(500):
    connections[number % 20].execute("insert into t values (?)", (number,))
print(connections[0].execute("select count(*) from t").fetchone()[0])
"""
    assert said(box_run(program)) == "500"
