"""Stopping ``tidebox run`` from outside."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cli.command import start_tidebox

POLITE = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (print('term'), sys.exit(0)))\n"
    "print('up')\n"
    "while True: time.sleep(0.1)\n"
)
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\nwhile True: signal.pause()\n"


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_program_is_asked_first(number: int, exit_code: int) -> None:
    with start_tidebox("run", "-c", POLITE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (exit_code, b"term\n", b"tidebox: cancelled\n")


def test_one_that_does_not_listen_is_killed() -> None:
    with start_tidebox("run", "-c", STUBBORN) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"tidebox: cancelled\n")


def test_a_second_interrupt_does_not_wait() -> None:
    with start_tidebox("run", "--timeout", "60", "-c", STUBBORN) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_a_blocked_reader_does_not_stop_the_clock() -> None:
    with start_tidebox(
        "run", "--timeout", "1", "--output-limit", "1G", "-c", "while True: print('x' * 1000)"
    ) as process:
        # Nobody reads: the program waits for room, and the timeout must come nevertheless.
        time.sleep(2.5)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 124
    assert err == b"tidebox: timeout: stopped after 1 s\n"
    assert out
