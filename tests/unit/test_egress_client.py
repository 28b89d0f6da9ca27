"""What the server believes of an egress process, whatever has become of that: here the test is the process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest

from tidebox.egress import messages
from tidebox.egress.client import Attachment, EgressClient
from tidebox.model.egress import EgressPolicy, allowlist_of
from tidebox.model.events import EgressSeen
from tidebox.model.requested_egress import BoxEgress

RULES = BoxEgress(policy=EgressPolicy((allowlist_of({"hosts": ["one.example.com"]}),)))


class Process:
    """The side of the process."""

    def __init__(self) -> None:
        self.egress = EgressClient(messages.ProcessSettings(), messages.BoxLimits())
        ours, self._control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.egress._control = ours
        self.seen: list[EgressSeen] = []

    async def attach(self) -> Attachment:
        """A box that is handed over."""
        attachment = await self.egress.attach([], RULES, self.seen.append)
        await self.take()
        return attachment

    async def take(self) -> None:
        """Have the stream of the box that was handed over."""
        _, (descriptor,), _, _ = socket.recv_fds(self._control, 16, 1)
        self.reader, self._writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))

    async def die(self, attachment: Attachment) -> None:
        """Let go of the stream, and see that it is known."""
        self._writer.close()
        await attachment.usage()

    async def tell(self, attachment: Attachment, *told: bytes) -> None:
        """Say something, and see that it was heard: the answer to a question comes behind it."""
        self._writer.write(b"".join(told))
        asking = asyncio.ensure_future(attachment.usage())
        asked: messages.CountRequest | None = None
        found = messages.process_reader()
        while asked is None:
            for item in found.feed(await self.reader.read(1 << 16)):
                asked = item if isinstance(item, messages.CountRequest) else None
        self._writer.write(messages.encode(messages.Counted(asked.number, 2, 0, 0, 0, 0)))
        await asking

    def say(self, message: msgspec.Struct) -> None:
        """The same without waiting."""
        self._writer.write(messages.encode(message))

    def close(self) -> None:
        """End everything."""
        self._writer.close()
        self._control.close()


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    made = Process()
    yield made
    await made.egress.close()
    made.close()
    await asyncio.sleep(0)


def seen(number: int) -> bytes:
    return messages.encode(messages.SeenConnection(False, f"h{number}.example.com", None, None, None, "no_match"))


async def test_no_more_is_told_of_a_box_than_there_may_be(process: Process) -> None:
    attachment = await process.attach()
    await process.tell(attachment, *map(seen, range(messages.MOST_SEEN + 500)))
    assert [item.host for item in process.seen] == [f"h{number}.example.com" for number in range(messages.MOST_SEEN)]
    # A process that is started anew counts anew; the server does not.
    await process.die(attachment)
    await attachment.connect()
    await process.take()
    await process.tell(attachment, seen(0))
    assert len(process.seen) == messages.MOST_SEEN


async def test_no_more_names_are_kept_than_a_box_may_have(process: Process) -> None:
    attachment = await process.attach()
    names = [f"n{number}.example.com" for number in range(messages.MOST_PINNED + 500)]
    pins = [messages.encode(messages.Pinned(name, ("192.0.2.1",))) for name in names]
    # One that is known may change.
    await process.tell(attachment, *pins, messages.encode(messages.Pinned(names[0], ("192.0.2.2",))))
    assert set(attachment._pins) == set(names[: messages.MOST_PINNED])
    assert attachment._pins[names[0]] == ("192.0.2.2",)


async def test_no_more_addresses_are_kept_than_a_box_may_have(process: Process) -> None:
    attachment = await process.attach()
    addresses = tuple(f"192.0.2.{number}" for number in range(48))
    pins = [messages.encode(messages.Pinned(f"n{number}.example.com", addresses)) for number in range(1000)]
    await process.tell(attachment, *pins)
    assert 0 < sum(map(len, attachment._pins.values())) < 2 * messages.MOST_PINNED_ADDRESSES
    # All of it can be told to a process that is started anew.
    rules = BoxEgress(policy=EgressPolicy(()))
    assert len(messages.encode(messages.Serve.of(rules, attachment._pins, messages.BoxLimits()))) < messages.MOST_BYTES


@pytest.mark.parametrize(
    "message",
    [
        messages.SeenConnection(True, "x" * 254, None, None, None, None),
        messages.SeenConnection(True, None, "1" * 46, None, None, None),
        messages.SeenConnection(False, None, None, None, None, "r" * 33),
        messages.Pinned("one.example.com", ("192.0.2.1",) * 49),
        msgspec.defstruct("Other", [("text", str)], tag="other")(text="whatever"),
    ],
    ids=["host", "address", "reason", "addresses", "kind"],
)
async def test_what_is_no_message_ends_the_stream(process: Process, message: msgspec.Struct) -> None:
    attachment = await process.attach()
    process.say(message)
    while await process.reader.read(1 << 16):
        pass
    assert process.seen == []
    assert attachment._pins == {}
