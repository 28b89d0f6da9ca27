"""Where the agent's interpreter comes from: this machine, or an image where this machine's would not run."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from tidebox.errors import ProvisionFailed
from tidebox.runtime.docker.archives import tar_of
from tidebox.runtime.docker.engine import Engine

PACKAGE_ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("collect.py")
MODULE = "tidebox.spawner.container"
# What it loads only when it is asked for something.
_LATER = ("tidebox.spawner.examination", "tidebox.spawner.renewal", "json")
# What the agent is made of, below the package.
_PARTS = ("agent", "wire", "spawner")
_SECONDS = 60.0
_MOST_BYTES = 256 << 20
_PLACE = "/tidebox"

Provide = Callable[[], Awaitable[str]]


def sources() -> dict[str, bytes]:
    """The agent's own files, below the directory that its package is in."""
    package = PACKAGE_ROOT / "tidebox"
    paths = [path for part in _PARTS for path in sorted((package / part).glob("*.py"))]
    return {str(path.relative_to(PACKAGE_ROOT).as_posix()): path.read_bytes() for path in paths}


def runs_here(machine: str) -> bool:
    """Whether this process's own interpreter would run in a container on such a machine."""
    return sys.platform == "linux" and platform.machine() == machine


async def collect(engine: Engine, machine: str, labels: dict[str, str], provide: Provide) -> bytes:
    """An archive of an interpreter with the agent; ``provide`` gives an image with a Python, where one is needed."""
    if runs_here(machine):
        return await asyncio.to_thread(_collect_here)
    return await _collect_in(engine, await provide(), labels)


def _collect_here() -> bytes:
    try:
        found = subprocess.run(
            [os.path.realpath(sys.executable), "-I", "-S", str(PROGRAM), str(PACKAGE_ROOT), MODULE, *_LATER],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(str(error)) from error
    if found.returncode:
        raise _failed(found.stderr.decode("utf-8", "replace"))
    return found.stdout


async def _collect_in(engine: Engine, image: str, labels: dict[str, str]) -> bytes:
    """The same in a container that has nothing but the image and our files."""
    name = f"tidebox-tools-{secrets.token_hex(8)}"
    body = {
        "Image": image,
        "Entrypoint": ["python3", "-I", f"{_PLACE}/collect.py", _PLACE, MODULE, *_LATER],
        "Cmd": [],
        "Labels": labels,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}, "CapDrop": ["ALL"]},
    }
    files = {f"{_PLACE[1:]}/{path}": content for path, content in sources().items()}
    files |= {f"{_PLACE[1:]}/collect.py": PROGRAM.read_bytes(), f"{_PLACE[1:]}/tidebox/__init__.py": b""}
    await engine.call("POST", "/containers/create", query={"name": name}, body=body)
    try:
        await engine.call("PUT", f"/containers/{name}/archive", query={"path": "/"}, body=tar_of(files))
        output = _Output()
        stream = (await engine.attach(name))(output)
        await engine.call("POST", f"/containers/{name}/start")
        try:
            async with asyncio.timeout(_SECONDS):
                await output.ended.wait()
        except TimeoutError:
            raise _failed(f"it took longer than {_SECONDS:g} s") from None
        finally:
            stream.abort()
        found = await engine.call("POST", f"/containers/{name}/wait")
        if found.get("StatusCode"):
            raise _failed(getattr(stream, "last_words", b"").decode("utf-8", "replace"))
        return bytes(output.data)
    finally:
        await engine.call("DELETE", f"/containers/{name}", query={"force": "1", "v": "1"})


class _Output:
    """Keeps what a container writes to its standard output."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = asyncio.Event()
        self._buffer = bytearray(1 << 16)

    def get_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, count: int) -> None:
        if len(self.data) < _MOST_BYTES:
            self.data += self._buffer[:count]

    def disconnected(self) -> None:
        self.ended.set()

    def pause_writing(self) -> None:
        """Nothing is written to it."""

    def resume_writing(self) -> None:
        """Nothing is written to it."""


def _failed(reason: str) -> ProvisionFailed:
    last = (reason.strip().splitlines() or [""])[-1]
    return ProvisionFailed(f"the agent for containers could not be put together: {last}", step="tools")
