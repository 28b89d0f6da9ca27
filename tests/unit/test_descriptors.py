"""The descriptors of all boxes, watched as one."""

from __future__ import annotations

import asyncio
import os

from tidebox.runtime.native.descriptors import Descriptors


async def test_what_is_watched_first_is_called_before_what_was_ready_earlier() -> None:
    descriptors = Descriptors()
    called: list[str] = []
    pipes = {name: os.pipe() for name in ("box", "spawner", "other box")}
    done = asyncio.Event()
    try:
        for name, (read, _) in pipes.items():

            def callback(name: str = name, read: int = read) -> None:
                called.append(name)
                descriptors.forget(read)
                if len(called) == len(pipes):
                    done.set()

            descriptors.watch(read, callback, first=name == "spawner")
        for _, write in pipes.values():
            os.write(write, b"+")
        async with asyncio.timeout(10):
            await done.wait()
    finally:
        descriptors.close()
        for pair in pipes.values():
            for fd in pair:
                os.close(fd)
    assert called == ["spawner", "box", "other box"]
