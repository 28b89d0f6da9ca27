"""The egress process: no privilege, nothing of the server's environment, and one small task for each connection."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidebox.egress import messages
from tidebox.egress.dialling import dial, through
from tidebox.egress.interceptor import Interceptor
from tidebox.egress.resolver import Resolver
from tidebox.egress.served_box import ServedBox

if TYPE_CHECKING:
    from tidebox.egress.interception import InterceptorFactory

MOST_DESCRIPTORS = 4
"""With a box: the stream by which the server tells of it, its listener, and the sockets for its questions."""
# Nobody's: below the blocks of ids that boxes have, and above those of any program that hands out ids.
_UID = 0x5FFFFFFF
_MOST_OPEN = 1 << 18
_LARGEST_MESSAGE = 1 << 16
# How often connections are looked at, in the time that they may be idle.
_LOOKS = 30
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_SIGKILL = 9


def give_up_power() -> None:
    """Become a user who has nothing, keep no rights, leave no core, and die with the server."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _MOST_OPEN), min(most, _MOST_OPEN)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(_UID, _UID, _UID)
        os.setresuid(_UID, _UID, _UID)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0), (_PR_SET_PDEATHSIG, _SIGKILL)):
        if prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


class EgressProcess:
    """Takes boxes from the server, until that is gone."""

    def __init__(
        self, control: socket.socket, start: messages.ProcessSettings, opener: InterceptorFactory | None
    ) -> None:
        """``opener`` is None where no secret is put into any request."""
        self._control = control
        self._opener = opener
        self._dial = dial if start.proxy is None else through(start.proxy)
        self._most = start.connections
        self._idle = start.idle
        self._resolver = Resolver(start.resolver)
        self._boxes: set[ServedBox] = set()
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve boxes."""
        self._loop.add_reader(self._control, self._on_order)
        self._loop.call_later(self._idle / _LOOKS, self._end_idle)
        await self._over.wait()

    def _on_order(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._control, _LARGEST_MESSAGE, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._over.set()
        elif len(descriptors) == MOST_DESCRIPTORS:
            task = self._loop.create_task(self._take(descriptors))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)
        else:
            for descriptor in descriptors:
                os.close(descriptor)

    async def _take(self, descriptors: Sequence[int]) -> None:
        stream, *ends = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        for sock in (stream, *ends):
            sock.setblocking(False)
        box = ServedBox(ends, self._resolver, self._dial, self._intercept, self._has_room, self._boxes.discard)
        self._boxes.add(box)
        await self._loop.create_unix_connection(lambda: box, sock=stream)

    def _intercept(self, message: messages.Serve) -> Interceptor | None:
        if self._opener is None or message.authority is None or not message.injection:
            return None
        return self._opener.interceptor(message.injection, message.authority)

    def _has_room(self) -> bool:
        return sum(len(box.tasks) for box in self._boxes) < self._most

    def _end_idle(self) -> None:
        """End connections on which nothing was said for long."""
        oldest = self._loop.time() - self._idle
        for box in self._boxes:
            for task, connection in box.tasks.items():
                if connection.last is not None and connection.last < oldest:
                    task.cancel()
        self._loop.call_later(self._idle / _LOOKS, self._end_idle)


def _opener(secrets: Sequence[int], ca_file: str | None) -> InterceptorFactory:
    """Make the factory of interceptors: files are read and libraries loaded while this process still may."""
    from tidebox.egress.interception import open_with

    try:
        return open_with(secrets, ca_file)
    finally:
        for descriptor in secrets:
            os.close(descriptor)


def main(descriptor: int) -> None:
    """Run on the inherited socket ``descriptor``; the server sends the settings first."""
    # Loaded while everything can be read: by itself, it would be when the first name outside ASCII comes.
    import encodings.idna  # noqa: F401

    import idna  # noqa: F401
    import uvloop

    os.set_inheritable(descriptor, False)
    control = socket.socket(fileno=descriptor)
    data = control.recv(_LARGEST_MESSAGE)
    if not data:
        return
    start = messages.start_decoder.decode(data)
    opener = None if start.secrets is None else _opener(start.secrets, start.ca_file)
    give_up_power()
    control.setblocking(False)

    async def serve() -> None:
        await EgressProcess(control, start, opener).run()

    uvloop.run(serve())
