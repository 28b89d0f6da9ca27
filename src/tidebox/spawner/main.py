"""The spawner: a small, clean, single-threaded program that owns the boxes of one server.

It holds the machine's side of a box (control groups, templates) and answers requests on one socket. When the
server's end closes it ends every template, and with it every box, removes its control groups and exits.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import os
import resource
import select

from tidebox.agent import child
from tidebox.spawner import cgroups, channel, devices, ids, outward, sweeping, syscalls, template
from tidebox.spawner.steps import StepFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

# Far above any range that adduser, systemd or the container tools hand out, below 2^31 for old tools.
_FIRST_UID_BLOCK = 0x60000000
_UID_BLOCKS = 4096
# Made ahead of the next boxes, and kept of those that are gone.
_SPARE_LEAVES = 2
_MOST_SPARE_LEAVES = 16
_SPARE_DEVICES = 4
# A leaf that was used is made anew when the box that needed it has had the processors for itself.
_BREATH_SECONDS = 0.02
_QUIET_SECONDS = 1.0
_RETRY_SECONDS = 0.005
_LONGEST_RETRY_SECONDS = 0.5


class _OpenBox:
    def __init__(self, request: int | None, leaf: cgroups.Leaf | None, template_name: str) -> None:
        self.request = request
        """To be answered from here once it stands; a box for a single program answers by itself."""
        self.leaf = leaf
        self.template_name = template_name

    def answer(self, request: int) -> dict[str, Any]:
        """Return the message that goes with the descriptors of a box that stands."""
        leaf = {} if self.leaf is None else {"leaf": self.leaf.name, "edition": self.leaf.edition}
        return {"re": request, **leaf}


class Spawner:
    """Requests in, boxes out."""

    def __init__(self, sock: _socket.socket) -> None:
        self._sock = sock
        self._epoll = select.epoll()
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._templates: dict[str, template.Template] = {}
        self._names: dict[int, str] = {}
        self._preloading: dict[str, int] = {}
        """Templates that load modules, and the request that each answers by that."""
        self._boxes: dict[str, _OpenBox] = {}
        self._spares: list[cgroups.Leaf] = []
        self._refused = False
        """Whether the machine had no room for the last spare part: none is made before the next box."""
        self._leaf_number = 0
        self._usual_limits: dict[str, int] = {}
        self._box_number = 0
        self._closing: list[cgroups.Leaf] = []
        self._retry_pause = _RETRY_SECONDS
        self._uid_base = _FIRST_UID_BLOCK + os.getpid() % _UID_BLOCKS * ids.UID_BLOCK if os.getuid() == 0 else None
        self._devices: list[int] = []
        self._makes_devices = self._uid_base is not None and self._try_devices()
        self._cgroups: cgroups.Cgroups | None = None
        self._cgroup_problem: str | None = None
        self._living: list[str] = []
        self._left_alone: list[str] = []
        try:
            self._cgroups = cgroups.find()
            self._living, self._left_alone = sweeping.sweep(self._cgroups.sweep_roots(), self._cgroups.name)
        except cgroups.CgroupError as error:
            self._cgroup_problem = str(error)
        self._operations: dict[str, Callable[[dict[str, Any], list[int]], dict[str, Any] | None]] = {
            "ping": lambda message, descriptors: {},
            "facts": self._facts,
            "egress": self._egress,
            "template": self._template,
            "preload": self._preload,
            "discard": self._discard,
            "shape": self._shape,
            "open": self._open,
            "limit": self._limit,
            "continue": self._continue,
            "freeze": self._freeze,
            "lost": self._lost,
            "close": self._close,
        }

    def run(self) -> None:
        """Serve until the server goes away."""
        while True:
            events = self._epoll.poll(self._patience())
            if not events:
                self._adjust_spares()
            # The server last: what it asks for may take note of what a template said, or of its end.
            for fd, _ in sorted(events, key=lambda event: event[0] == self._sock.fileno()):
                if fd != self._sock.fileno():
                    self._from_template(self._names[fd])
                elif not self._from_server():
                    return
            self._remove_closed()

    def _patience(self) -> float | None:
        """Return the seconds to wait for the next message; None for as long as it takes."""
        if self._closing:
            return self._retry_pause
        if self._lacks_spares():
            urgent = (self._lacks_leaves() and not self._spares) or (self._lacks_devices() and not self._devices)
            return 0.0 if urgent else _BREATH_SECONDS
        # After a rush there are more spare leaves than anybody needs.
        return _QUIET_SECONDS if len(self._spares) > _SPARE_LEAVES else None

    def shut_down(self) -> None:
        """End every box and remove what belongs to this spawner."""
        if self._cgroups is not None:
            self._cgroups.kill()
        for item in self._templates.values():
            item.close()
        if self._cgroups is not None:
            # The kernel needs a moment to let go of the last dead process.
            deadline = 200
            while not self._cgroups.close() and deadline:
                deadline -= 1
                select.select([], [], [], _RETRY_SECONDS)

    def _try_devices(self) -> bool:
        """Whether this user can make devices; if so, there are some for the first box."""
        try:
            self._devices.append(devices.make())
        except OSError:
            return False
        return True

    def _lacks_leaves(self) -> bool:
        return self._cgroups is not None and len(self._spares) < _SPARE_LEAVES

    def _lacks_devices(self) -> bool:
        return self._makes_devices and len(self._devices) < _SPARE_DEVICES

    def _lacks_spares(self) -> bool:
        lacks = self._lacks_leaves() or self._lacks_devices()
        return bool(self._templates) and lacks and not self._refused

    def _adjust_spares(self) -> None:
        """One spare leaf more or less, or devices for a box, while nothing else is to be done."""
        if self._lacks_spares():
            try:
                self._add_spare()
            except OSError:
                # No descriptor or memory left: no reason to die, for that would end the boxes there are.
                self._refused = True
        elif len(self._spares) > _SPARE_LEAVES:
            self._closing.append(self._spares.pop())

    def _add_spare(self) -> None:
        if self._lacks_leaves():
            self._spares.append(self._new_leaf())
        else:
            self._devices.append(devices.make())

    def _new_leaf(self) -> cgroups.Leaf:
        assert self._cgroups is not None
        self._leaf_number += 1
        leaf = self._cgroups.make(f"b{self._leaf_number}")
        try:
            # The next box will most likely have the limits of the last one.
            leaf.limit(**self._usual_limits)
        except OSError:
            self._closing.append(leaf)
            raise
        return leaf

    def _from_server(self) -> bool:
        received = channel.receive_order(self._sock)
        if received is None:
            return False
        message, descriptors = received
        request = message["id"]
        try:
            answer = self._operations[message["op"]](message, descriptors)
        except StepFailed as error:
            answer = {"failed": error.step, "errno": error.errno, "text": os.strerror(error.errno)}
        except OSError as error:
            step = "{} {}".format(message["op"], error.filename or "")
            answer = {"failed": step.strip(), "errno": error.errno or 0, "text": error.strerror or str(error)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if answer is not None:
            channel.send(self._sock, {"re": request, **answer})
        return True

    def _facts(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        version, files = 0, {}
        if self._cgroups is not None:
            version = self._cgroups.version
            # Not kept: no template may put anything into it yet.
            leaf = self._new_leaf()
            files = leaf.files()
            self._closing.append(leaf)
        return {
            "cgroup": version,
            "files": files,
            "cgroup_problem": self._cgroup_problem,
            "living": self._living,
            "left_alone": self._left_alone,
            "two_ids": self._uid_base is not None,
            "pid": os.getpid(),
            "together": _allow_together(),
            "devices": self._makes_devices,
        }

    def _egress(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Whether networks can lead outward here."""
        outward.try_out()
        return {}

    def _template(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        name = message["name"]
        if name not in self._templates:
            made = template.start(
                message["plan"],
                message["overlays"],
                self._uid_base,
                message["agent"],
                message["egress"],
                message["loads"],
                self._adopt,
            )
            self._templates[name] = made
            self._names[made.sock.fileno()] = name
            self._epoll.register(made.sock.fileno(), select.EPOLLIN)
        return {"overlay_errno": self._templates[name].overlay_errno}

    def _preload(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any] | None:
        """Answered when the template has done it, and others are served meanwhile."""
        name = message["template"]
        if name not in self._templates:
            return {"failed": "template", "errno": 0, "text": "it died"}
        preloaded = self._templates[name].preloaded
        if preloaded is not None:
            return preloaded
        if name in self._preloading:
            return {"failed": "template", "errno": errno.EBUSY, "text": "it is loading"}
        order = {"preload": message["modules"], "stage": message["stage"], "root": message["root"]}
        channel.send_order(self._templates[name].sock, order)
        self._preloading[name] = message["id"]
        return None

    def _discard(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """End a template, and with it what is left of its boxes."""
        if message["template"] in self._templates:
            self._template_died(message["template"])
        return {}

    def _adopt(self, pid: int) -> None:
        if self._cgroups is not None:
            self._cgroups.adopt_template(pid, self._uid_base)

    def _shape(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        name = message["template"]
        if name not in self._templates:
            return {"failed": "template", "errno": 0, "text": "it died"}
        channel.send_order(self._templates[name].sock, {"define": message["name"], **message["shape"]})
        return {}

    def _open(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any] | None:
        name = message["template"]
        if name not in self._templates:
            return {"failed": "template", "errno": 0, "text": "it died"}
        if not descriptors:
            raise StepFailed("descriptors", OSError(errno.ETOOMANYREFS, "they did not arrive"))
        self._refused = False
        leaf = None
        attach: list[int] = []
        delegated: list[int] = []
        number = self._box_number
        self._box_number += 1
        if self._cgroups is not None and message["cgroup"]:
            leaf = self._spares.pop() if self._spares else self._new_leaf()
            try:
                self._usual_limits = message["limits"]
                leaf.limit(**self._usual_limits)
                if message["leaves"]:
                    owner = os.getuid() if self._uid_base is None else self._uid_base + ids.agent_id(number)
                    delegated = leaf.delegate(owner)
                attach = leaf.attach_descriptors()
            except OSError:
                self._closing.append(leaf)
                raise
        self._boxes[message["box"]] = box = _OpenBox(None if message["single"] else message["id"], leaf, name)
        order = {
            "box": message["box"],
            "request": message["id"],
            "announcement": channel.pack(box.answer(message["id"]) if message["single"] else {"box": message["box"]}),
            "number": number,
            "shape": message["shape"],
            "builtin": message["builtin"],
            "own_steps": message["own_steps"],
            "cgroup": self._cgroups.version if leaf is not None and self._cgroups is not None else 0,
            "leaves": len(delegated),
            "devices": self._makes_devices,
        }
        own: list[int] = []
        step = "devices"
        try:
            if self._uid_base is not None:
                # A program that opens /dev/stdout anew is let in by the owner of the pipe.
                user = self._uid_base + ids.agent_id(number) + 1
                for descriptor in descriptors[1:]:
                    os.fchown(descriptor, user, user)
            if self._makes_devices:
                own.append(self._devices.pop() if self._devices else devices.make())
            step = "template"
            channel.send_order(self._templates[name].sock, order, (*descriptors, *own, *attach, *delegated))
        except OSError as error:
            del self._boxes[message["box"]]
            if leaf is not None:
                self._closing.append(leaf)
            raise StepFailed(step, error) from error
        finally:
            for descriptor in (*own, *delegated):
                os.close(descriptor)
        if leaf is not None and len(self._boxes) > _MOST_SPARE_LEAVES:
            # Worth it only for the few that come round again and again.
            leaf.close_descriptors()
        return None

    def _from_template(self, name: str) -> None:
        try:
            received = channel.receive(self._templates[name].sock)
        except OSError:
            received = None
        if received is None:
            self._template_died(name)
            return
        message, descriptors = received
        if name in self._preloading:
            # It has no boxes yet: that is all it can have to say.
            self._templates[name].preloaded = message
            channel.send(self._sock, {**message, "re": self._preloading.pop(name)})
            return
        box = self._boxes.get(message["box"])
        if box is None or box.request is None:
            for descriptor in descriptors:
                os.close(descriptor)
        elif "failed" in message:
            self._fail_open(message["box"], str(message["failed"]), int(message["errno"]), str(message["text"]))
        else:
            # From the box itself: a descriptor of its init, one of its workspace, and what leads outward.
            try:
                channel.send(self._sock, box.answer(box.request), tuple(descriptors))
                box.request = None
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                self._fail_open(message["box"], "descriptors", error.errno, os.strerror(error.errno))
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _fail_open(self, name: str, step: str, number: int, text: str) -> None:
        box = self._boxes.pop(name)
        channel.send(self._sock, {"re": box.request, "failed": step, "errno": number, "text": text})
        if box.leaf is not None:
            self._closing.append(box.leaf)

    def _lost(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """A box is dead before its server heard that it stands: what it said until then comes first."""
        name = message["box"]
        while (box := self._boxes.get(name)) is not None and box.request is not None:
            poll = select.poll()
            poll.register(self._templates[box.template_name].sock.fileno(), select.POLLIN)
            if not poll.poll(0):
                self._fail_open(name, "init", 0, "it died while it was set up")
                break
            self._from_template(box.template_name)
        return {}

    def _template_died(self, name: str) -> None:
        item = self._templates.pop(name)
        if name in self._preloading:
            told = {"failed": "template", "errno": 0, "text": "it died over what it was to load"}
            channel.send(self._sock, {"re": self._preloading.pop(name), **told})
        del self._names[item.sock.fileno()]
        self._epoll.unregister(item.sock.fileno())
        for entry in self._boxes.values():
            if entry.template_name == name and entry.leaf is not None:
                # The template is not gone before its boxes, and what v1 froze dies only when it runs again.
                entry.leaf.freeze(False)
        item.close()
        for box, entry in list(self._boxes.items()):
            if entry.template_name == name and entry.request is not None:
                self._fail_open(box, "template", 0, "it died")

    def _limit(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        self._leaf_of(message).limit(**message["limits"])
        return {}

    def _continue(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Not answered. Templates are of this process's group, programs lead their own."""
        os.killpg(os.getpgrp(), _signal.SIGCONT)

    def _freeze(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        self._leaf_of(message).freeze(message["frozen"])
        return {}

    def _leaf_of(self, message: dict[str, Any]) -> cgroups.Leaf:
        box = self._boxes.get(message["box"])
        if box is None:
            raise StepFailed(message["op"], OSError(errno.ESRCH, "no such box"))
        if box.leaf is None:
            raise StepFailed(message["op"], OSError(errno.ENOTSUP, "the box has no cgroup"))
        return box.leaf

    def _close(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Not answered: what asks for the next box comes after it anyway."""
        box = self._boxes.pop(message["box"], None)
        if box is None or box.leaf is None:
            return
        # Of a box that was given up, something may still be on its way into the leaf: it finds it gone.
        if not message["given_up"] and len(self._spares) < _MOST_SPARE_LEAVES and box.leaf.renew():
            self._spares.append(box.leaf)
        elif not box.leaf.remove():
            self._closing.append(box.leaf)

    def _remove_closed(self) -> None:
        waiting = [leaf for leaf in self._closing if not leaf.remove()]
        # Most are gone at once; what a stuck process holds is not asked for all the time.
        self._retry_pause = min(self._retry_pause * 2, _LONGEST_RETRY_SECONDS) if waiting else _RETRY_SECONDS
        self._closing = waiting


def _allow_together() -> dict[str, int | None]:
    """Raise the rlimits that count by user as far as possible; returns what boxes may have together, None: no limit."""
    allowed: dict[str, int | None] = {}
    for name in ("sigpending", "msgqueue", "nproc"):
        number = child.RLIMITS[name]
        _, most = resource.getrlimit(number)
        try:
            resource.setrlimit(number, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except ValueError:
            resource.setrlimit(number, (most, most))  # no root, or one without CAP_SYS_RESOURCE
        _, most = resource.getrlimit(number)
        allowed[name] = None if most == resource.RLIM_INFINITY else most
    return allowed


def _allow_descriptors() -> None:
    """Raise RLIMIT_NOFILE as far as it may be, here and in templates: a few descriptors of every box are held, and as
    many may be on the way, counted with those that programs of the same user send each other. Never above
    ``HIGHEST_DESCRIPTOR``: a child closes descriptors by number up to that one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, child.HIGHEST_DESCRIPTOR), most))


def main(descriptor: int) -> None:
    """Run the spawner on the inherited socket ``descriptor``."""
    os.set_inheritable(descriptor, False)
    _allow_descriptors()
    # Signal dispositions that this process inherited are not passed on to programs: nohup and shells in the background
    # have signals ignored. And a process that ignores the ends of its children is not told of them.
    syscalls.reset_hidden_signals()
    child.reset_signals([number for number in child.changed_signals() if number not in child.PYTHONS_OWN])
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    spawner = Spawner(_socket.socket(fileno=descriptor))
    try:
        spawner.run()
    except OSError:
        pass  # the server vanished in the middle of an answer
    finally:
        spawner.shut_down()
