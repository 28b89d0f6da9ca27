"""What a server opens for a box: all of it or nothing."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidebox.errors import ProvisionFailed
from tidebox.runtime.native.piped import Ends

# A pair of sockets and three pipes.
_NEEDED = 8


@contextmanager
def _free_descriptors(count: int) -> Iterator[None]:
    """No more than so many can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2 * _NEEDED, hard))
    held: list[int] = []
    try:
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("free", range(_NEEDED))
def test_without_enough_descriptors_none_is_kept(free: int) -> None:
    before = os.listdir("/proc/self/fd")
    with _free_descriptors(free), pytest.raises(ProvisionFailed) as caught:
        Ends(single=True)
    assert caught.value.details["step"] == "pipes"
    assert os.listdir("/proc/self/fd") == before


def test_with_enough_all_are_opened() -> None:
    with _free_descriptors(_NEEDED):
        ends = Ends(single=True)
        ends.give_away()
        for fd in ends.ours:
            os.close(fd)
