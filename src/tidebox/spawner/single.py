"""Boxes for one program: what most boxes are, made of as little as possible.

Besides its hull, whose init only sleeps, such a box is one process: forked from the template into the namespaces of the
hull, it sets the box up around itself, gives up every power, waits for its order on its standard input and becomes the
program. Until then it runs nothing but our code, and by then it holds nothing but its streams: the control socket by
which it reports an exec that failed is closed by the one that succeeds, and before a Python program of ours begins.
That it is to be a Python of ours may be said when the box is ordered; what that is to run comes through the standard
input all the same.

What it does is a list of calls that the template has made ready: a process that was just forked has to copy every page
it writes to, and code that runs for the first time writes to many.

The template is the parent of all these programs. Through a socket per box that no program ever holds the box tells that
it stands, or that its program cannot be executed, and the template how its program ended; signals come down that way.
The template never sees a program: what is in its memory is in that of all later boxes.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import resource
import select
from struct import Struct, pack

from tidebox.agent import child
from tidebox.agent.users import BoxUser
from tidebox.spawner import channel, confine, ids, outward, steps
from tidebox.spawner import syscalls as sys_
from tidebox.spawner.hulls import JOINABLE, Hull, Hulls, MakerDied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn

    from tidebox.agent.init_setup import InitSetup
    from tidebox.spawner.orders import BoxOrder
    from tidebox.spawner.steps import Prepared

# How a program ended: its wait status, cpu time, most memory. One that never began tells itself, as ``child`` does.
_REPORT = Struct("=iqq")
_ORDER_SIZE = Struct("=I")
_LARGEST_SIGNAL = 4096
# How many hulls are taken for one box where they are found dead: more than are kept ready.
_MOST_HULLS = 8


class Single:
    """All that boxes of one shape have in common, and their programs unless their order says otherwise."""

    def __init__(
        self, setup: InitSetup, message: dict[str, Any], shaping: list[Prepared], two_ids: bool, egress: bool
    ) -> None:
        """``shaping`` is what makes a box of this shape of the namespaces of a hull."""
        self.setup = setup
        self._env = {name.encode(): value.encode() for name, value in message["env"]}
        rlimits = {name: child.rlimit(name, value, value) for name, value in message["rlimits"]}
        descriptors = rlimits.pop("nofile")
        self.set_up = [*_changing_user(two_ids), *_bounding(), *shaping]
        """Done in every hull, by the process that becomes the program."""
        self.settle = [
            _allowing_descriptors(descriptors),
            *_becoming_plain(rlimits),
            *_confining(message["nested_filters"], egress),
        ]
        """Done after that."""
        self.narrow = [_limiting("nofile", descriptors)]
        """Done last, when it has told that it stands."""
        if self._env != setup.environment:
            self.settle.append(("set the environment", child.replace_environment, (self._env,)))
        self._user = BoxUser(ids.USER_UID, ids.USER_UID, None)

    def await_order(self) -> child.ChildStart | None:
        """Wait for the order that says what to become; None when none will come."""
        size = _read_all(0, _ORDER_SIZE.size)
        data = _read_all(0, _ORDER_SIZE.unpack(size)[0]) if size else b""
        if not data:
            return None
        # From the host, which may order anything.
        program = marshal.loads(data)
        rlimits = [child.rlimit("cpu", program["cpu"], program["cpu"] + 1)] if program["cpu"] else []
        env = {**self._env, **program["env"]} if program["env"] else self._env
        start = child.ChildStart(program["argv"], env, program["cwd"], self._user, rlimits, False)
        start.stdio = (0, 1, 2)
        start.apart = True
        start.keeps_status = True
        return start


def _read_all(fd: int, size: int) -> bytes:
    """Read ``size`` bytes, or none if the other side is gone before."""
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            return b""
        data += piece
    return data


class _Box:
    """A box as its template knows it; -1 stands for what is over."""

    __slots__ = ("control", "hull", "program", "pid")

    def __init__(self, control: int, hull: Hull, pid: int, program: int) -> None:
        self.control = control
        self.hull = hull
        self.pid = pid
        self.program = program


class SingleBoxes:
    """The boxes of one template."""

    def __init__(self, epoll: select.epoll, two_ids: bool, egress: bool) -> None:
        self._epoll = epoll
        self._two_ids = two_ids
        self._hulls = Hulls(egress)
        self._watched: dict[int, Callable[[], None]] = {}
        epoll.register(self._hulls.maker, select.EPOLLIN)
        self._oom_score = _OomScore()
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._signals = child.changed_signals()
        # A builtin is a Python again, and has what Python changes as Python has it.
        assert child.PYTHONS_OWN.issuperset(self._signals)

    # Hulls are made without being asked for: there is nothing to prepare here.
    patience = None

    def prepare(self) -> None:
        """Never called."""

    def open(self, order: BoxOrder) -> None:
        """Make a box; OSError if that fails."""
        box = self._cloned(order)
        try:
            self._watch(box.program, lambda: self._on_end(box))
            self._watch(box.control, lambda: self._on_control(box))
        except OSError:
            self._give_up(box)
            raise
        for descriptor in order.descriptors[1:]:
            os.close(descriptor)

    def _cloned(self, order: BoxOrder) -> _Box:
        left = _MOST_HULLS
        while True:
            hull = self._hulls.take()
            try:
                ids.map_box(hull.pid, order.number, self._two_ids)
                pid, program = self._clone(order, hull)
                hull.give_away()
                return _Box(order.descriptors[0], hull, pid, program)
            except OSError:
                # Somebody may have killed it, while it waited or just now.
                left -= 1
                dead = hull.is_dead()
                hull.sink()
                if not (dead and left):
                    raise

    def _clone(self, order: BoxOrder, hull: Hull) -> tuple[int, int]:
        """The process that becomes the program: its pid, and the descriptor of that."""
        first, last = _entering(order, hull), _announcing(order, len(hull.outward_ends))
        sys_.enter_namespace(hull.pidfd, sys_.CLONE_NEWPID)
        try:
            self._oom_score.raise_it()
            pid, program = sys_.clone(0, order.cgroup_directory)
            if pid == 0:
                self._live(order, first, last)
        finally:
            self._oom_score.restore()
            sys_.enter_namespace(self._own_pids, sys_.CLONE_NEWPID)
        return pid, program

    def _give_up(self, box: _Box) -> None:
        """End a box whose descriptors cannot be watched; those of its order stay open."""
        if box.program in self._watched:
            self._epoll.unregister(box.program)
            del self._watched[box.program]
        box.hull.sink()
        _signal.pidfd_send_signal(box.program, _signal.SIGKILL)
        sys_.wait(box.pid)
        os.close(box.program)

    def refuse(self, order: BoxOrder, failure: steps.StepFailed) -> None:
        """Tell why there is no such box."""
        try:
            os.write(order.ends[0], channel.pack({"re": order.request, **failure.told()}))
        except OSError:
            pass  # nobody wants it any more

    def handle(self, fd: int) -> None:
        """Something happened to a watched descriptor."""
        if fd == self._hulls.maker:
            raise MakerDied
        # Not there: another event of the same round made an end of it.
        if fd in self._watched:
            self._watched[fd]()

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._watched[fd] = callback

    def _let_go(self, fd: int) -> int:
        # Closing is not enough: a clone may still hold a copy, and epoll would go on reporting a number that means
        # another file by then.
        self._epoll.unregister(fd)
        del self._watched[fd]
        os.close(fd)
        return -1

    def _on_end(self, box: _Box) -> None:
        """The program is dead: by itself, or because its init is."""
        ended = os.waitid(os.P_PIDFD, box.program, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None:
            return  # the event was for what had this number before, and ended in the same round
        by_init = ended.si_status == _signal.SIGKILL and ended.si_code != os.CLD_EXITED and box.hull.is_sinking()
        report = sys_.wait(box.pid)
        if by_init:
            self._end(box)
        elif box.control >= 0:
            try:
                os.write(box.control, _REPORT.pack(*report))
            except OSError:
                pass  # the host is gone, which the socket tells next
        # Last: somebody waits for the report.
        box.program = self._let_go(box.program)

    def _on_control(self, box: _Box) -> None:
        try:
            order = os.read(box.control, _LARGEST_SIGNAL)
        except OSError:
            order = b""
        if not order:
            self._end(box)
        elif box.program >= 0:
            number = marshal.loads(order)["signal"]
            try:
                os.killpg(box.pid, number)
            except ProcessLookupError:
                os.kill(box.pid, number)  # it does not lead its group yet

    def _end(self, box: _Box) -> None:
        """Nobody wants it any more, or its init is dead."""
        if box.control >= 0:
            box.control = self._let_go(box.control)
            box.hull.sink()

    def _live(self, order: BoxOrder, first: list[Prepared], last: list[Prepared]) -> NoReturn:
        """Runs in the process that becomes the program."""
        try:
            single = order.shape.single
            steps.run(first)
            # By now all that it still needs has a number of its own.
            order.descriptors[0] = _CONTROL
            steps.run(single.set_up)
            if order.own_steps:
                steps.execute(order.own_steps)
            steps.run(single.settle)
            steps.run(last)
            steps.run(single.narrow)
            if order.builtin is not None:
                single.setup.builtins[order.builtin[0]](order.builtin[1:], _CONTROL)
            start = single.await_order()
            if start is None:
                os._exit(0)
            if child.find_builtin(start.argv[0], single.setup.builtins) is None:
                child.reset_signals(self._signals)
            child.become(start, single.setup, _CONTROL, ())
        except steps.StepFailed as error:
            self.refuse(order, error)
        finally:
            os._exit(1)


# What a box holds besides its streams until it has told that it stands, each in a place that is known before.
_CONTROL, _HULL, _WORKSPACE = 3, 4, 5
_OUTWARD = steps.DEVICES + 1
_BEHIND = _OUTWARD + outward.DESCRIPTORS


_control: _socket.socket


def reserve() -> None:
    """Take these numbers before anything else can, for good: nothing that a box is given will have one of them."""
    global _control
    ends = [end.detach() for end in _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)]
    while os.dup(ends[0]) < _BEHIND:
        pass
    # What it stands for here is never used.
    _control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, _CONTROL)


def _entering(order: BoxOrder, hull: Hull) -> list[Prepared]:
    """Return the first calls of a process: attach to the cgroup, take its descriptors, and enter its hull."""
    control, *stdio = order.ends
    return [
        *[("attach to the cgroup", os.write, (descriptor, b"0")) for descriptor in order.attach],
        *[("take the streams", os.dup2, (descriptor, place)) for place, descriptor in enumerate(stdio)],
        # Not for a program that is executed.
        ("take the control socket", os.dup2, (control, _CONTROL, False)),
        ("take the hull", os.dup2, (hull.pidfd, _HULL, False)),
        *_taking_devices(order),
        *[
            ("take the network", os.dup2, (descriptor, place, False))
            for place, descriptor in enumerate(hull.outward_ends, _OUTWARD)
        ],
        ("enter the hull", sys_.call_setns, (_HULL, JOINABLE)),
    ]


def _taking_devices(order: BoxOrder) -> list[Prepared]:
    return [] if order.devices is None else [("take the devices", os.dup2, (order.devices, steps.DEVICES, False))]


def _announcing(order: BoxOrder, outward_ends: int) -> list[Prepared]:
    """Tell that the box stands, and keep only what the process needs to tell that it cannot become the program."""
    told = [_HULL, _WORKSPACE, *range(_OUTWARD, _OUTWARD + outward_ends)]
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pack(f"{len(told)}i", *told))]
    return [
        ("tell that the box stands", _control.sendmsg, ([order.announcement], ancillary, _socket.MSG_NOSIGNAL)),
        ("keep the control socket", os.closerange, (_HULL, told[-1] + 1)),
    ]


class _OomScore:
    """The template's own, raised for the moment of a clone: a child inherits it, and to find the file again, in a /proc
    that it has not looked into yet, would take it longer than all its mounts."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._own = os.read(self._fd, 16)
        # One that is higher already, as for a whole container, stays.
        self._is_raised = int(self._own) < int(child.OOM_SCORE)

    def raise_it(self) -> None:
        """Raise it to that of programs."""
        if self._is_raised:
            os.pwrite(self._fd, child.OOM_SCORE, 0)

    def restore(self) -> None:
        """Lower it again, which anybody may down to where it was set with privilege."""
        if self._is_raised:
            os.pwrite(self._fd, self._own, 0)


def _changing_user(two_ids: bool) -> list[Prepared]:
    """No power goes with the old identity: that is nobody in the new user namespace."""
    label, ours = "become the user", (ids.USER_UID,) * 3
    groups: list[Prepared] = [(label, os.setgroups, ([ids.USER_UID],))] if two_ids else []
    return [*groups, (label, os.setresgid, ours), (label, os.setresuid, ours)]


def _bounding() -> list[Prepared]:
    return [("bound the capabilities", call, arguments) for call, arguments in confine.BOUND]


def _becoming_plain(rlimits: dict[str, tuple[int, int, int]]) -> list[Prepared]:
    """A session and limits of its own, at the place where programs begin."""
    return [
        ("lead a session", os.setsid, ()),
        *[_limiting(name, limit) for name, limit in rlimits.items()],
        ("limit core", resource.setrlimit, confine.NO_CORE),
        ("go to the workspace", os.chdir, ("/workspace",)),
    ]


def _limiting(name: str, limit: tuple[int, int, int]) -> Prepared:
    return (f"limit {name}", resource.setrlimit, (limit[0], limit[1:]))


def _allowing_descriptors(limit: tuple[int, int, int]) -> Prepared:
    """Have at least as many as the program may; lowered to that later.

    A sender of descriptors may have no more on the way, together with all others of the same user, than its rlimit
    lets it have open: a box for few descriptors could not tell that it stands while others are made.
    """

    def allow() -> None:
        number, wanted, _ = limit
        soft, hard = resource.getrlimit(number)
        if wanted > soft:
            resource.setrlimit(number, (wanted, max(wanted, hard)))

    return ("limit nofile", allow, ())


def _confining(nested_filters: bool, egress: bool) -> list[Prepared]:
    """No power; no descriptor but the streams and what it still has to tell with, of which the workspace's is the
    last to get a number."""
    unneeded = (
        [(_WORKSPACE, _OUTWARD), (_BEHIND, child.HIGHEST_DESCRIPTOR)]
        if egress
        else [(_WORKSPACE, child.HIGHEST_DESCRIPTOR)]
    )
    return [
        *[("give up the capabilities", call, arguments) for call, arguments in confine.CONFINE],
        *[("load the system call filter", *call) for call in confine.load_filter_calls(nested_filters)],
        *[("close all else", os.closerange, numbers) for numbers in unneeded],
        ("open the workspace", os.open, ("/workspace", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)),
    ]
