"""What an agent does with `tidebox mcp`, by the official client of the protocol. Needs no server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters

TIDEBOX = Path(sys.executable).with_name("tidebox")


async def main() -> None:
    """Call some tools."""
    async with Client(StdioServerParameters(command=str(TIDEBOX), args=["mcp"])) as agent:
        print(len((await agent.list_tools()).tools), "tools")

        ran = await agent.call_tool("run_code", {"code": "print(6 * 7)"})
        assert ran.structured_content is not None
        print(ran.structured_content["stdout"], end="")

        granted = await agent.call_tool("environment_acquire", {"thread_id": "example"})
        assert granted.structured_content is not None
        session = {"session_id": granted.structured_content["session_id"]}
        await agent.call_tool("environment_write_file", {**session, "path": "tide.txt", "content": "ebb\nflow\n"})
        counted = await agent.call_tool("environment_exec", {**session, "command": "wc -l < tide.txt"})
        assert counted.structured_content is not None
        print(counted.structured_content["stdout"], end="")
        await agent.call_tool("environment_release", session)


asyncio.run(main())
