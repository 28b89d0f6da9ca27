"""The server's end of the spawner: starts the program, sends requests, matches answers."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import marshal
import os
import resource
import shutil
import socket
import subprocess
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tidebox
from tidebox.errors import ProvisionFailed
from tidebox.runtime.native.descriptors import Descriptors
from tidebox.runtime.native.host import default_environment
from tidebox.runtime.native.usage import CgroupCounters, Meter
from tidebox.wire import cbor

_log = logging.getLogger(__name__)

# Killed, and not dead yet when nobody waited any more: collected when another one ends.
_stuck: list[subprocess.Popen[bytes]] = []

# As the spawner reads orders (see its channel).
ORDER_FORMAT = 2
_MAX_MESSAGE = 128 * 1024
_MAX_DESCRIPTORS = 8
# How long it may take to answer, to show before its end that it still listens, to clean up then, and to die if killed.
_ANSWER_SECONDS = 20.0
_PING_SECONDS = 2.0
_CLOSE_SECONDS = 10.0
MOST_CLOSING = 64
_DEATH_SECONDS = 2.0
# Requests that wait because it reads none; each holds a few descriptors.
_MOST_OUTGOING = 1024
_LAST_WORD_SECONDS = 0.5
# Puts what follows into a scope whose control groups are delegated to it.
_SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "--")


class SpawnerClient:
    """A running spawner program. When it dies every pending request fails and ``gone`` is set."""

    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes], descriptors: Descriptors) -> None:
        self._sock = sock
        self._descriptors = descriptors
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]] = {}
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._leaves = CgroupCounters()
        self.gone = asyncio.Event()
        # The kernel frees the filter of each box that ends, and some hang when thousands are freed at once.
        self.closing = asyncio.Semaphore(MOST_CLOSING)
        # Among those of its boxes, and before them: the loop could find these dead first, no matter in which order
        # they died, and then a parked cell that dies with its spawner would be handed out.
        descriptors.watch(sock.fileno(), self._on_readable, first=True)

    @classmethod
    def start(
        cls, python: str, copy: int | None, session: Mapping[str, str] | None, descriptors: Descriptors
    ) -> SpawnerClient:
        """Start it under ``python``, or a ``copy`` of it; given a login session's environment, in a delegated scope of
        systemd's."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # A relative name: a program that was forked, not executed, has this command line.
        command = [python, "boot.py", str(theirs.fileno())]
        environment = default_environment()
        if session is not None and (runtime_directory := _user_manager(session)):
            # The way to the manager is for systemd-run alone: a forked program has this environment in its memory.
            only = [f"{name}={value}" for name, value in environment.items()]
            command = [*_SCOPE, "env", "-i", *only, *command]
            environment["XDG_RUNTIME_DIR"] = runtime_directory
        with theirs:
            process = subprocess.Popen(
                command,
                executable=None if copy is None else f"/proc/self/fd/{copy}",
                env=environment,
                cwd=Path(tidebox.__file__).parent / "spawner",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[fd for fd in (theirs.fileno(), copy) if fd is not None],
                start_new_session=True,
            )
        return cls(ours, process, descriptors)

    @property
    def pid(self) -> int:
        """The process started (the spawner itself, unless systemd-run stands in front of it for a moment)."""
        return self._process.pid

    async def request(
        self, operation: str, *, descriptors: tuple[int, ...] = (), **fields: Any
    ) -> tuple[dict[str, Any], list[int]]:
        """Send a request and wait for its answer; a refusal is ProvisionFailed naming the step."""
        return await self._answered(_ANSWER_SECONDS, self.send(operation, descriptors=descriptors, **fields))

    async def _answered(
        self, seconds: float, answer: asyncio.Future[tuple[dict[str, Any], list[int]]]
    ) -> tuple[dict[str, Any], list[int]]:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await answer
        except (TimeoutError, asyncio.CancelledError):
            self._forget(answer)
            if not limit.expired():
                raise
            raise ProvisionFailed("the spawner does not answer", step="answer") from None

    def _forget(self, answer: asyncio.Future[tuple[dict[str, Any], list[int]]]) -> None:
        """Nobody waits for that any more."""
        self._pending = {number: future for number, future in self._pending.items() if future is not answer}

    def send(
        self, operation: str, *, descriptors: tuple[int, ...] = (), **fields: Any
    ) -> asyncio.Future[tuple[dict[str, Any], list[int]]]:
        """Send a request at once; the future holds its answer. The descriptors may be closed afterwards."""
        future: asyncio.Future[tuple[dict[str, Any], list[int]]] = self._loop.create_future()
        if self.gone.is_set():
            future.set_exception(ProvisionFailed("the spawner is gone", step="spawner"))
            return future
        if len(self._outgoing) >= _MOST_OUTGOING:
            future.set_exception(ProvisionFailed("the spawner does not answer", step="answer"))
            return future
        number = next(self._ids)
        self._pending[number] = future
        self._post({"op": operation, "id": number, **fields}, descriptors)
        return future

    def _post(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        data = marshal.dumps(message, ORDER_FORMAT)
        if self._outgoing or not self._try_send(data, descriptors):
            self._outgoing.append((data, tuple(os.dup(descriptor) for descriptor in descriptors)))
            self._loop.add_writer(self._sock, self._on_writable)

    def _try_send(self, data: bytes, descriptors: tuple[int, ...]) -> bool:
        try:
            socket.send_fds(self._sock, [data], list(descriptors))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                # Without root programs share their user with us, and so what it may have on the way at one time: for
                # each sender as many as it may have open. Where that is no more than programs may, one that uses all
                # of it must not cost the others their boxes: this request alone is refused, over there.
                return self._try_send(data, descriptors if allow_all_descriptors() else ())
            self._lost()
        return True

    def _on_writable(self) -> None:
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            if not self._try_send(data, descriptors):
                return
            if self._outgoing:  # else it was lost over this, and let go of all
                self._outgoing.popleft()
                _close_all(descriptors)
        if not self.gone.is_set():
            self._loop.remove_writer(self._sock)

    def _on_readable(self) -> None:
        # All there is: that it is dead must not be known later than that its boxes are.
        while not self.gone.is_set() and self._receive():
            pass

    def _receive(self) -> bool:
        """Take one answer; whether there was one."""
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._sock, _MAX_MESSAGE, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._lost()
            return False
        self.take_answer(data, list(descriptors))
        return True

    def take_answer(self, data: bytes, descriptors: list[int]) -> None:
        """Take an answer that came from the spawner, or on its behalf from a box."""
        message = cbor.decode(data)
        future = self._pending.pop(message["re"], None)
        if future is None or future.done():
            _close_all(descriptors)
        elif "failed" in message:
            step = message["failed"]
            future.set_exception(
                ProvisionFailed(f"could not make a box: {step}: {message['text']}", step=step, errno=message["errno"])
            )
        else:
            future.set_result((message, descriptors))

    def _lost(self) -> None:
        if self.gone.is_set():
            return
        self.gone.set()
        self._descriptors.forget(self._sock.fileno())
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._leaves.close()
        while self._outgoing:
            _close_all(self._outgoing.popleft()[1])
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ProvisionFailed("the spawner died", step="spawner"))
                future.exception()  # the task that asked may be gone too
        self._pending.clear()

    def meter(self, opened: Mapping[str, Any], own_processes: int) -> Meter:
        """Return the usage meter of a box that was opened, in whose cgroup ``own_processes`` processes are ours."""
        return Meter(self._leaves.open(opened), own_processes)

    def close_box(self, box: str, meter: Meter, *, dead: bool) -> None:
        """Let a box's cgroup go, or be the next box's if it is ``dead``."""
        if self.gone.is_set() or not dead:
            meter.counters.close()
            self.let_go(box, given_up=True)
        else:
            self._leaves.give_back(meter.counters)
            self.let_go(box, given_up=False)

    def let_go(self, box: str, given_up: bool) -> None:
        """Tell that a box is dead, or that nobody wants it; a spawner that is dead took what it had with it."""
        if not self.gone.is_set():
            self._post({"op": "close", "id": next(self._ids), "box": box, "given_up": given_up})

    def continue_templates(self) -> None:
        """Let templates run that somebody stopped: the program of a dead box is gone only when its template took it."""
        if not self.gone.is_set():
            self._post({"op": "continue", "id": next(self._ids)})

    def note_files(self, files: Mapping[str, str]) -> None:
        """Note the cgroup files in which the usage of boxes is counted."""
        self._leaves.files = files

    def fail(self, opening: asyncio.Future[tuple[dict[str, Any], list[int]]], step: str) -> None:
        """Nobody will answer any more: the box is dead, or the ``step`` that makes it."""
        if not opening.done():
            opening.set_exception(ProvisionFailed("the box died while it was made", step=step))

    def abandon(self, opening: asyncio.Future[tuple[dict[str, Any], list[int]]], box: str) -> None:
        """Nobody waits for a box for a single program any more, or there will be none."""
        self._forget(opening)
        if opening.done() and not opening.cancelled() and opening.exception() is None:
            _close_all(opening.result()[1])
        self.let_go(box, given_up=True)

    def give_up(self, opening: asyncio.Future[tuple[dict[str, Any], list[int]]], box: str) -> None:
        """A box whose init is dead; what it may have said before comes the long way and has its time."""
        if not opening.done():
            self._loop.call_later(_LAST_WORD_SECONDS, self._tell_lost, opening, box)

    def _tell_lost(self, opening: asyncio.Future[tuple[dict[str, Any], list[int]]], box: str) -> None:
        if not opening.done():
            self.send("lost", box=box).add_done_callback(lambda done: done.cancelled() or done.exception())

    def kill(self) -> None:
        """End it at once, and with it its boxes; the next one sweeps what is left of its control groups."""
        self._lost()
        self._process.kill()

    async def close(self) -> None:
        """Let it clean up and wait for its end; one that does not end in time is killed, and not waited for long."""
        try:
            if await self._listens():
                self._lost()
                if await self._ends_within(_CLOSE_SECONDS):
                    return
        finally:
            self.kill()
        if not await self._ends_within(_DEATH_SECONDS):
            _stuck.append(self._process)
            _log.warning("the spawner (pid %d) does not die: it is stuck in the kernel", self._process.pid)

    async def _listens(self) -> bool:
        try:
            await self._answered(_PING_SECONDS, self.send("ping"))
        except ProvisionFailed:
            return False
        return True

    async def _ends_within(self, seconds: float) -> bool:
        _stuck[:] = [process for process in _stuck if process.poll() is None]
        if self._process.poll() is not None:
            return True
        descriptor = os.pidfd_open(self._process.pid)
        ended = asyncio.Event()
        self._loop.add_reader(descriptor, ended.set)
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self._process.wait()
        return True


def allow_all_descriptors() -> bool:
    """Raise the soft limit on descriptors to the hard one; False where it is there already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft != hard


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _user_manager(session: Mapping[str, str]) -> str | None:
    """The runtime directory of this user's systemd manager, where one runs that hands out scopes."""
    # A manager that lingers is there for services and su too, whose environment does not name it.
    directory = session.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    reachable = all(os.path.exists(f"{directory}/{name}") for name in ("systemd/private", "bus"))
    return directory if reachable and shutil.which(_SCOPE[0]) else None
