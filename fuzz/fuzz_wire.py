"""Fuzz target of the agent protocol: any bytes, cut anywhere, give items or a WireError at both ends, nothing else.

With atheris installed: ``python -m fuzz.fuzz_wire corpus/ -max_total_time=600``. Without it, recorded frames are
mutated at random for ``--seconds``.
"""

from __future__ import annotations

import random

from fuzz.harness import main
from tidebox.wire.connection import AgentConnection, HostConnection
from tidebox.wire.envelope import encode_message
from tidebox.wire.errors import WireError
from tidebox.wire.files import FsRequest, OpenFile, OpenOptions
from tidebox.wire.generations import GENERATION
from tidebox.wire.messages import Bootstrap, ExecRequest, ExecStdin, Ready, Rlimit, Shutdown

READY = encode_message(Ready(boot_time_ns=1, init_time_ns=2, ready_time_ns=3), 0, GENERATION)
SEEDS = [
    READY,
    encode_message(Bootstrap(user="u", rlimits=[Rlimit(resource="core", soft=0, hard=0)]), 0, GENERATION),
    encode_message(ExecRequest(cmd="ls", args=["-l"], env=["A=b"]), 1, GENERATION),
    encode_message(ExecStdin(data=b"input"), 1, GENERATION),
    encode_message(FsRequest(op=OpenFile(path="/a", options=OpenOptions(read=True))), 2, GENERATION),
    encode_message(Shutdown(), 0, GENERATION),
    bytes.fromhex("0000001200000001080102000000000000000000") + b"bulk",
    (1).to_bytes(4, "big") + (33_554_431).to_bytes(4, "big") + READY,
]


def check(data: bytes) -> None:
    """Feed one input, cut at places that its own bytes choose."""
    for connection in (
        AgentConnection(GENERATION),
        HostConnection(GENERATION),
        HostConnection(GENERATION, through_relay=True),
    ):
        position = 0
        try:
            while position < len(data):
                space = connection.reader.buffer()
                piece = data[position : position + min(1 + data[position], len(space))]
                space[: len(piece)] = piece
                connection.reader.received(len(piece))
                position += len(piece)
                while connection.next_item() is not None:
                    pass
            connection.reader.eof()
        except WireError:
            pass


def mutate(source: random.Random) -> bytes:
    """A few recorded frames in a row, with random damage."""
    data = bytearray(b"".join(source.choices(SEEDS, k=source.randint(1, 4))))
    for _ in range(source.randint(0, 8)):
        at = source.randrange(len(data) + 1)
        match source.randrange(4):
            case 0 if at < len(data):
                data[at] = source.randrange(256)
            case 1:
                data[at:at] = source.randbytes(source.randint(1, 8))
            case 2:
                del data[at : at + source.randint(1, 8)]
            case _:
                data[at : at + 4] = source.choice([bytes(4), b"\xff" * 4, b"\x00\x40\x00\x00", b"\x9f\xbf\x5f\x7f"])
    return bytes(data)


if __name__ == "__main__":
    main(check, mutate, "fuzz the agent protocol at random")
