"""A program in a sandbox, with our own input and output: on a terminal or on pipes, through lost connections."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidebox.cli.modes import Modes
from tidebox.cli.output import note
from tidebox.cli.streams import CHUNK, BlockingCalls, read_chunks, write_all
from tidebox.cli.terminal import Keys, RawTerminal, replayed, size
from tidebox.errors import TideboxError
from tidebox.sdk.errors import ConnectionLost, ServerUnreachable
from tidebox.sdk.retries import RetryBudget

if TYPE_CHECKING:
    from tidebox.sdk import AsyncProcess, AsyncSandbox
    from tidebox.sdk.sandboxes.results import Ending

_DESCRIPTORS = {"stdout": 1, "stderr": 2}
# How long a lost connection is tried to be made again.
_PATIENCE_SECONDS = 30.0
# What a program printed before it was found again comes without such a pause.
_OLD_PAUSE_SECONDS = 0.5
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Left:
    """The program goes on without us."""

    process_id: str


class Conversation:
    """One program that was started to go on without anybody, while we are there."""

    def __init__(
        self,
        sandbox: AsyncSandbox,
        process: AsyncProcess,
        *,
        terminal: bool,
        stdin: int | None,
        came_back: bool = False,
        kept: dict[str, bytearray] | None = None,
    ) -> None:
        """``came_back`` says that the program was there before, and that what it printed comes first.

        With ``kept`` the output is put there instead of being shown.
        """
        self._kept = kept
        self._sandbox = sandbox
        self._process = process
        self._terminal = terminal
        self._stdin = stdin
        self._old_until = math.inf if came_back and terminal else 0.0
        """Until when output counts as printed before we came: while it comes without a pause, and nobody types."""
        self._line_begun = False
        self._modes = Modes()
        self._leaving = asyncio.Event()
        self._interrupts = 0
        self._resized = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()

    async def hold(self) -> Ending | Left:
        """Talk until the program is over, or we leave it."""
        with contextlib.ExitStack() as stack:
            tasks = [asyncio.create_task(self._show())]
            leaving = asyncio.create_task(self._leaving.wait())
            loop = asyncio.get_running_loop()
            for number in _ENDING:
                loop.add_signal_handler(number, self._leaving.set)
                stack.callback(loop.remove_signal_handler, number)
            if self._terminal:
                stack.enter_context(RawTerminal(self._resized.set))
                tasks += [asyncio.create_task(self._type()), asyncio.create_task(self._resize())]
            else:
                loop.add_signal_handler(signal.SIGINT, self._interrupt)
                stack.callback(loop.remove_signal_handler, signal.SIGINT)
                if self._stdin is not None:
                    tasks.append(asyncio.create_task(self._feed(self._stdin)))
            try:
                return await self._first_end(tasks, leaving)
            finally:
                for task in (*tasks, leaving, *self._sending):
                    task.cancel()
                await asyncio.wait([*tasks, leaving])
                await self._process.close()
                if self._terminal:
                    self._give_back()

    def _give_back(self) -> None:
        """Leave the terminal as it was, no matter what the program was doing with it."""
        with contextlib.suppress(OSError):  # it may be gone
            # What we say, or the shell that called us, begins on a line of its own.
            write_all(1, self._modes.undo() + (b"\r\n" if self._line_begun else b""))

    async def _first_end(self, tasks: list[asyncio.Task[None]], leaving: asyncio.Task[bool]) -> Ending | Left:
        showing, *others = tasks
        waiting: set[asyncio.Task[None] | asyncio.Task[bool]] = {showing, leaving, *others}
        while True:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if showing in done:
                return await self._process.wait()
            if leaving in done:
                assert self._process.id is not None
                return Left(self._process.id)

    async def _show(self) -> None:
        """Write what the program prints, each byte once, through however many connections."""
        writer = BlockingCalls()
        patience = RetryBudget(_PATIENCE_SECONDS)
        while True:
            try:
                while (chunk := await self._process.read()) is not None:
                    patience.progress()
                    data = chunk.data
                    if self._kept is not None:
                        self._kept[chunk.stream] += data
                        continue
                    now = asyncio.get_running_loop().time()
                    if now < self._old_until:
                        self._old_until = now + _OLD_PAUSE_SECONDS
                        data = replayed(data)
                    self._line_begun = not data.endswith(b"\n")
                    if self._terminal:
                        self._modes.see(data)
                    await writer.call(write_all, _DESCRIPTORS[chunk.stream], data)
                return
            except (ConnectionLost, ServerUnreachable) as error:
                if self._stdin is not None and not self._terminal:
                    raise ConnectionLost(f"{error.message}; nobody knows how much input arrived") from None
                await self._attach_again(patience, error)

    async def _attach_again(self, patience: RetryBudget, error: TideboxError) -> None:
        """Go on with the program on a new connection."""
        lost = self._process
        await lost.close()
        assert lost.id is not None
        while True:
            await patience.overcome(error)
            try:
                self._process = await self._sandbox.attach(lost.id, lost.offset)
                break
            except (ConnectionLost, ServerUnreachable) as failure:
                error = failure
        if self._process.offset > lost.offset:
            note(f"{self._process.offset - lost.offset} bytes of the output are lost")
        self._resized.set()

    async def _feed(self, descriptor: int) -> None:
        async for chunk in read_chunks(descriptor):
            await self._process.write(chunk)
        await self._process.end_input()

    async def _type(self) -> None:
        """Send what is typed, but for what is meant for us."""
        loop = asyncio.get_running_loop()
        typed: asyncio.Queue[bytes] = asyncio.Queue()
        keys = Keys()
        loop.add_reader(0, lambda: typed.put_nowait(_read_typed()))
        try:
            while data := await typed.get():
                passed = keys.take(data)
                if passed:
                    self._old_until = 0.0
                    await self._process.write(passed)
                if keys.detach:
                    break
        finally:
            loop.remove_reader(0)
        self._leaving.set()

    async def _resize(self) -> None:
        while True:
            await self._resized.wait()
            self._resized.clear()
            await self._process.resize(*size())

    def _interrupt(self) -> None:
        """Ctrl-C is the program's; a second one ends it."""
        self._interrupts += 1
        name = "INT" if self._interrupts == 1 else "KILL"
        task = asyncio.create_task(self._process.signal(name))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def _read_typed() -> bytes:
    try:
        return os.read(0, CHUNK)
    except OSError:
        return b""  # the terminal is gone
