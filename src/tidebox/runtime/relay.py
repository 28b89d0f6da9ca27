"""A unix socket through which external clients reach the agent of a live box.

Clients share the box's one agent stream by id range: a slot of ids belongs to each client, and frames pass unchanged.
Our own link is the client in the last slot, so 127 others fit. Two rules keep clients apart: a client that leaves has
its programs killed and its files and connections dropped by the agent, and its slot is given to the next client only
after everything the agent still had to say to the old one has arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

from tidebox.errors import ProvisionFailed, TideboxError
from tidebox.runtime.link import Link
from tidebox.runtime.link.link import SEND_BUFFER
from tidebox.wire.envelope import open_envelope
from tidebox.wire.errors import MalformedMessage, WireError
from tidebox.wire.frames import FLAG_SESSION_START, FLAG_SHUTDOWN, FLAG_TERMINAL, Frame, FrameReader
from tidebox.wire.ids import MAX_CLIENTS, IdRange, slot_of, slot_range
from tidebox.wire.messages import ExecRequest, ExecSignal, Ping

# The last slot is our own link's.
CLIENT_SLOTS = MAX_CLIENTS - 1
# From a shutdown message to the end by force.
SHUTDOWN_DRAIN_SECONDS = 2.0
# What one client may leave unread before the agent is held back: more than credit and acks let one transfer and a few
# programs have under way, so that only clients without flow control can ever stall their neighbours.
CLIENT_HIGH_WATER = 16 << 20
# A client that stalls its neighbours for this long is dropped.
STALL_SECONDS = 30.0

_SIGKILL = 9
_PROLOGUE = struct.Struct(">II")


class Relay:
    """The listening socket and its clients; lives as long as the link or until ``close``."""

    def __init__(self, link: Link, path: Path) -> None:
        self._link = link
        self._path = path
        self._ready_frame = link.ready_frame
        self._clients: dict[int, _Client] = {}
        self._blocked: set[_Client] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._closing = False

    @classmethod
    async def open(cls, link: Link, path: Path) -> Relay:
        """Listen at ``path``, for this user only."""
        await link.wait_ready()
        relay = cls(link, path)
        listener = _listen(path)
        link.route_foreign(relay._to_client)
        relay._server = await asyncio.get_running_loop().create_unix_server(lambda: _Client(relay), sock=listener)
        relay._spawn(relay._end_with_link())
        return relay

    async def close(self) -> None:
        """Drop every client and remove the socket."""
        if self._closing:
            return
        self._closing = True
        self._link.route_foreign(None)
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        for client in list(self._clients.values()):
            client.abort()

    def admit(self, client: _Client) -> IdRange | None:
        """The ids of a new client; None when all slots are taken."""
        if self._closing:
            return None
        for slot in range(CLIENT_SLOTS):
            if slot not in self._clients:
                self._clients[slot] = client
                client.slot = slot
                return slot_range(slot)
        return None

    def greeting(self, ids: IdRange) -> bytes:
        """Return the first message to a client: its id range and the agent's ready message."""
        return _PROLOGUE.pack(ids.start, ids.end) + self._ready_frame

    def to_agent(self, client: _Client, frame: Frame) -> None:
        """Forward a frame; the client reads no further while the agent does not."""
        self._link.send_pieces((frame.raw,))
        if frame.flags & FLAG_SHUTDOWN:
            self._spawn(self._force_end())
        if not self._link.writable and not self._blocked:
            self._spawn(self._unblock())
        if not self._link.writable:
            self._blocked.add(client)
            client.pause()

    def hold(self, client: _Client) -> None:
        """A client has too much unread: hold the agent back."""
        self._link.hold(client)

    def release(self, client: _Client) -> None:
        """The client caught up."""
        self._link.release(client)

    def left(self, client: _Client) -> None:
        """A client is gone: end what was its own."""
        self._link.release(client)
        self._blocked.discard(client)
        if self._closing or self._link.gone:
            self._clients.pop(client.slot, None)
        else:
            self._spawn(self._clean_up(client))

    def _to_client(self, frame: Frame) -> None:
        client = self._clients.get(slot_of(frame.id))
        if client is not None:
            client.deliver(frame)

    async def _clean_up(self, client: _Client) -> None:
        try:
            for id in sorted(client.executions):
                self._link.send(ExecSignal(signal=_SIGKILL), id)
            ids = slot_range(client.slot)
            self._link.client_disconnected(ids.start, ids.end)
            # The agent falls silent towards the client at that message, and the stream is in order: with the answer to
            # this, all that was said to the old client has arrived.
            if self._link.supports(Ping):
                await self._link.ping()
        except TideboxError:
            # The box is gone, and everything of the client with it.
            pass
        finally:
            self._clients.pop(client.slot, None)

    async def _unblock(self) -> None:
        with contextlib.suppress(TideboxError):
            await self._link.drain()
        blocked, self._blocked = self._blocked, set()
        for client in blocked:
            client.resume()

    async def _force_end(self) -> None:
        await asyncio.sleep(SHUTDOWN_DRAIN_SECONDS)
        await self._link.close()

    async def _end_with_link(self) -> None:
        await self._link.wait_closed()
        await self.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Client(asyncio.BufferedProtocol):
    """One connection to the relay socket."""

    def __init__(self, relay: Relay) -> None:
        self.slot = -1
        # Programs that the client has started and that have not ended.
        self.executions: set[int] = set()
        self._relay = relay
        self._reader = FrameReader()
        self._ids: IdRange | None = None
        self._transport: asyncio.Transport | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: greet, or turn away."""
        # Not every event loop's transports are subclasses of asyncio's.
        transport = self._transport = cast(asyncio.Transport, transport)
        self._ids = self._relay.admit(self)
        if self._ids is None:
            transport.abort()
            return
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        transport.set_write_buffer_limits(high=CLIENT_HIGH_WATER)
        transport.write(self._relay.greeting(self._ids))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio. A client that breaks the rules is dropped; nobody else is harmed."""
        self._reader.received(nbytes)
        try:
            while (frame := self._reader.next_frame()) is not None:
                if not self._may_send(frame):
                    self.abort()
                    return
                self._watch(frame)
                self._relay.to_agent(self, frame)
        except (WireError, TideboxError):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._cancel_stall()
        if self._ids is not None:
            self._transport = None
            self._relay.left(self)

    def pause_writing(self) -> None:
        """Called by asyncio."""
        self._relay.hold(self)
        self._stalled = asyncio.get_running_loop().call_later(STALL_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._cancel_stall()
        self._relay.release(self)

    def deliver(self, frame: Frame) -> None:
        """A frame from the agent."""
        if frame.flags & FLAG_TERMINAL:
            self.executions.discard(frame.id)
        if self._transport is not None:
            self._transport.write(frame.raw)

    def pause(self) -> None:
        """Read nothing from this client."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _may_send(self, frame: Frame) -> bool:
        assert self._ids is not None
        return frame.id in self._ids or (frame.id == 0 and bool(frame.flags & FLAG_SHUTDOWN))

    def _watch(self, frame: Frame) -> None:
        if frame.flags & FLAG_TERMINAL:
            self.executions.discard(frame.id)
        elif frame.flags & FLAG_SESSION_START:
            try:
                wire_name = open_envelope(frame).wire_name
            except MalformedMessage:
                return  # the agent answers it
            if wire_name == ExecRequest.WIRE:
                self.executions.add(frame.id)

    def _cancel_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        _bind(listener, path)
        # Before listen, so that nobody can have connected under the wider mode.
        os.chmod(path, 0o600)
        listener.listen(CLIENT_SLOTS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ProvisionFailed(f"cannot listen at {path}: {error.strerror or error}", step="relay") from None
    return listener


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind to ``path``, however long it is: the address of a socket has room for a hundred characters only."""
    if not hasattr(os, "O_PATH"):
        # Only Linux has a way round that.
        listener.bind(str(path))
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
