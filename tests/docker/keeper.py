"""One Docker daemon that the processes of a test run share: the first that needs it has it started, the last one ended.

Each user holds a shared lock on a file for as long as it lives. The keeper, a program of its own, waits for the
exclusive lock, which it gets when nobody is left, however they ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.docker import daemon

_VARIABLE = "TIDEBOX_TEST_DOCKER"
"""Where the processes of one test run meet: the first of them says it, and the others are its children."""
_held: list[int] = []
"""The lock of this process, while it uses the daemon."""


@contextlib.contextmanager
def meeting_place() -> Iterator[None]:
    """Let this process and its children share a daemon; at the end wait until nothing of it is left."""
    if _VARIABLE in os.environ:
        yield
        return
    place = Path(tempfile.mkdtemp(prefix="tidebox-keeper-"))
    os.environ[_VARIABLE] = str(place)
    try:
        yield
    finally:
        del os.environ[_VARIABLE]
        while _held:
            os.close(_held.pop())
        with (place / "keeping").open("a") as keeping:
            fcntl.flock(keeping, fcntl.LOCK_EX)
        shutil.rmtree(place)


@functools.cache
def shared_host() -> str:
    """The address of the shared daemon, which is there for as long as this process."""
    place = Path(os.environ[_VARIABLE])
    users = os.open(place / "users", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    # Waits for a keeper that is ending its daemon.
    fcntl.flock(users, fcntl.LOCK_SH)
    _held.append(users)
    with (place / "starting").open("a") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        told = place / "socket"
        if not told.exists():
            _start_keeper(place)
        return f"unix://{told.read_text()}"


def _start_keeper(place: Path) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.docker.keeper", str(place)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
        start_new_session=True,
    )
    assert keeper.stdout is not None
    with keeper.stdout:
        assert keeper.stdout.readline() == "ready\n", f"the keeper of the Docker daemon ended with {keeper.wait()}"
    # It outlives the process that started it, which must not complain of that.
    keeper.returncode = 0


def _keep(place: Path) -> None:
    with (place / "keeping").open("a") as keeping, (place / "users").open("a") as users:
        fcntl.flock(keeping, fcntl.LOCK_EX)
        with daemon.running() as running:
            told = place / "socket"
            told.write_text(str(running.socket))
            sys.stdout.write("ready\n")
            sys.stdout.close()
            fcntl.flock(users, fcntl.LOCK_EX)
            told.unlink()


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
