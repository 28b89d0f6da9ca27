"""Boxes with an agent: from a fresh clone to pid 1 of a box, in its cgroup and with no power it does not need."""

from __future__ import annotations

import os
import resource
import select

from tidebox.agent.child import HIGHEST_DESCRIPTOR
from tidebox.spawner import channel, confine, ids, steps
from tidebox.spawner import syscalls as sys_
from tidebox.spawner.leaves import BoxCgroups
from tidebox.spawner.networks import Networks

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import NoReturn

    from tidebox.spawner.orders import BoxOrder

_NAMESPACES = sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS
_READ_ONLY_PROC = steps.prepare([["read_only", "/proc"]])


class AgentBoxes:
    """The boxes of one template."""

    def __init__(self, sock: _socket.socket, epoll: select.epoll, two_ids: bool, egress: bool) -> None:
        self._sock = sock
        self._epoll = epoll
        self._two_ids = two_ids
        self._networks = Networks(egress)

    @property
    def patience(self) -> float | None:
        """Seconds to wait for something to do before ``prepare`` is called; None for as long as it takes."""
        return self._networks.patience

    def prepare(self) -> None:
        """Do something for the next box."""
        self._networks.add()

    def open(self, order: BoxOrder) -> None:
        """Make a box; OSError if that fails."""
        # A clone inherits the network this process stands in.
        outward_ends = self._networks.enter()
        gate_read, gate_write = os.pipe()
        try:
            pid, pidfd = sys_.clone(_NAMESPACES, order.cgroup_directory)
            if pid == 0:
                self._run(order, gate_read, outward_ends)
            self._epoll.register(pidfd, select.EPOLLIN)
            # If this fails, the child finds the gate closed and goes away by itself.
            ids.map_box(pid, order.number, self._two_ids)
            os.write(gate_write, b"+")
        finally:
            for descriptor in (gate_read, gate_write, *outward_ends):
                os.close(descriptor)
        for descriptor in order.descriptors:
            os.close(descriptor)

    def refuse(self, order: BoxOrder, failure: steps.StepFailed) -> None:
        """Tell why there is no such box."""
        channel.send(self._sock, {"box": order.box, **failure.told()})

    def handle(self, fd: int) -> None:
        """An init is dead."""
        os.waitid(os.P_PIDFD, fd, os.WEXITED)
        # Closing is not enough: a clone may still hold a copy, and epoll would go on reporting a number that means
        # another file by then.
        self._epoll.unregister(fd)
        os.close(fd)

    def _run(self, order: BoxOrder, gate: int, outward_ends: list[int]) -> NoReturn:
        """Never returns: ends as the agent, or reports the failing step and exits."""
        status = 1
        try:
            agent = order.shape.agent
            assert agent is not None
            if _set_up(self._sock, order, gate, outward_ends, self._two_ids):
                status = agent.serve()
        except steps.StepFailed as error:
            self.refuse(order, error)
        finally:
            os._exit(status)


def _set_up(sock: _socket.socket, order: BoxOrder, gate: int, outward_ends: list[int], two_ids: bool) -> bool:
    """Whether the box stands: not when the template gave it up."""
    for descriptor in order.attach:
        try:
            os.write(descriptor, b"0")
        except OSError as error:
            raise steps.StepFailed("attach to the cgroup", error) from error
    if os.read(gate, 1) != b"+":
        return False
    if order.devices is not None:
        os.dup2(order.devices, steps.DEVICES, inheritable=False)
    init = ids.AGENT_UID if two_ids else ids.USER_UID
    try:
        if two_ids:
            os.setgroups([ids.USER_UID])
        os.setresgid(init, init, init)
        os.setresuid(init, init, init)
    except OSError as error:
        raise steps.StepFailed("become init", error) from error
    confine.bound_init(two_ids)
    steps.run(order.shape.steps)
    if order.own_steps:
        steps.execute(order.own_steps)
    setup = order.shape.setup
    if order.leaf_directories:
        setup.leaves = leaves = BoxCgroups(order.leaf_directories, order.cgroup_version)
        try:
            leaves.settle()
        except OSError as error:
            raise steps.StepFailed("settle in the cgroup", error) from error
    setup.oom_score_fd = _keep_writable_proc()
    (setup.sock,) = order.ends
    steps.run(_READ_ONLY_PROC)
    workspace = os.open("/workspace", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    confine.restrict_init(two_ids)
    # Here, once: every program of the box inherits it. What it may not change any more is set before.
    resource.setrlimit(*confine.NO_CORE)
    sys_.make(order.shape.load_filter, "seccomp")
    channel.send_packed(sock, order.announcement, (os.pidfd_open(os.getpid()), workspace, *outward_ends))
    _close_all_but(sorted([*order.ends, *order.leaf_directories, setup.oom_score_fd]))
    return True


def _keep_writable_proc() -> int:
    """For init alone: programs see /proc read-only, and an agent must raise their OOM score above its own."""
    try:
        return sys_.open_tree("/proc")
    except OSError as error:
        raise steps.StepFailed("keep a writable /proc", error) from error


def _close_all_but(keep: list[int]) -> None:
    low = 3
    for fd in keep:
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, HIGHEST_DESCRIPTOR)
