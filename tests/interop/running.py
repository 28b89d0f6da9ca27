"""Starting the real clients: each has an environment of its own, made by ``scripts/bootstrap --test``."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from tests.wire.agents import agent_link
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.model.box import BoxSpec
from tidebox.runtime.native.box import NativeBox
from tidebox.runtime.relay import Relay
from tidebox.wire.generations import GENERATION

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = {"0.6.14": ROOT / ".interop-06", "0.7.11": ROOT / ".interop-07"}
# What each client speaks.
CLIENT_GENERATION = {"0.6.14": 7, "0.7.11": 10}


@contextlib.asynccontextmanager
async def relay_at(path: Path, generation: int = GENERATION) -> AsyncIterator[None]:
    """An agent, pinned to a generation, behind a relay socket."""
    async with agent_link(generation) as link:
        relay = await Relay.open(link, path)
        try:
            yield
        finally:
            await relay.close()


@contextlib.asynccontextmanager
async def boxed_relay_at(path: Path) -> AsyncIterator[None]:
    """A real, shared box behind a relay socket."""
    engine = Engine(load_settings(data_dir=path.parent / "data"), pool=False)
    try:
        box = await engine.runtime.open(BoxSpec(kind="sandbox"))
        assert isinstance(box, NativeBox)
        relay = await Relay.open(box.link, path)
        try:
            yield
        finally:
            await relay.close()
            await box.close()
    finally:
        await engine.close()


@contextlib.contextmanager
def registered(version: str, home: Path) -> Iterator[Path]:
    """A client home that believes in a running sandbox "box"; where the client looks for its socket."""
    subprocess.run(
        [ENVIRONMENTS[version] / "bin" / "msb", "ls"], env=_environment(home), check=True, capture_output=True
    )
    # The client checks that the sandbox's process is alive.
    process = subprocess.Popen(["sleep", "120"])
    try:
        with contextlib.closing(sqlite3.connect(home / "db" / "msb.db")) as database, database:
            database.execute(
                "INSERT INTO sandbox (name, config, status, created_at, updated_at)"
                " VALUES ('box', '{\"name\": \"box\"}', 'Running', datetime(), datetime())"
            )
            database.execute(
                "INSERT INTO run (sandbox_id, pid, status, started_at) VALUES (1, ?, 'Running', datetime())",
                (process.pid,),
            )
        directory = home / "run" / "sandboxes" / hashlib.sha256(b"box").hexdigest()[:24]
        directory.mkdir(parents=True)
        yield directory / "agent.sock"
    finally:
        process.kill()
        process.wait()


async def drive_sdk(version: str, home: Path, scenario: str, file: Path | None = None) -> dict[str, Any]:
    """One scenario of sdk.py; ``file`` is where the agent sees it."""
    return await _run(version, home, "sdk.py", scenario, file or home / "file")


async def drive_client(
    version: str, path: Path, scenario: str, agent_generation: int = GENERATION, file: Path | None = None
) -> dict[str, Any]:
    """One scenario of client.py; ``file`` is where the agent sees it."""
    speaks = min(CLIENT_GENERATION[version], agent_generation)
    return await _run(version, path.parent, "client.py", path, scenario, file or path.with_name("file"), str(speaks))


def _environment(home: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT / "src"), "HOME": str(home), "MSB_HOME": str(home), "PATH": os.defpath}


async def _run(version: str, home: Path, program: str, *arguments: str | Path) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        ENVIRONMENTS[version] / "bin" / "python",
        Path(__file__).with_name(program),
        *arguments,
        env=_environment(home),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(40):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    result: dict[str, Any] = json.loads(output)
    return result
