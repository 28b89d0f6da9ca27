"""What a way out costs: the set-up of a box, a connection, and many bytes, each against the same without a box between.

    python -m benchmarks.egress [--boxes 200]

Needs root: the servers stand in a network of their own, where the direct way is measured too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.egress.world import ALL, BULK, ECHO, ONE, Machine, rules
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import OutputEvent
from tidebox.model.limits import Limits

# Milliseconds more; times as long; times as fast.
_MOST_SET_UP, _MOST_CONNECTION, _LEAST_BULK = 0.5, 5.0, 0.2
_RULES = rules(ALL, {"hosts": ["one.example.com"]})
_CONNECT = f"""
import socket, statistics, time
times = []
for _ in range(300):
    began = time.perf_counter()
    with socket.socket() as sock:
        sock.connect(("{ONE}", {ECHO}))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"\\1")
        sock.recv(1)
    times.append(time.perf_counter() - began)
print(statistics.median(times) * 1e3)
"""
_DOWNLOAD = f"""
import socket, time
size = 400 << 20
buffer = bytearray(1 << 20)
with socket.create_connection(("{ONE}", {BULK})) as sock:
    began = time.perf_counter()
    sock.sendall(b"%d\\n" % size)
    while size > 0:
        size -= sock.recv_into(buffer)
    print((400 << 20) / (time.perf_counter() - began) / 1e6)
"""
_HOLD = f"""
import socket, sys
held = [socket.create_connection(("one.example.com", {ECHO}), 120) for _ in range(20)]
for sock in held:
    sock.sendall(b"\\1")
    assert sock.recv(1) == b"\\1"
sys.stdout.write("held")
sys.stdout.flush()
sys.stdin.readline()
for sock in held:
    sock.sendall(b"\\2")
    assert sock.recv(1) == b"\\2"
sys.stdout.write("alive")
sys.stdout.flush()
sys.stdin.readline()
"""


async def _directly(program: str) -> float:
    """What a program prints in the network of the servers, where the loop's thread stands and so what it starts."""
    command = ["/usr/bin/python3", "-c", program]
    # Not by a thread of the pool, which stands elsewhere; nothing else is to be done meanwhile.
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: ASYNC221


async def _set_up(machine: Machine, rounds: int) -> tuple[float, float]:
    """Milliseconds from asking for a box, cold, to the end of a program in it; without and with a way out."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for leads_out in times:
            began = time.perf_counter()
            spec = BoxSpec(egress=_RULES if leads_out else None)
            box = await machine.runtime.open(spec, first=Command(argv=["true"]))
            assert box.first is not None
            async for _event in box.first.events():
                pass
            times[leads_out].append((time.perf_counter() - began) * 1e3)
            await box.close()
            await asyncio.sleep(0.03)
    return statistics.median(times[False]), statistics.median(times[True])


async def _hold(machine: Machine, count: int) -> float:
    """Seconds until so many boxes hold 20 connections each; they are made one after the other, a few at a time."""
    gate = asyncio.Semaphore(8)
    all_held, all_alive = asyncio.Barrier(count), asyncio.Barrier(count)

    async def one() -> None:
        async with gate:
            limits = Limits(memory=64 << 20, timeout=600)
            command = Command(argv=["/usr/bin/python3", "-c", _HOLD])
            box = await machine.runtime.open(BoxSpec(egress=_RULES, limits=limits), first=command)
            assert box.first is not None
            events = box.first.events()
            async for event in events:
                if isinstance(event, OutputEvent):
                    assert event.data.startswith(b"held"), event.data
                    break
        try:
            await all_held.wait()
            await box.first.write(b"\n")
            async for event in events:
                if isinstance(event, OutputEvent):
                    assert b"alive".startswith(event.data.strip()), event.data
                    break
            await all_alive.wait()
        finally:
            async with gate:
                await box.close()

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(count)))
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--boxes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("only root can make a network for the servers")
    with tempfile.TemporaryDirectory() as directory:
        machine = Machine(Path(directory))
        try:
            machine.run("pass", _RULES)
            without, with_ = machine.do(_set_up(machine, options.rounds), 300)
            print(f"set-up        {without:.2f} ms without, {with_:.2f} ms with: {with_ - without:+.2f} ms")
            missed = ["set-up"] if with_ - without > _MOST_SET_UP else []
            for name, program, unit, least, most in (
                ("connection", _CONNECT, "ms", 0.0, _MOST_CONNECTION),
                ("bulk", _DOWNLOAD, "MB/s", _LEAST_BULK, float("inf")),
            ):
                pairs = []
                for _ in range(3):
                    direct = machine.do(_directly(program), 120)
                    boxed = float(machine.run(["/usr/bin/python3", "-c", program], _RULES, timeout=120).out)
                    pairs.append((boxed / direct, direct, boxed))
                ratio, direct, boxed = sorted(pairs)[1]
                print(f"{name:13} {direct:.2f} {unit} direct, {boxed:.2f} {unit} through: x {ratio:.2f}")
                missed += [name] if not least <= ratio <= most else []
            if options.boxes:
                seconds = machine.do(_hold(machine, options.boxes), 600)
                print(f"held          {options.boxes} boxes x 20 connections, all alive ({seconds:.1f} s)")
        finally:
            machine.stop()
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
