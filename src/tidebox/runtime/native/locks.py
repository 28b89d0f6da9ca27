"""On which file systems the locks of the machine are: tells whose they are, though no process has the files open.

A lock of an open file description lives as long as something refers to that, be it a mapping or a message that nobody
receives. The kernel lists every lock of the machine with its file system, and those of a box are its own. To list them
stops everybody who locks for moments, so it is done only when nothing else tells, and for a bounded time.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter

_READ_BYTES = 1 << 16


def count_by_device(most: int, suspected: set[str], seconds: float) -> tuple[Counter[str], bool]:
    """Count the locks on each device; the second value says whether the time was enough.

    The newest come first, and no more are looked at when one of the ``suspected`` has more than ``most``.
    """
    found: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    with open("/proc/locks", "rb", buffering=0) as file:
        rest = b""
        while piece := file.read(_READ_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            found.update(_device_of(line) for line in lines)
            if any(found[device] > most for device in suspected):
                return found, True
            if time.monotonic() > deadline:
                return found, False
    return found, True


def _device_of(line: bytes) -> str:
    # Such as ``1: POSIX ADVISORY WRITE 3411 fd:01:1575 0 EOF``.
    place = next((word for word in line.split() if word.count(b":") == 2), b"0:0:0")
    major, minor, _ = place.split(b":")
    return f"{int(major, 16)}:{int(minor, 16)}"


def devices_of(process: int | str) -> set[str]:
    """The devices of everything that is mounted for a process; none if it is dead."""
    try:
        with open(f"/proc/{process}/mountinfo") as file:
            return {line.split()[2] for line in file}
    except OSError:
        return set()


def devices_of_unnamed_files() -> set[str]:
    """Those of files that are on no mount, which boxes share: memory files, pipes, sockets, and other descriptors."""
    first, second = socket.socketpair()
    descriptors = [os.memfd_create("tidebox"), *os.pipe(), os.eventfd(0)]
    try:
        devices = [os.fstat(descriptor).st_dev for descriptor in (*descriptors, first.fileno())]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        first.close()
        second.close()
    return {f"{os.major(device)}:{os.minor(device)}" for device in devices}
