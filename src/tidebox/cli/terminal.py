"""Our own terminal while a program elsewhere has it: every key goes there, and nothing is left changed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import termios
import tty
from collections.abc import Callable
from types import TracebackType
from typing import Self

ESCAPE = 0x1D
"""Ctrl-]: the key in front of what is meant for us."""
_DETACH = ord("d")


# What a program asks a terminal: its kind, its state, where the cursor is, its colours.
_QUESTION = re.compile(
    rb"\x1b\[[?>=]?[0-9;]*(?:[cnt]|\$p)|\x1b\[>[0-9;]*q|\x1b\[\?u"
    rb"|\x1b\][0-9;]*\?(?:\x07|\x1b\\)|\x1bP[+$]q[^\x1b]*\x1b\\"
)


# The lines that scroll. Programs set them for the size that the terminal had, and see no need to undo it.
_MARGINS = re.compile(rb"\x1b\[[0-9;]*r")


def replayed(data: bytes) -> bytes:
    """Output of a while ago, without what our terminal would answer now: nobody waits for that any more.

    And without margins for a terminal of another size, below which nothing would scroll.
    """
    return _MARGINS.sub(b"", _QUESTION.sub(b"", data))


class Keys:
    """Tells what is typed for the program from what is typed for us."""

    def __init__(self) -> None:
        self._escaped = False
        self.detach = False
        """Whether ``Ctrl-] d`` was typed."""

    def take(self, data: bytes) -> bytes:
        """Return the part of ``data`` that is for the program."""
        passed = bytearray()
        for byte in data:
            if self._escaped:
                self._escaped = False
                if byte == _DETACH:
                    self.detach = True
                    break
                # Twice is once for the program; before any other key it was meant for the program as well.
                passed += bytes([byte]) if byte == ESCAPE else bytes([ESCAPE, byte])
            elif byte == ESCAPE:
                self._escaped = True
            else:
                passed.append(byte)
        return bytes(passed)


class RawTerminal:
    """Standard input in raw mode for as long as the context lasts, also after this process was stopped and went on."""

    def __init__(self, on_resize: Callable[[], None]) -> None:
        self._on_resize = on_resize
        self._before = termios.tcgetattr(0)

    def __enter__(self) -> Self:
        self._set_raw()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        loop.add_signal_handler(signal.SIGCONT, self._go_on)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
            loop.remove_signal_handler(number)
        self._restore()

    def _set_raw(self) -> None:
        tty.setraw(0, termios.TCSADRAIN)

    def _restore(self) -> None:
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)
        except (OSError, termios.error):
            pass  # the terminal is gone

    def _stop(self) -> None:
        # Somebody stops this process from outside: Ctrl-Z itself goes to the program.
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _go_on(self) -> None:
        self._set_raw()
        self._on_resize()


def size() -> tuple[int, int]:
    """Rows and columns of our terminal."""
    found = shutil.get_terminal_size()
    try:
        found = os.get_terminal_size(0)
    except OSError:
        pass
    return max(found.lines, 1), max(found.columns, 1)
