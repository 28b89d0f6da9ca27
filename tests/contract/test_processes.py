"""Processes of sandboxes, in a real box of each runtime."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from tidebox.broker.sandboxes.processes import ManagedProcess
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited
from tidebox.model.sandbox import Capability
from tidebox.runtime.base import Runtime

# Writes as much as there is room for between it and who reads, and then ends.
FILLING = """
import os, time
os.set_blocking(1, False)
last = time.monotonic()
while time.monotonic() < last + 0.5:
    try:
        os.write(1, bytes(4096))
        last = time.monotonic()
    except BlockingIOError:
        time.sleep(0.01)
"""


async def ended(runtime: Runtime, code: str, seconds: float) -> tuple[Exited, bool]:
    """How a program ended that had so many seconds, and whose reader stood still for as long and more."""
    box = await runtime.open(BoxSpec(kind="sandbox"))
    try:
        running = await box.exec(Command(argv=("python3", "-c", code)))
        process = ManagedProcess(
            running, contextlib.AsyncExitStack(), detachable=False, capability=Capability.EXEC, terminal=False
        )
        reader = process.attach()
        process.end_after(seconds)
        await asyncio.sleep(seconds + 0.5)
        async with asyncio.timeout(30):
            while await reader.read() is not None:
                pass
        assert process.end is not None
        return process.end.exited, process.end.timed_out
    finally:
        await box.close()


async def test_a_program_that_ended_in_time_is_not_said_to_have_timed_out(runtime: Runtime) -> None:
    exited, timed_out = await ended(runtime, FILLING, 4.0)
    assert (exited.code, exited.signal, timed_out) == (0, None, False)


async def test_a_program_that_did_not_end_in_time_is(runtime: Runtime) -> None:
    exited, timed_out = await ended(runtime, FILLING + "time.sleep(60)", 2.0)
    assert (exited.code, exited.signal, timed_out) == (None, signal.SIGKILL, True)
