"""The server's side of egress: starts the process, hands it boxes, hears what it tells, and starts it anew."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec

from tidebox.egress import messages
from tidebox.egress.keys import KeyPair
from tidebox.egress.secrets import open_file
from tidebox.errors import InvalidRequest, ProvisionFailed
from tidebox.model.events import EgressSeen
from tidebox.model.requested_egress import BoxEgress
from tidebox.model.result import EgressUsage

_log = logging.getLogger(__name__)

Tell = Callable[[EgressSeen], None]

# How long the process may take to say what it counted, and how soon one that died is started anew.
_ANSWER_SECONDS = 5.0
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.1, 10.0
_DEATH_SECONDS = 5.0


class Attachment(asyncio.Protocol):
    """A box that has rules, as the server holds it: its ends of the network, and the stream to the process."""

    def __init__(
        self, egress: EgressClient, ends: Sequence[int], rules: BoxEgress, tell: Tell, authority: KeyPair | None
    ) -> None:
        self._egress = egress
        self._authority = authority
        self._ends = tuple(ends)
        self._rules = rules
        self._tell = tell
        self._pins: dict[str, tuple[str, ...]] = {}
        self._pinned = 0
        self._told = 0
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[messages.Counted]] = {}
        self._transport: asyncio.Transport | None = None
        self._before = messages.Counted(0, 0, 0, 0, 0, 0)
        """What was counted by processes that died."""
        self._last = self._before
        self._closed = False

    async def connect(self) -> None:
        """Have the process serve this box."""
        if self._closed:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        self._reader = messages.server_reader()
        with theirs:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
            self._send_rules()
            self._egress.hand_over(theirs.fileno(), *self._ends)

    def allow(self, rules: BoxEgress) -> None:
        """Go by these rules from now on."""
        self._rules = rules
        self._send_rules()

    def _send_rules(self) -> None:
        self._send(messages.Serve.of(self._rules, self._pins, self._egress.bounds, self._authority))

    async def usage(self, *, close: bool = False) -> EgressUsage:
        """Return connections and bytes of the box so far; with ``close``, close every connection first."""
        if self._transport is not None and not self._transport.is_closing():
            number = next(self._numbers)
            self._asked[number] = answer = asyncio.get_running_loop().create_future()
            self._send(messages.CountRequest(number, close))
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    self._last = _sum(self._before, await answer)
            except (TimeoutError, ConnectionError):
                pass  # it is dead or busy: what it said last is known
            finally:
                self._asked.pop(number, None)
        last = self._last
        return EgressUsage(connections=last.connections, denied=last.denied, sent=last.sent, received=last.received)

    def close(self) -> None:
        """The box is gone, or has no rules any more."""
        if self._closed:
            return
        self._closed = True
        self._egress.forget(self)
        for descriptor in self._ends:
            os.close(descriptor)
        if self._transport is not None:
            self._transport.close()

    def _send(self, message: messages.ToProcess) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(messages.encode(message))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop is no subclass.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                if isinstance(message, messages.SeenConnection):
                    self._hear(message)
                elif isinstance(message, messages.Pinned):
                    self._pin(message)
                elif isinstance(message, messages.Counted):
                    answer = self._asked.get(message.number)
                    if answer is not None and not answer.done():
                        answer.set_result(message)
        except messages.Broken as error:
            _log.error("the egress process sent %s", error)
            assert self._transport is not None
            self._transport.abort()

    # The process reads hostile bytes: its messages are bounded here too. One that was started
    # anew begins to count anew.

    def _hear(self, seen: messages.SeenConnection) -> None:
        if self._told < messages.MOST_SEEN:
            self._told += 1
            self._tell(seen.event())

    def _pin(self, pinned: messages.Pinned) -> None:
        known = self._pins.get(pinned.name)
        count = self._pinned - len(known or ()) + len(pinned.addresses)
        # A few that were on their way come on top of what the process allows.
        if count < 2 * messages.MOST_PINNED_ADDRESSES and (known is not None or len(self._pins) < messages.MOST_PINNED):
            self._pins[pinned.name] = pinned.addresses
            self._pinned = count

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._before = self._last
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError())


def _sum(first: messages.Counted, second: messages.Counted) -> messages.Counted:
    return messages.Counted(
        second.number,
        first.connections + second.connections,
        first.denied + second.denied,
        first.sent + second.sent,
        first.received + second.received,
        first.untold + second.untold,
    )


class EgressClient:
    """One egress process, begun with the first box that needs it and again when it died."""

    def __init__(
        self, start: messages.ProcessSettings, bounds: messages.BoxLimits, secrets: Path | None = None
    ) -> None:
        """``secrets`` is a file that the process reads, and nobody else."""
        self._start = start
        self._secrets = secrets
        self.bounds = bounds
        self._attached: set[Attachment] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._waiting: list[list[int]] = []
        self._watched = -1
        self._pause = _RETRY_SECONDS
        self._began = 0.0
        self._reviving: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process, where there is one."""
        return None if self._process is None else self._process.pid

    async def attach(
        self, ends: Sequence[int], rules: BoxEgress, tell: Tell, authority: KeyPair | None = None
    ) -> Attachment:
        """Let a box, known by what its network leads to, reach what these rules allow; ``ends`` are closed with it.

        ``tell`` hears of connections and names that are allowed or denied.
        """
        attachment = Attachment(self, ends, rules, tell, authority)
        self._attached.add(attachment)
        try:
            self.begin()
        except ProvisionFailed:
            attachment.close()
            raise
        if self._control is not None:
            await attachment.connect()
        return attachment

    def begin(self) -> None:
        """Start the process, if there is none."""
        if self._control is not None or self._reviving is not None:
            return
        try:
            self._begin()
        except OSError as error:
            text = f"the egress process could not be started: {error.strerror}"
            raise ProvisionFailed(text, step="egress", errno=error.errno) from error

    def forget(self, attachment: Attachment) -> None:
        """It is closed."""
        self._attached.discard(attachment)

    def hand_over(self, *descriptors: int) -> None:
        """Give the process a box."""
        if self._control is None:
            return
        if self._waiting or not self._try_send(descriptors):
            if not self._waiting:
                self._send_later()
            self._waiting.append([os.dup(descriptor) for descriptor in descriptors])

    def _try_send(self, descriptors: Sequence[int]) -> bool:
        assert self._control is not None
        try:
            socket.send_fds(self._control, [b"b"], list(descriptors))
        except BlockingIOError:
            return False
        except OSError as error:
            # Without root programs share their user with us, and so the user's bound of descriptors in flight.
            # Any other error means that it is dead, which its descriptor tells.
            return error.errno != errno.ETOOMANYREFS
        return True

    def _send_waiting(self) -> None:
        while self._waiting:
            descriptors = self._waiting[0]
            if self._control is None:
                return
            if not self._try_send(descriptors):
                self._send_later()
                return
            self._waiting.pop(0)
            for descriptor in descriptors:
                os.close(descriptor)

    def _send_later(self) -> None:
        """Try again a little later: that there is room does not mean that what is sent may be on its way."""
        asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._send_waiting)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs, self._opened_secrets() as secrets:
            self._process = subprocess.Popen(
                # Nothing of where the server was started, and nothing of its environment.
                [sys.executable, "-I", "-m", "tidebox.egress", str(theirs.fileno())],
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *(secrets or ())],
                start_new_session=True,
            )
            ours.send(messages.pack(msgspec.structs.replace(self._start, secrets=secrets)))
        self._control = ours
        self._began = loop.time()
        self._watched = os.pidfd_open(self._process.pid)
        loop.add_reader(self._watched, self._on_death)

    @contextlib.contextmanager
    def _opened_secrets(self) -> Iterator[tuple[int, ...] | None]:
        """The descriptor of the file of secrets; none where it cannot be read by now, None where there is no file."""
        if self._secrets is None:
            yield None
            return
        try:
            found = (open_file(self._secrets),)
        except InvalidRequest as error:
            _log.error("no secrets are put into requests: %s", error.message)
            yield ()
            return
        try:
            yield found
        finally:
            os.close(*found)

    def _on_death(self) -> None:
        self._end()
        if asyncio.get_running_loop().time() - self._began > _LONGEST_RETRY_SECONDS:
            self._pause = _RETRY_SECONDS
        _log.warning("the egress process died: connections of boxes were lost")
        if not self._closed and self._attached:
            self._reviving = asyncio.get_running_loop().create_task(self._revive())

    def _end(self) -> None:
        """Let go of the process, which is dead or soon will be."""
        loop = asyncio.get_running_loop()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._watched >= 0:
            loop.remove_reader(self._watched)
            os.close(self._watched)
            self._watched = -1
        for descriptors in self._waiting:
            for descriptor in descriptors:
                os.close(descriptor)
        self._waiting.clear()
        if self._process is not None:
            self._process.poll()
            self._process = None

    async def _revive(self) -> None:
        try:
            while self._control is None:
                await asyncio.sleep(self._pause)
                self._pause = min(self._pause * 2, _LONGEST_RETRY_SECONDS)
                try:
                    self._begin()
                except OSError as error:
                    _log.warning("the egress process could not be started: %s", error.strerror)
            for attachment in list(self._attached):
                await attachment.connect()
        finally:
            self._reviving = None

    async def close(self) -> None:
        """End the process; boxes that are left reach nothing."""
        self._closed = True
        if self._reviving is not None:
            self._reviving.cancel()
        for attachment in list(self._attached):
            attachment.close()
        process = self._process
        self._end()
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.wait, _DEATH_SECONDS)
