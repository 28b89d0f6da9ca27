"""A template: one warm process per image from which boxes are cloned.

It stands in namespaces of its own on the image's prepared read-only root, so that a box adds only what is its own.
It has no power on the machine:
as root it lives in a user namespace over a block of unused uids, without root in one over the caller's uid.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import gc
import os
import select
import sys

from tidebox.spawner import channel, processors, steps, warm
from tidebox.spawner import syscalls as sys_
from tidebox.spawner.box import BoxOrder, Shape, load_agent, run_box

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_OUTER = sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWNET | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS
_INNER = sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS
# A network namespace costs as much as everything else of a box together: this many are kept ready, each for one box.
_SPARE_NETWORKS = 4
# What was used is made anew when the box that needed it has had the processors for itself, unless boxes come so fast
# that few are left.
_BREATH_SECONDS = 0.02
_FEWEST_NETWORKS = 2
UID_BLOCK = 65536
_AGENT_UID, USER_UID = 0, 1000
_LOOPBACK = steps.prepare([["loopback"]])


def agent_id(number: int) -> int:
    """The id, in the template's namespace, of the agent of box ``number``; user code has the one after it."""
    return 1 + 2 * (number % (UID_BLOCK // 2 - 1))


class Template:
    """The spawner's handle of a template process."""

    def __init__(self, pid: int, pidfd: int, sock: _socket.socket) -> None:
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
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)


def _map_ids(pid: int, uid_map: str, gid_map: str, deny_setgroups: bool) -> None:
    names = [("uid_map", uid_map), ("gid_map", gid_map)]
    if deny_setgroups:
        names.insert(0, ("setgroups", "deny"))
    for name, value in names:
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


def start(plan: list[list[Any]], uid_base: int | None, agent: bool) -> Template:
    """Fork a template that executes ``plan``, whose boxes have an ``agent`` or are for single programs.

    ``uid_base`` is the first uid of its block, None without root.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    flags = _OUTER if uid_base is not None else _OUTER | sys_.CLONE_NEWUSER
    pid, pidfd = sys_.clone(flags)
    if pid == 0:
        ours.close()
        _main(theirs, plan, uid_base, agent)
    theirs.close()
    template = Template(pid, pidfd, ours)
    try:
        _introduce(template, uid_base)
    except BaseException:
        template.close()
        raise
    return template


def _introduce(template: Template, uid_base: int | None) -> None:
    """Map the new user namespace's ids when the template asks, then wait until it is ready."""
    while True:
        received = channel.receive(template.sock)
        if received is None:
            raise steps.StepFailed("template", OSError(0, "died while it was set up"))
        message = received[0]
        if "failed" in message:
            raise steps.StepFailed(str(message["failed"]), OSError(int(message["errno"]), str(message["text"])))
        if "map" not in message:
            return
        try:
            if uid_base is not None:
                block = f"0 {uid_base} {UID_BLOCK}\n"
                _map_ids(template.pid, block, block, deny_setgroups=False)
            else:
                _map_ids(template.pid, f"0 {os.getuid()} 1\n", f"0 {os.getgid()} 1\n", deny_setgroups=True)
        except OSError as error:
            raise steps.StepFailed("map user ids", error) from error
        channel.send_order(template.sock, {})


def _main(sock: _socket.socket, plan: list[list[Any]], uid_base: int | None, agent: bool) -> NoReturn:
    status = 1
    complaints = 2
    try:
        if agent:
            load_agent()
        _build(sock, plan, uid_base)
        complaints = _stand_like_an_init()
        gc.collect()
        gc.freeze()
        gc.disable()
        channel.send(sock, {"ready": True})
        _serve(sock, uid_base is not None)
        status = 0
    except steps.StepFailed as error:
        channel.send(sock, {"failed": error.step, "errno": error.errno, "text": os.strerror(error.errno)})
    except BaseException as error:
        os.dup2(complaints, 2)
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(status)


def _build(sock: _socket.socket, plan: list[list[Any]], uid_base: int | None) -> None:
    keep = sock.fileno()
    os.closerange(3, keep)
    os.closerange(keep + 1, 65536)
    if uid_base is None:
        _become_mapped_root(sock)
    steps.execute(plan)
    if uid_base is not None:
        # Entered only now: as a user without rights on the machine it could not have reached every directory of the
        # plan.
        try:
            sys_.unshare(sys_.CLONE_NEWUSER)
        except OSError as error:
            raise steps.StepFailed("user namespace", error) from error
        _become_mapped_root(sock)
    # The change of identity made the process undumpable, and then the id maps of its children could not be written.
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, 9)
    warm.stand_by()


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


def _become_mapped_root(sock: _socket.socket) -> None:
    channel.send(sock, {"map": True})
    if channel.receive_order(sock) is None:
        os._exit(1)
    try:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    except OSError as error:
        raise steps.StepFailed("become root of the user namespace", error) from error


def _serve(sock: _socket.socket, two_ids: bool) -> None:
    """Clone a box per request and reap the dead ones, until the spawner is gone."""
    epoll = select.epoll()
    epoll.register(sock.fileno(), select.EPOLLIN)
    networks: list[int] = []
    shapes: dict[str, Shape] = {}
    while True:
        events = epoll.poll(_patience(len(networks)))
        if not events:
            networks.append(_new_network())
        for fd, _ in events:
            if fd != sock.fileno():
                os.waitid(os.P_PIDFD, fd, os.WEXITED)
                # Closing is not enough: a clone may still hold a copy, and epoll would go on reporting a number that
                # means another file by then.
                epoll.unregister(fd)
                os.close(fd)
                continue
            received = channel.receive_order(sock)
            if received is None:
                return
            message, descriptors = received
            if "define" in message:
                shapes[message["define"]] = Shape(message)
                continue
            order = BoxOrder(message, descriptors, shapes[message["shape"]])
            network = networks.pop() if networks else _new_network()
            pidfd = _clone_box(sock, order, network, two_ids)
            for descriptor in (*order.descriptors, network):
                os.close(descriptor)
            if pidfd is not None:
                epoll.register(pidfd, select.EPOLLIN)


def _patience(networks: int) -> float | None:
    """How long to wait for the next order before another network is made."""
    if networks >= _SPARE_NETWORKS:
        return None
    return _BREATH_SECONDS if networks >= _FEWEST_NETWORKS else 0.0


def _new_network() -> int:
    """A network namespace with nothing but ``lo``; the box that gets it has no power over it, not even as its root."""
    sys_.unshare(sys_.CLONE_NEWNET)
    steps.run(_LOOPBACK)
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _clone_box(sock: _socket.socket, order: BoxOrder, network: int, two_ids: bool) -> int | None:
    gate_read, gate_write = os.pipe()
    try:
        # The clone inherits the network this process stands in.
        sys_.enter_namespace(network, sys_.CLONE_NEWNET)
        pid, pidfd = sys_.clone(_INNER, order.cgroup_directory)
        if pid == 0:
            run_box(sock, order, gate_read, two_ids)
        if order.first:
            processors.spread(pid)
        if two_ids:
            agent = agent_id(order.number)
            ids = f"{_AGENT_UID} {agent} 1\n{USER_UID} {agent + 1} 1\n"
        else:
            ids = f"{USER_UID} 0 1\n"
        _map_ids(pid, ids, ids, deny_setgroups=not two_ids)
        os.write(gate_write, b"+")
        return pidfd
    except OSError as error:
        # The child, if there is one, finds the gate closed and goes away by itself.
        channel.send(sock, {"box": order.box, "failed": "clone", "errno": error.errno or 0, "text": str(error)})
        return None
    finally:
        os.close(gate_read)
        os.close(gate_write)
