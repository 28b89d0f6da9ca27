"""The line that says how far something is."""

from __future__ import annotations

import io
import os
import pty
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidebox.cli import progress as progress_module
from tidebox.cli.progress import BusyLine, ProgressLine


@contextmanager
def terminal(patience: float = 0.0) -> Iterator[int]:
    """Standard error on a terminal, whose other side this is."""
    ours, theirs = pty.openpty()
    with pytest.MonkeyPatch.context() as patch, open(theirs, "w", buffering=1) as file:
        patch.setattr(sys, "stderr", file)
        patch.setattr(progress_module, "_PATIENCE_SECONDS", patience)
        patch.setattr(progress_module, "_PAUSE_SECONDS", 0.01)
        patch.setenv("COLUMNS", "80")
        yield ours
    os.close(ours)


def written(ours: int) -> str:
    os.set_blocking(ours, False)
    try:
        return os.read(ours, 65536).decode()
    except BlockingIOError:
        return ""


def test_a_bar_that_is_taken_away_again() -> None:
    with terminal() as screen:
        with ProgressLine("Sending", 2000) as progress:
            file = progress.reading(io.BytesIO(bytes(2000)))
            time.sleep(0.02)
            file.read(1000)
            shown = written(screen)
            assert shown.startswith("\rSending  1.0 kB of 2.0 kB [############            ]  50%")
            assert file.tell() == 1000
        assert written(screen) == "\r\x1b[K"


def test_work_that_does_not_tell_how_far_it_is() -> None:
    with terminal() as screen, BusyLine("Building \x1b[2Jx"):
        time.sleep(0.3)
        assert written(screen).startswith("\rBuilding \\x1b[2Jx  0.")


def test_what_is_over_soon_shows_nothing() -> None:
    with terminal(patience=60.0) as screen:
        with ProgressLine("Sending", 10) as progress:
            progress.add(10)
        assert written(screen) == ""


def test_no_terminal_no_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_PATIENCE_SECONDS", 0.0)
    with ProgressLine("Sending", 10) as progress, BusyLine("Building"):
        target = io.BytesIO()
        progress.writing(target).write(b"12345")
    assert target.getvalue() == b"12345"
    assert capsys.readouterr() == ("", "")
