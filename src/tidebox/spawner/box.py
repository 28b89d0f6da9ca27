"""From a fresh clone to pid 1 of a box: join the cgroup, execute the plan, give up every power, become the agent."""

from __future__ import annotations

import os

from tidebox.agent import child
from tidebox.agent.setup import Setup
from tidebox.agent.single import Defaults, Single
from tidebox.agent.users import User
from tidebox.spawner import channel, confine, processors, steps, warm
from tidebox.spawner import syscalls as sys_
from tidebox.spawner.leaves import Leaves

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Any, Callable, NoReturn

    from tidebox.agent.main import Agent

USER_UID = 1000
_READ_ONLY_PROC = steps.prepare([["read_only", "/proc"]])


# Makes the agent of boxes that have one; templates of others do without the memory it takes.
_make_agent: Callable[[Setup, dict[str, Any]], Agent] | None = None


def load_agent() -> None:
    """Let boxes of this process have an agent; later, on the root of an image, nothing can be imported any more."""
    global _make_agent
    from tidebox.spawner import agents

    _make_agent = agents.make_agent


class Shape:
    """What boxes of one kind have in common, told to the template once and decoded before they are cloned."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.inherited = steps.prepare(message["inherited"])
        # In two parts: what can be done while the template maps the ids, and what needs them.
        self.before = steps.prepare(message["before"])
        self.after = steps.prepare(message["after"])
        self.setup = Setup(
            sock=-1,
            generation=message["generation"],
            user=(USER_UID, USER_UID),
            default_user_name="user",
            confine=confine.confine_program,
            load_filter=confine.load_filter,
            builtins={"python": warm.park},
        )
        defaults = Defaults(
            {name.encode(): value.encode() for name, value in message["env"]},
            [child.rlimit(name, value, value) for name, value in message["rlimits"]],
            User(USER_UID, USER_UID, None),
        )
        # Made here, once: a box inherits it and only adds its descriptors.
        self.agent = None if _make_agent is None else _make_agent(self.setup, message)
        self.single = Single(self.setup, defaults)


class BoxOrder:
    """What the spawner asks a template for.

    Descriptors: the agent's socket, or the control socket and the standard streams of a single program; then the
    cgroup's.
    """

    def __init__(self, message: dict[str, Any], descriptors: list[int], shape: Shape) -> None:
        self.box: str = message["box"]
        self.number: int = message["number"]
        self.shape = shape
        self.cgroup_version: int = message["cgroup"]
        self.leaf_count: int = message["leaves"]
        self.first: bytes = message["first"]
        self.descriptors = descriptors
        # Put into words by the template, which does it all the time: a box has to copy every page it touches.
        self.announcement = channel.pack({"box": self.box})
        self._fixed = 4 if shape.agent is None else 1

    @property
    def ends(self) -> list[int]:
        """What connects init, and its program, with the server."""
        return self.descriptors[: self._fixed]

    @property
    def attach(self) -> list[int]:
        """What a v1 box writes itself into."""
        return (
            self.descriptors[self._fixed : len(self.descriptors) - self.leaf_count] if self.cgroup_version == 1 else []
        )

    @property
    def cgroup_directory(self) -> int | None:
        """The v2 leaf to be cloned into."""
        return self.descriptors[self._fixed] if self.cgroup_version == 2 else None

    @property
    def leaf_directories(self) -> list[int]:
        """The delegated directories for a leaf per exec; empty in a single-use box."""
        return self.descriptors[len(self.descriptors) - self.leaf_count :] if self.leaf_count else []


def run_box(sock: _socket.socket, order: BoxOrder, gate: int, two_ids: bool) -> NoReturn:
    """Never returns: ends as the agent, or reports the failing step and exits."""
    status = 1
    try:
        if _set_up(sock, order, gate, two_ids):
            status = (order.shape.agent or order.shape.single).serve()
    except steps.StepFailed as error:
        text = os.strerror(error.errno)
        channel.send(sock, {"box": order.box, "failed": error.step, "errno": error.errno, "text": text})
    finally:
        os._exit(status)


def _set_up(sock: _socket.socket, order: BoxOrder, gate: int, two_ids: bool) -> bool:
    """Whether the box stands: not when the template gave it up."""
    if order.first:
        processors.gather()
    for descriptor in order.attach:
        try:
            os.write(descriptor, b"0")
        except OSError as error:
            raise steps.StepFailed("attach to the cgroup", error) from error
    steps.run(order.shape.inherited)
    confine.bound(two_ids)
    single = order.shape.single if order.shape.agent is None else None
    if single is not None:
        control, *stdio = order.ends
        single.equip(control, stdio, _open_own_score())
        if order.first:
            # Its program is forked right away, and gets ready while the box is set up around it.
            single.begin(order.first, _get_ready)
            if single.pid:
                processors.spread(single.pid)
    steps.run(order.shape.before)
    if os.read(gate, 1) != b"+":
        return False
    user = (USER_UID, USER_UID)
    init = (0, 0) if two_ids else user
    try:
        if two_ids:
            os.setgroups([USER_UID])
        os.setresgid(init[1], init[1], init[1])
        os.setresuid(init[0], init[0], init[0])
    except OSError as error:
        raise steps.StepFailed("become init", error) from error
    leaves = Leaves(order.leaf_directories, order.cgroup_version) if order.leaf_directories else None
    if leaves is not None:
        try:
            leaves.settle()
        except OSError as error:
            raise steps.StepFailed("settle in the cgroup", error) from error
    steps.run(order.shape.after)
    keep = [*order.ends, *order.leaf_directories]
    if single is None:
        setup = order.shape.setup
        setup.oom_score_fd = _keep_writable_proc()
        setup.leaves = leaves
        (setup.sock,) = order.ends
        keep.append(setup.oom_score_fd)
    steps.run(_READ_ONLY_PROC)
    workspace = os.open("/workspace", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    confine.restrict_init(two_ids)
    if single is not None:
        keep += single.box_stands()
    channel.send_packed(sock, order.announcement, (os.pidfd_open(os.getpid()), workspace))
    _close_all_but(sorted(keep))
    return True


def _get_ready() -> None:
    processors.gather()
    warm.get_ready()


def _keep_writable_proc() -> int:
    """For init alone: programs see /proc read-only, and an agent must raise their OOM score above its own."""
    try:
        return sys_.open_tree("/proc")
    except OSError as error:
        raise steps.StepFailed("keep a writable /proc", error) from error


def _open_own_score() -> int:
    """Through the template's /proc, and before the change of identity that makes this file somebody else's."""
    try:
        return os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise steps.StepFailed("open the OOM score", error) from error


def _close_all_but(keep: list[int]) -> None:
    low = 3
    for fd in keep:
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 65536)
