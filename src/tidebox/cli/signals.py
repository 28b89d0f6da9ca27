"""Signals that end a command: orderly, with 128 and their number as the exit code."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Answer = TypeVar("Answer")

# Ctrl-C is Python's own matter, unless a command has a better use for it.
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """A signal ended the command before it had an answer."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def end_like_interrupted() -> list[int]:
    """Let these signals raise KeyboardInterrupt as Ctrl-C does; the list gets those that came."""
    came: list[int] = []

    def stop(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    for number in _ENDING:
        # What is ignored stays so, as nohup wants it.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, stop)
    return came


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """``asyncio.run``; these signals cancel ``work``, which cleans up, and Stopped tells which it was.

    Not by an exception out of nowhere: that could come between the start of a process and the note of its number.
    """
    # Only here: every command loads this module, and not every one has a loop.
    import asyncio

    came: list[int] = []

    async def main() -> Answer:
        task = asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            came.append(number)
            task.cancel()

        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if not came:
            raise
        raise Stopped(came[0]) from None
