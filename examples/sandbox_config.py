"""A sandbox out of the configuration of a run: somebody else negotiated it, and the run is told where it is."""

import asyncio
import json
import os
import sys
import urllib.request
from typing import Any

from tidebox.sdk import AsyncSandbox

server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8787"


def negotiate(thread_id: str) -> dict[str, Any]:
    """What the server of the agents does: it has the key, the run has not."""
    request = urllib.request.Request(
        f"{server}/v1/sandbox/sessions",
        json.dumps({"thread_id": thread_id, "mode": "ensure"}).encode(),
        {"Content-Type": "application/json", "X-API-KEY": os.environ["SANDBOX_API_KEY"]},
    )
    with urllib.request.urlopen(request) as answer:
        session: dict[str, Any] = json.load(answer)
    # With this the run gets itself new tokens for as long as it takes.
    return {"configurable": {"sandbox": session | {"refresh_url": f"{server}/sandbox/refresh"}}}


async def run(config: dict[str, Any]) -> None:
    async with await AsyncSandbox.connect(config) as sandbox:
        await asyncio.gather(*(sandbox.files.upload(f"{n}.txt", str(n * n).encode()) for n in range(5)))
        print((await sandbox.exec("cat *.txt | tr '\\n' ' '; ls | wc -l")).text, end="")


asyncio.run(run(negotiate("configured-thread")))
