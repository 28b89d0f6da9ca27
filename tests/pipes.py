"""What goes into and comes out of processes that ``subprocess`` did not start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor


@contextlib.contextmanager
def exchanging(content: bytes, feed: int, *sources: int) -> Iterator[list[Future[bytes]]]:
    """Feed one pipe and read others to their ends, all at once; they are closed when that is done."""
    with ThreadPoolExecutor(1 + len(sources)) as threads:
        threads.submit(_write, feed, content)
        yield [threads.submit(_read, source) for source in sources]


def _write(descriptor: int, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb", buffering=0) as file:
        while content:
            content = content[file.write(content) :]


def _read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()
