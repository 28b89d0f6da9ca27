"""Networks of boxes: nothing but ``lo``, and a box has no power over its own, not even as its root.

One costs as much as everything else of a box together, so a few are kept ready, each for one box.
"""

from __future__ import annotations

import os

from tidebox.spawner import outward, steps
from tidebox.spawner import syscalls as sys_

SPARE = 4
# What was used is made anew when the box that needed it has had the processors for itself, unless boxes come so fast
# that few are left.
_BREATH_SECONDS = 0.02
_FEWEST = 2
# What is sent to a connection that nobody has accepted is counted nowhere. So few of them wait, and each holds little
# until its program reads from it: then its buffer grows.
_SET_UP = steps.prepare(
    [
        ["loopback"],
        # Older kernels show it to the machine's own root only; then more may wait.
        ["write_if_shown", "/proc/sys/net/core/somaxconn", "128"],
        ["write", "/proc/sys/net/ipv4/tcp_rmem", "4096 16384 1048576"],
    ]
)


def enter_new(egress: bool) -> list[int]:
    """Enter a new network namespace; all processes cloned from here inherit it.

    With ``egress`` it leads outward, and the descriptors by which it does are returned.
    """
    sys_.unshare(sys_.CLONE_NEWNET)
    steps.run(_SET_UP)
    return outward.set_up() if egress else []


def patience(ready: int) -> float | None:
    """Return the seconds to wait for something to do before one more is made; None where enough are ``ready``."""
    if ready >= SPARE:
        return None
    return _BREATH_SECONDS if ready >= _FEWEST else 0.0


class Networks:
    """Network namespaces that are kept ready."""

    def __init__(self, egress: bool) -> None:
        self._egress = egress
        self._ready: list[tuple[int, list[int]]] = []
        self._refused = False

    @property
    def patience(self) -> float | None:
        """Seconds to wait before ``add`` is called; None where none is to be added."""
        return None if self._refused else patience(len(self._ready))

    def add(self) -> None:
        """Make one more. Where the machine is full that can wait until one is needed: the boxes there are go on."""
        try:
            self._make()
        except (OSError, steps.StepFailed):
            self._refused = True

    def _make(self) -> None:
        outward_ends = enter_new(self._egress)
        self._ready.append((os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC), outward_ends))

    def enter(self) -> list[int]:
        """Enter one that was never used; returns the descriptors by which it leads outward, if it does."""
        self._refused = False
        if not self._ready:
            self._make()
        network, outward_ends = self._ready.pop()
        try:
            sys_.enter_namespace(network, sys_.CLONE_NEWNET)
        finally:
            os.close(network)
        return outward_ends
