"""Collection of the agent's interpreter: from this machine, or from an image where this machine's would not run."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from tidebox.runtime.docker.engine import DockerEngine
from tidebox.runtime.shared import tools
from tidebox.runtime.shared.archives import tar_of

_MOST_BYTES = 256 << 20
_PLACE = "/tidebox"

Provide = Callable[[], Awaitable[str]]


async def collect(engine: DockerEngine, machine: str, labels: dict[str, str], provide: Provide) -> bytes:
    """An archive of an interpreter with the agent; ``provide`` gives an image with a Python, where one is needed."""
    if tools.runs_here(machine):
        return await asyncio.to_thread(tools.collect_here)
    return await _collect_in(engine, await provide(), labels)


async def _collect_in(engine: DockerEngine, image: str, labels: dict[str, str]) -> bytes:
    """The same in a container that has nothing but the image and our files."""
    name = f"tidebox-tools-{secrets.token_hex(8)}"
    body = {
        "Image": image,
        "Entrypoint": ["python3", "-I", f"{_PLACE}/collect.py", _PLACE, tools.MODULE, *tools.LATER],
        "Cmd": [],
        "Labels": labels,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}, "CapDrop": ["ALL"]},
    }
    files = {f"{_PLACE[1:]}/{path}": content for path, content in tools.sources().items()}
    files |= {f"{_PLACE[1:]}/collect.py": tools.PROGRAM.read_bytes(), f"{_PLACE[1:]}/tidebox/__init__.py": b""}
    await engine.call("POST", "/containers/create", query={"name": name}, body=body)
    try:
        await engine.call("PUT", f"/containers/{name}/archive", query={"path": "/"}, body=tar_of(files))
        output = _Output()
        stream = (await engine.attach(name))(output)
        await engine.call("POST", f"/containers/{name}/start")
        try:
            async with asyncio.timeout(tools.SECONDS):
                await output.ended.wait()
        except TimeoutError:
            raise tools.collecting_failed(f"it took longer than {tools.SECONDS:g} s") from None
        finally:
            stream.abort()
        found = await engine.call("POST", f"/containers/{name}/wait")
        if found.get("StatusCode"):
            raise tools.collecting_failed(getattr(stream, "last_words", b"").decode("utf-8", "replace"))
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
