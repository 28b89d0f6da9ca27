"""What a program makes the kernel keep is charged to its box, or ends it, whatever kind of object it is.

A list of calls grows old. So for each call that makes an object, objects are made in bulk in a box, and the growth of
the kernel's caches is compared with what the control group of the box was charged. Others on the machine make them grow
as well, so a kind is only believed to be uncharged when it is so every time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import secrets
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.boxes import BoxRunner, is_root
from tests.escape.kernel_objects import OBJECTS, Kernel
from tests.patience import patient
from tidebox.embedded import run_on
from tidebox.model.limits import GIB, MIB
from tidebox.model.result import Outcome, Result

UNCHARGED = 4 * MIB
_TRIES = 3
_SECONDS = patient(60.0)
# How long what ends a box for memory that is charged to nobody may take to find it, on a slow machine.
_GUARD_SECONDS = patient(10.0)
# No more than this process may have: a box cannot be given more.
_DESCRIPTORS = min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
_PAGE = os.sysconf("SC_PAGE_SIZE")

# The name of the process (comm) says how far it is; a signal lets it go on.
_PROGRAM = """\
import ctypes, errno, fcntl, mmap, os, select, signal, socket, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
held = []
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def wait(name):
    libc.prctl(15, name, 0, 0, 0)
    signal.sigwait([signal.SIGUSR1])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
{make}
wait(b"r{tag}")
made = 0
while made < {count}:
    try:
        make(made)
        made += 1
    except OSError as error:
        if error.errno != errno.EMFILE or made < 10000:
            os.write(1, b"%s after " % errno.errorcode.get(error.errno, "?").encode())
            break
        # A child goes on with descriptors of its own, and this process keeps what there is.
        if child := os.fork():
            os.waitpid(child, 0)
            os._exit(0)
        os.closerange(3, 1 << 20)
os.write(1, b"%d" % made)
wait(b"d{tag}")
os._exit(0)
"""

pytestmark = pytest.mark.skipif(
    not is_root(), reason="only root may read /proc/slabinfo, which tells what the kernel keeps"
)


@pytest.mark.parametrize("kind", sorted(OBJECTS))
def test_what_the_kernel_keeps_for_a_box_is_charged_to_it(box_run: BoxRunner, kind: str) -> None:
    told = []
    for _ in range(_TRIES):
        uncharged, said = _uncharged(box_run, OBJECTS[kind])
        told.append(f"{uncharged / MIB:.1f} MiB ({said} made)")
        if uncharged < UNCHARGED:
            return
    pytest.fail(f"{kind}: not charged to the box: {', '.join(told)}")


def test_objects_of_nobody_are_seen() -> None:
    """That the measure can fail: locks of this process, which is in no box, are charged to none."""
    before = slab_bytes()
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(400)]
        for number in range(OBJECTS["range locks"].most):
            fcntl.lockf(files[number % len(files)], fcntl.LOCK_EX, 1, 2 * number)
        assert grown_since(before) > UNCHARGED


def _uncharged(runner: BoxRunner, kernel: Kernel) -> tuple[int, str]:
    """How much more the kernel keeps than the box was charged for, and how many objects it made."""
    tag = secrets.token_hex(6)
    code = _PROGRAM.format(make=kernel.program, tag=tag, count=kernel.most)
    limits: dict[str, Any] = {"memory": 2 * GIB, "pids": 2000, "open_files": _DESCRIPTORS, "inodes": 65_536}
    run = runner.submit(run_on(runner.engine, code, timeout=_SECONDS, **limits))
    try:
        pid = _process(f"r{tag}", run)
        group = group_of(pid)
        before, charged = slab_bytes(), charged_to(group)
        os.kill(pid, signal.SIGUSR1)
        pid = _heir(pid, f"d{tag}", run)
        # What is charged is taken from a stock of each processor, some pages at a time.
        uncharged = grown_since(before) - (charged_to(group) - charged)
        if uncharged >= UNCHARGED:
            _await_end(run)
        os.kill(pid, signal.SIGUSR1)
    except _Ended:
        # What no kernel charges ends the box before there is much of it.
        assert run.result().outcome is Outcome.OOM, run.result()
        return 0, "fewer"
    finally:
        result = run.result(timeout=2 * _SECONDS)
    return uncharged, result.stdout.decode()


def _process(name: str, run: Future[Result]) -> int:
    """The process of a run that has this name, once there is one."""

    def look() -> int | None:
        pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        return next((pid for pid in pids if _comm(pid) == name), None)

    return _until(run, look)


def _heir(pid: int, name: str, run: Future[Result]) -> int:
    """The same of those that one process left the work to. Looking at every process would fill the kernel's caches."""

    def look() -> int | None:
        heir: int | None = pid
        while heir is not None and _comm(heir) != name:
            try:
                children = Path(f"/proc/{heir}/task/{heir}/children").read_text().split()
            except FileNotFoundError:
                return None  # it is over
            heir = int(children[0]) if len(children) == 1 else None
        return heir

    return _until(run, look)


class _Ended(Exception):
    """The program is over before it has made all."""


def _await_end(run: Future[Result]) -> None:
    """Give the guard its time; raises ``_Ended`` if the box is ended."""
    with contextlib.suppress(TimeoutError):
        run.result(timeout=_GUARD_SECONDS)
        raise _Ended


def _until(run: Future[Result], look: Callable[[], int | None]) -> int:
    deadline = time.monotonic() + _SECONDS
    while (found := look()) is None:
        if run.done():
            raise _Ended
        assert time.monotonic() < deadline, "the program takes too long"
        time.sleep(0.02)
    return found


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it ended while we looked


def group_of(pid: int) -> Path:
    """The directory of the control group that memory of a process is charged to."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory", path.lstrip("/"))
        if controllers == "" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            return Path("/sys/fs/cgroup", path.lstrip("/"))
    raise AssertionError("the box has no control group for memory")


def charged_to(group: Path) -> int:
    """Kernel memory that is charged to a control group."""
    if (group / "memory.kmem.usage_in_bytes").exists():
        return int((group / "memory.kmem.usage_in_bytes").read_text())
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(stat["slab"])


def slab_bytes() -> dict[str, int]:
    """The memory of each of the kernel's caches."""
    found = {}
    for line in Path("/proc/slabinfo").read_text().splitlines()[2:]:
        words = line.split()
        found[words[0]] = int(words[5]) * int(words[14]) * _PAGE
    return found


def grown_since(before: dict[str, int]) -> int:
    """By how much they have grown; shrinking ones are others' doing."""
    return sum(max(0, size - before.get(name, 0)) for name, size in slab_bytes().items())
