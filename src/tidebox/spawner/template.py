"""A template: one warm process per image from which boxes are cloned.

It stands in namespaces of its own on the image's prepared read-only root, so that a box adds only what is its own.
It has no power on the machine:
as root it lives in a user namespace over a block of unused uids, without root in one over the caller's uid.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import fcntl
import gc
import os
import select
import sys
from struct import pack

from tidebox.agent.child import HIGHEST_DESCRIPTOR
from tidebox.spawner import channel, ids, single, steps, warm
from tidebox.spawner import syscalls as sys_
from tidebox.spawner.box import AgentBoxes
from tidebox.spawner.orders import BoxOrder, Shape
from tidebox.spawner.single import SingleBoxes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn

    from tidebox.agent.init_setup import InitSetup
    from tidebox.agent.main import Agent

    MakeAgent = Callable[[InitSetup, dict[str, Any]], Agent]

_FIRST_DESCRIPTOR = 16
# How long a template may take to stand, or to take an order; and to die.
_ANSWER_SECONDS = 15
_DEATH_SECONDS = 2.0
_OUTER = sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWNET | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS


class Template:
    """The spawner's handle of a template process."""

    def __init__(self, pid: int, pidfd: int, sock: _socket.socket) -> None:
        self.overlay_errno = 0
        """Why its boxes cannot have files of their own; 0 if they can."""
        self.preloaded: dict[str, Any] | None = None
        """What it said of the modules that it was to load."""
        self.pid = pid
        self.pidfd = pidfd
        self.sock = sock

    def close(self) -> None:
        """End it, and with it every box cloned from it."""
        self.sock.close()
        try:
            os.kill(self.pid, 9)
        except ProcessLookupError:
            pass
        # A process that is stuck in the kernel is left to the one that collects the children of a dead spawner.
        if select.select([self.pidfd], [], [], _DEATH_SECONDS)[0]:
            os.waitpid(self.pid, 0)
        os.close(self.pidfd)


def start(
    plan: list[list[Any]],
    overlays: list[list[Any]],
    uid_base: int | None,
    agent: bool,
    egress: bool,
    loads: bool,
    adopt: Callable[[int], None],
) -> Template:
    """Fork a template that executes ``plan``, whose boxes have an ``agent`` or are for single programs.

    With ``egress`` their networks lead outward. One that ``loads`` can be told to load modules for their programs.

    ``overlays`` are steps of its boxes that this machine may not allow, which the template tries.

    ``uid_base`` is the first uid of its block, None without root; ``adopt`` is told its pid before it does anything.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    # Nobody else is served while the spawner waits for one template.
    for option in (_socket.SO_RCVTIMEO, _socket.SO_SNDTIMEO):
        ours.setsockopt(_socket.SOL_SOCKET, option, pack("ll", _ANSWER_SECONDS, 0))
    flags = _OUTER if uid_base is not None else _OUTER | sys_.CLONE_NEWUSER
    pid, pidfd = sys_.clone(flags)
    if pid == 0:
        ours.close()
        _main(theirs, plan, overlays, uid_base, agent, egress, loads)
    theirs.close()
    template = Template(pid, pidfd, ours)
    try:
        if uid_base is None:
            _map(pid, f"0 {os.getuid()} 1\n", f"0 {os.getgid()} 1\n", deny_setgroups=True)
        adopt(pid)
        channel.send_order(ours, {})
        _await_ready(template)
    except BaseException:
        template.close()
        raise
    return template


def _map(pid: int, user_ids: str, group_ids: str, deny_setgroups: bool) -> None:
    try:
        ids.write_map(pid, user_ids, group_ids, deny_setgroups)
    except OSError as error:
        raise steps.StepFailed("map user ids", error) from error


def _await_ready(template: Template) -> None:
    try:
        received = channel.receive(template.sock)
    except BlockingIOError:
        stuck = OSError(errno.ETIMEDOUT, f"did not stand within {_ANSWER_SECONDS} s")
        raise steps.StepFailed("set up the template", stuck) from None
    if received is None:
        raise steps.StepFailed("template", OSError(0, "died while it was set up"))
    message = received[0]
    if "failed" in message:
        raise steps.StepFailed(str(message["failed"]), OSError(int(message["errno"]), str(message["text"])))
    template.overlay_errno = int(message["overlay_errno"])


def _main(
    sock: _socket.socket,
    plan: list[list[Any]],
    overlays: list[list[Any]],
    uid_base: int | None,
    agent: bool,
    egress: bool,
    loads: bool,
) -> NoReturn:
    status = 1
    complaints = 2
    try:
        # Out of the way of the numbers that boxes give a meaning.
        sock = _socket.socket(fileno=fcntl.fcntl(sock.detach(), fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR))
        make_agent = _load_agent() if agent else None
        loader = _load_loader() if loads else None
        _build(sock, plan, uid_base)
        overlay_errno = _try_overlays(overlays)
        complaints = _stand_like_an_init()
        gc.collect()
        gc.freeze()
        gc.disable()
        _bequeath_code()
        channel.send(sock, {"ready": True, "overlay_errno": overlay_errno})
        _serve(sock, uid_base is not None, make_agent, egress, loader)
        status = 0
    except steps.StepFailed as error:
        channel.send(sock, error.told())
    except ConnectionError:
        pass  # the spawner is dead
    except BaseException as error:
        os.dup2(complaints, 2)
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(status)


def _load_agent() -> MakeAgent:
    """Later, on the root of an image, nothing can be imported any more; and boxes without an agent do without it."""
    from tidebox.spawner import agents

    return agents.make_agent


def _load_loader() -> warm.Loader:
    """Now, for the same reason; a program without imports does without it, and so is forked and ended faster."""
    from tidebox.spawner import handover

    return handover.load


def _build(sock: _socket.socket, plan: list[list[Any]], uid_base: int | None) -> None:
    keep = sock.fileno()
    os.closerange(3, keep)
    os.closerange(keep + 1, HIGHEST_DESCRIPTOR)
    single.reserve()
    if channel.receive_order(sock) is None:
        os._exit(1)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, 9)
    if uid_base is None:
        _become_mapped_root()
    steps.execute(plan)
    if uid_base is not None:
        # Only now: as a user without rights on the machine it could not have reached every directory of the plan.
        _descend(sock, uid_base)
        _become_mapped_root()
        steps.execute([["proc", "/proc", ""]])
    # The change of identity made the process undumpable, and then the id maps of its children could not be written.
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)
    warm.stand_by()


def _try_overlays(plan: list[list[Any]]) -> int:
    """0, or why not all of these mounts, one in another, can be made here.

    Before Linux 5.11; on file systems stacked too high; without root, over what something else is mounted in.
    """
    made = 0
    try:
        for step in plan:
            steps.execute([step])
            made += 1
    except steps.StepFailed as error:
        return error.errno
    finally:
        if made:
            sys_.unmount(plan[0][1])
    return 0


def _descend(sock: _socket.socket, uid_base: int) -> None:
    """Go on in a child that has no power on the machine, but all over its own namespaces; this process dies with it."""
    gate, gate_write = os.pipe()
    try:
        # What is counted by user is counted for the maker of a user namespace too: not for the machine's root.
        pid, _ = sys_.clone_as(uid_base, sys_.CLONE_NEWUSER | sys_.CLONE_NEWPID | sys_.CLONE_NEWNS)
    except OSError as error:
        raise steps.StepFailed("user namespace", error) from error
    if pid:
        block = f"0 {uid_base} {ids.UID_BLOCK}\n"
        _map(pid, block, block, deny_setgroups=False)
        os.write(gate_write, b"+")
        sock.close()
        os.waitpid(pid, 0)
        os._exit(1)
    os.close(gate_write)
    if not os.read(gate, 1):
        os._exit(1)
    os.close(gate)


def _stand_like_an_init() -> int:
    """Do here, once, what every init of a box needs; where this process itself can still complain."""
    complaints = os.dup(2)
    os.umask(0o022)
    # Python's own handler would turn a signal from inside a box into an exception in its init.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    return complaints


def _bequeath_code() -> None:
    """Let children know where in memory the code of this process is, instead of asking the kernel page by page.

    A fork copies what is known of a file's mapping only if a page of it was ever written: so one byte of each is
    written over itself.
    """
    maps = memory = -1
    try:
        maps = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
        text = b"".join(iter(lambda: os.read(maps, 1 << 16), b""))
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        for line in text.splitlines():
            addresses, rights, _, _, inode, *_ = line.split()
            if inode != b"0" and rights in (b"r-xp", b"r--p"):
                start = int(addresses.partition(b"-")[0], 16)
                os.pwrite(memory, os.pread(memory, 1, start), start)
    except OSError:
        pass  # a kernel that allows this to nobody
    finally:
        for fd in (maps, memory):
            if fd >= 0:
                os.close(fd)


def _become_mapped_root() -> None:
    try:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    except OSError as error:
        raise steps.StepFailed("become root of the user namespace", error) from error


def _preload(stage: list[list[Any]], root: str, modules: list[str], loader: warm.Loader) -> dict[str, Any]:
    """Load modules for the programs of all boxes: in a root that is made as theirs are, and taken down again."""
    outside = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        steps.execute(stage)
        os.chroot(root)
        os.chdir("/workspace")
        answer = warm.load(modules, loader)
        os.fchdir(outside)
        os.chroot(".")
        os.chdir("/")
        sys_.unmount(root)
    except steps.StepFailed as error:
        return error.told()
    finally:
        os.close(outside)
    gc.collect()
    gc.freeze()
    _bequeath_code()
    return answer


def _serve(
    sock: _socket.socket, two_ids: bool, make_agent: MakeAgent | None, egress: bool, loader: warm.Loader | None
) -> None:
    """Make a box per order, and see to those there are, until the spawner is gone."""
    epoll = select.epoll()
    epoll.register(sock.fileno(), select.EPOLLIN)
    boxes = SingleBoxes(epoll, two_ids, egress) if make_agent is None else AgentBoxes(sock, epoll, two_ids, egress)
    shapes: dict[str, Shape] = {}
    while True:
        events = epoll.poll(boxes.patience)
        if not events:
            boxes.prepare()
        # Orders last: what comes with them may get the number of something that ended in this very round.
        for fd, _ in sorted(events, key=lambda event: event[0] == sock.fileno()):
            if fd != sock.fileno():
                boxes.handle(fd)
                continue
            received = channel.receive_order(sock)
            if received is None:
                return
            message, descriptors = received
            if "preload" in message:
                assert loader is not None
                channel.send(sock, _preload(message["stage"], message["root"], message["preload"], loader))
                continue
            if "define" in message:
                shapes[message["define"]] = Shape(message, make_agent, two_ids, egress)
                continue
            order = BoxOrder(message, descriptors, shapes[message["shape"]])
            try:
                boxes.open(order)
            except OSError as error:
                boxes.refuse(order, steps.StepFailed("clone", error))
                for descriptor in descriptors:
                    os.close(descriptor)
