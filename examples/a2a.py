"""Two agents share a sandbox through an A2A task: one computes and hands over, the other goes on. Needs a server.

python examples/a2a.py [URL]
"""

from __future__ import annotations

import asyncio
import json
import sys

import httpx2

from tidebox.sdk import AsyncAccess, AsyncSandbox
from tidebox.sdk.server_target import DEFAULT_URL


async def research(url: str, context_id: str) -> str:
    """The first agent: does its work, and describes it as a task, in JSON."""
    async with AsyncAccess(url) as access:
        environment = await access.sessions.acquire({"thread_id": context_id, "mode": "ensure"})
        sandbox = await access.open(environment["session_id"])
        await sandbox.exec("seq 1 10 | paste -sd+ | tee sum.txt > /dev/null; echo 55 > report.txt")
        base = environment["sandbox"]["http_base_url"]
        file = {"name": "report.txt", "mimeType": "text/plain", "uri": f"{base}/files/download?path=report.txt"}
        task = {
            "kind": "task",
            "id": "task-1",
            "contextId": context_id,
            "status": {"state": "completed"},
            "metadata": {"environment": environment},
            "artifacts": [{"artifactId": "report", "parts": [{"kind": "file", "file": file}]}],
        }
        return json.dumps(task)


async def review(message: str) -> None:
    """The second agent: knows nothing but the task."""
    task = json.loads(message)
    environment = task["metadata"]["environment"]
    file = task["artifacts"][0]["parts"][0]["file"]
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {environment['token']}"}) as http:
        print(file["name"], (await http.get(file["uri"])).text.strip())
    async with await AsyncSandbox.connect(environment) as sandbox:
        print("checked", (await sandbox.exec("cat sum.txt; echo $(( $(cat sum.txt) ))")).text.split())


async def main() -> None:
    """Let them work, and end the context."""
    url = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URL
    message = await research(url, "research-42")
    await review(message)
    async with AsyncAccess(url) as access:
        await access.sessions.release(json.loads(message)["metadata"]["environment"]["session_id"])


asyncio.run(main())
