"""Drives a box with the whole SDK of a real client: its own gate, bulk transfer and flow control.

Run as ``python sdk.py SCENARIO FILE``; MSB_HOME must know a running sandbox named "box". Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from microsandbox import Sandbox, Stdin

FILE = sys.argv[2]


async def execute(box: Any) -> dict[str, Any]:
    ran = await box.exec("/bin/sh", ["-c", "echo out; echo err >&2; exit 3"])
    result = {"stdout": ran.stdout_text, "stderr": ran.stderr_text, "code": ran.exit_code}
    try:
        await box.exec("/no/such/bin", [])
    except Exception as error:
        result["failed"] = str(error)
    return result


async def ping(box: Any) -> dict[str, Any]:
    await box.ping()
    return {"pong": True}


async def stdin(box: Any) -> dict[str, Any]:
    """More input than the window, both ways at once."""
    sent = bytes(range(256)) * 16_384
    handle = await box.exec_stream("/bin/cat", [], stdin=Stdin.pipe())
    sink = handle.take_stdin()

    async def feed() -> None:
        for start in range(0, len(sent), 100_000):
            await sink.write(sent[start : start + 100_000])
        await sink.close()

    feeding = asyncio.create_task(feed())
    got = b""
    code = None
    async for event in handle:
        if event.event_type == "stdout":
            got += event.data
        elif event.event_type == "exited":
            code = event.code
    await feeding
    return {"same": got == sent, "code": code}


async def transfer(box: Any) -> dict[str, Any]:
    content = bytes(range(256)) * 65_536
    await box.fs.write(FILE, content)
    whole = await box.fs.read(FILE) == content
    sink = await box.fs.write_stream(FILE)
    async with sink:
        for start in range(0, len(content), 1_000_000):
            await sink.write(content[start : start + 1_000_000])
    chunks = [chunk async for chunk in await box.fs.read_stream(FILE)]
    return {"whole": whole, "streamed": b"".join(chunks) == content}


async def slow_reader(box: Any) -> dict[str, Any]:
    """A program whose output nobody takes, beside one that answers at once."""
    flood = await box.exec_stream("/bin/sh", ["-c", "head -c 20000000 /dev/zero"])
    await asyncio.sleep(0.5)
    started = time.monotonic()
    neighbour = await box.exec("/bin/echo", ["alive"])
    prompt = time.monotonic() - started < 20
    total = 0
    async for event in flood:
        if event.event_type == "stdout":
            total += len(event.data)
    return {"neighbour": neighbour.stdout_text, "prompt": prompt, "total": total}


SCENARIOS: dict[str, Callable[[Any], Awaitable[dict[str, Any]]]] = {
    scenario.__name__: scenario for scenario in (execute, ping, stdin, transfer, slow_reader)
}


async def main() -> None:
    box = await (await Sandbox.get("box")).connect()
    try:
        result = await SCENARIOS[sys.argv[1]](box)
    except Exception as error:
        result = {"error": type(error).__name__, "text": str(error)}
    sys.stdout.write(json.dumps(result))
    sys.stdout.flush()
    # The client's own threads may still call into an interpreter that is being torn down, which aborts it.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
