"""Files of the image are the box's own: no lock and no watch reaches another box, or the machine."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.boxes import is_root
from tests.escape.probes import AsyncRun, Run, said
from tests.runtimes import RUNTIME, native_only

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/libc.so.6"))), Path("/usr/bin/env")).as_posix()


@pytest.fixture(autouse=True)
def _needs_private_files(needs: Callable[[str], None]) -> None:
    """Without root they are missing where something is mounted below a system directory."""
    needs("private_files")


FILES = [LIBRARY, "/usr/bin", "/usr", "/", "/etc/passwd", "/etc/ssl", "/.tidebox/park.js"]
DEVICES = ["/dev/null", "/dev/zero", "/dev", "/proc/kallsyms"]

# Holds a lock of its own kind long enough for every other that begins at the same time.
LOCK = """
import errno, fcntl, os, struct, time
file = os.open({path!r}, os.O_RDONLY)
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", flush=True)
except BlockingIOError:
    print("BREACH")
except OSError as error:
    print("no locks" if error.errno == errno.ENOLCK else error)
time.sleep(1.5)
"""
# The devices of a sandbox's own kernel cannot be locked at all.
UNLOCKABLE = ("/dev/null", "/dev/zero") if RUNTIME == "gvisor" else ()


def locked(path: str) -> str:
    return "no locks" if path in UNLOCKABLE else "locked"


def paths() -> list[str]:
    if RUNTIME == "gvisor":
        # Its kernel has no other file of these.
        return [path for path in FILES + DEVICES if path not in ("/proc/kallsyms", "/etc/ssl")]
    if RUNTIME == "docker":
        # The agent's own files are one volume for all containers, and what else there is, is the image's.
        return [path for path in FILES + DEVICES if path not in ("/.tidebox/park.js", "/etc/ssl")]
    # Without root nobody can make devices: a box has the machine's.
    return FILES + (DEVICES if is_root() else [])


@pytest.mark.parametrize("path", paths())
def test_a_lock_is_seen_by_no_other_box(box_arun: AsyncRun, path: str) -> None:
    async def both() -> list[str]:
        program = LOCK.format(path=path)
        return [said(result) for result in await asyncio.gather(box_arun(program), box_arun(program))]

    assert asyncio.run(both()) == [locked(path), locked(path)]


@pytest.mark.parametrize("path", [LIBRARY, "/usr/bin", *(["/dev/null"] if is_root() else [])])
def test_a_lock_is_not_seen_outside(box_arun: AsyncRun, path: str) -> None:
    async def beside() -> str:
        running = asyncio.ensure_future(box_arun(LOCK.format(path=path)))
        await asyncio.sleep(0.7)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
        return said(await running)

    assert asyncio.run(beside()) == locked(path)


@pytest.mark.skipif(not is_root(), reason="the spawner runs from the machine's interpreter without root")
@native_only("no program of a container is forked from an interpreter of ours")
def test_the_interpreter_that_a_box_was_forked_from_cannot_be_locked(box_run: Run) -> None:
    program = """
import fcntl, os, subprocess, sys
print(os.readlink("/proc/self/exe") == os.path.realpath(sys.executable))
try:
    fcntl.flock(os.open("/proc/self/exe", os.O_RDONLY), fcntl.LOCK_SH)
    print("BREACH")
except PermissionError:
    print("denied")
print(subprocess.run(["/proc/%d/exe" % os.getpid(), "-c", "print(6 * 7)"], capture_output=True, text=True).stdout)
"""
    assert said(box_run(program)).split() == ["True", "denied", "42"]


WATCH = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
watcher = libc.inotify_init1(os.O_NONBLOCK)
for path in {paths!r}:
    # IN_OPEN, IN_ACCESS, IN_CLOSE
    assert libc.inotify_add_watch(watcher, path.encode(), 0x39) >= 0, path
print("watching", flush=True)
time.sleep(2)
try:
    print("BREACH", os.read(watcher, 65536))
except BlockingIOError:
    print("nothing")
"""
USE = """
import subprocess, time
time.sleep(0.5)
for _ in range(5):
    subprocess.run(["/usr/bin/env", "true"], check=True)
"""


def test_a_watch_shows_nothing_of_others(box_arun: AsyncRun) -> None:
    async def beside() -> str:
        watched = ["/usr/bin", "/usr/bin/env", "/etc", LIBRARY, *(["/dev/null"] if is_root() else [])]
        running = asyncio.ensure_future(box_arun(WATCH.format(paths=watched)))
        await box_arun(USE)
        await asyncio.to_thread(subprocess.run, ["/usr/bin/env", "true"], check=True)
        return said(await running)

    assert asyncio.run(beside()).split() == ["watching", "nothing"]


def test_a_watch_shows_what_the_box_itself_does(box_run: Run) -> None:
    use = "import subprocess; subprocess.run(['env'])"
    program = WATCH.format(paths=["/usr/bin/env"]).replace("time.sleep(2)", use)
    assert "BREACH" in said(box_run(program))


def test_a_file_is_read_as_it_is_and_not_written(box_run: Run) -> None:
    program = f"""
import hashlib
print(hashlib.sha256(open({LIBRARY!r}, "rb").read()).hexdigest())
try:
    open({LIBRARY!r}, "r+b")
except OSError as error:
    print(error.errno)
"""
    expected = hashlib.sha256(Path(LIBRARY).read_bytes()).hexdigest()
    digest, number = said(box_run(program)).split()
    assert digest == expected
    assert int(number) in (1, 13, 30)
