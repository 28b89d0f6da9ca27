"""What a template does where something fails between the namespaces of a box and its program."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tidebox.spawner import ids, single, syscalls
from tidebox.spawner.hulls import Hull


def sleeping() -> tuple[int, int]:
    """A child that does nothing, and its descriptor."""
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(0)
    return pid, os.pidfd_open(pid)


class Pair:
    """A template's boxes over processes of this test's own."""

    def __init__(self) -> None:
        self.hulls: list[Hull] = []
        self.programs: list[int] = []
        boxes: Any = object.__new__(single.SingleBoxes)
        self.boxes = boxes
        boxes._epoll = select.epoll()
        boxes._two_ids = True
        boxes._hulls = SimpleNamespace(take=self._take, maker=-1)
        boxes._watched = {}
        boxes._own_pids = -1
        boxes._oom_score = SimpleNamespace(raise_it=lambda: None, restore=lambda: None)
        self.order = SimpleNamespace(
            number=1, cgroup_directory=None, descriptors=[*os.pipe()], ends=[], builtin=None, attach=[], devices=None
        )

    def _take(self) -> Hull:
        self.hulls.append(Hull(*sleeping(), []))
        return self.hulls[-1]

    def clone(self, flags: int, directory: int | None) -> tuple[int, int]:
        """In place of the system call."""
        pid, pidfd = sleeping()
        self.programs.append(pid)
        return pid, pidfd

    def close(self) -> None:
        """Leave no process behind."""
        for pid in [hull.pid for hull in self.hulls] + self.programs:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    made = Pair()
    monkeypatch.setattr(single, "_entering", lambda order, hull: [])
    monkeypatch.setattr(single, "_announcing", lambda order, outward_ends: [])
    monkeypatch.setattr(ids, "map_box", lambda pid, number, two_ids: None)
    monkeypatch.setattr(syscalls, "enter_namespace", lambda descriptor, kind: None)
    monkeypatch.setattr(syscalls, "clone", made.clone)
    yield made
    made.close()


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def kill(hull: Hull) -> None:
    os.kill(hull.pid, signal.SIGKILL)
    select.select([hull.pidfd], [], [])


@pytest.mark.parametrize(
    ("where", "number"), [("map", errno.ENOENT), ("map", errno.EINVAL), ("enter", errno.ESRCH), ("clone", errno.ENOMEM)]
)
def test_a_hull_that_is_killed_while_it_is_taken_is_replaced(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    def fail_first(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if len(pair.hulls) == 1 and arguments[0] != -1:
                kill(pair.hulls[0])
                raise OSError(number, os.strerror(number))
            return original(*arguments)

        return call

    owner, name = {
        "map": (ids, "map_box"),
        "enter": (syscalls, "enter_namespace"),
        "clone": (syscalls, "clone"),
    }[where]
    monkeypatch.setattr(owner, name, fail_first(getattr(owner, name)))
    pair.boxes.open(pair.order)
    assert len(pair.hulls) == 2
    assert state_of(pair.hulls[1].pid) != "Z"


def test_what_fails_for_another_reason_takes_no_other_hull(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(syscalls, "clone", full)
    with pytest.raises(BlockingIOError):
        pair.boxes.open(pair.order)
    assert len(pair.hulls) == 1


@pytest.mark.parametrize("registrations", [0, 1])
def test_a_box_that_cannot_be_watched_ends_alone(pair: Pair, registrations: int) -> None:
    class Full:
        """Takes so many registrations and no more."""

        def __init__(self) -> None:
            self.registered: list[int] = []

        def register(self, fd: int, events: int) -> None:
            if len(self.registered) == registrations:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.registered.append(fd)

        def unregister(self, fd: int) -> None:
            self.registered.remove(fd)

    pair.boxes._epoll = Full()
    with pytest.raises(OSError, match="No space"):
        pair.boxes.open(pair.order)
    assert pair.boxes._epoll.registered == []
    assert pair.boxes._watched == {}
    # Its program was waited for, its init is dead, and what came with the order is the caller's to close.
    with pytest.raises(ChildProcessError):
        os.waitpid(pair.programs[0], 0)
    assert os.waitpid(pair.hulls[0].pid, 0)[1] == signal.SIGKILL
    for descriptor in pair.order.descriptors:
        os.close(descriptor)
