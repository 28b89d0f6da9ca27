"""``tidebox sandbox shell`` in a real terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer
from tests.cli.command import TIDEBOX
from tests.cli.remote import Remote
from tests.cli.screen import Screen
from tidebox.cli.modes import Modes
from tidebox.cli.terminal import Keys, replayed

StartServer = Callable[..., RunningServer]

AS_IT_WAS = "00100"
"""The modes of a terminal in which nothing runs: its own screen, a cursor, and nothing else."""


@pytest.fixture
def remote(running_server: RunningServer, tmp_path: Path) -> Remote:
    return Remote.of(running_server, tmp_path)


@pytest.fixture
def screen(remote: Remote) -> Iterator[Screen]:
    with Screen(remote.home, remote.env) as found:
        yield found


@pytest.fixture
def box(remote: Remote) -> Iterator[str]:
    name = remote.text("sandbox", "create")
    yield name
    remote("sandbox", "rm", name)


def open_shell(screen: Screen, name: str) -> None:
    """A shell whose prompt is not ours, with the name of this program before everything it says."""
    screen.run([TIDEBOX, "sandbox", "shell", name])
    screen.wait_for("bash")
    screen.type("PS1='there$ '; clear")
    screen.wait_for("there$")


def open_editor(screen: Screen) -> None:
    """An editor that fills the screen and takes the mouse."""
    screen.type("vim --clean -c 'set mouse=a'")
    screen.wait_until(lambda lines: lines.count("~") > 5, "empty file")
    assert screen.modes() != AS_IT_WAS


def leave(screen: Screen) -> str:
    """Leave what runs; the id to come back with."""
    screen.press("C-]", "d")
    line = next(line for line in screen.wait_for("tidebox: left") if line.startswith("tidebox: left"))
    process = re.search(r"proc-\w+", line)
    assert process is not None
    return process[0]


def see_that_it_is_ours_again(screen: Screen, code: int) -> None:
    """The command ended with that exit code, and left the terminal as it was."""
    assert screen.modes() == AS_IT_WAS
    screen.type("code=$?; clear; echo code $code raw $(stty -a | grep -c -e -icanon)")
    screen.wait_for(f"code {code} raw 0")


def test_a_session_at_a_terminal(screen: Screen, box: str) -> None:
    """Sizes, vim, Ctrl-C, Ctrl-Z and jobs, the end of the shell: in one shell, as a user has it."""
    open_shell(screen, box)
    screen.type("stty size; tty")
    screen.wait_for("/dev/pts/0")
    screen.wait_for("24 80")
    screen.resize(30, 100)
    screen.type("clear; sleep 0.2; stty size")
    screen.wait_for("30 100")

    screen.type("vim -u NONE notes.txt")
    screen.wait_for("~")
    screen.press("i")
    screen.type("tide and time")
    screen.press("Escape")
    assert screen.wait_for("tide and time")[1:].count("~") > 20
    screen.resize(20, 70)
    screen.wait_until(lambda lines: 10 < lines.count("~") < 20, "smaller vim")
    screen.type(":wq")
    screen.wait_for("there$")
    screen.type("clear; cat notes.txt")
    screen.wait_for("tide and time")

    # It says when the keys are its own.
    screen.type("""clear; sh -c 'trap "echo again" CONT; echo begun; while :; do sleep 0.1; done'""")
    screen.wait_for("begun")
    screen.press("C-z")
    screen.wait_for("[1]+  Stopped")
    screen.type("fg")
    screen.wait_for(end="again")
    screen.press("C-c")
    screen.wait_for_prompt("there$")
    screen.type("ended=$?; clear; echo ended $ended")
    screen.wait_for("ended 130")
    screen.type("exit 7")
    screen.wait_for("here$")
    see_that_it_is_ours_again(screen, 7)


def test_leave_and_come_back(screen: Screen, box: str) -> None:
    open_shell(screen, box)
    screen.type("x=kept; sleep 1 && echo came later &")
    screen.type("printf '\\033[6n'")
    time.sleep(0.3)
    process = leave(screen)
    see_that_it_is_ours_again(screen, 0)
    time.sleep(1)
    screen.run([TIDEBOX, "sandbox", "attach", box, process])
    screen.wait_for(end="came later")
    screen.press("C-c")
    screen.wait_for_prompt("there$")
    screen.type("clear; echo is $x; cat -v")
    assert screen.wait_for("is kept")[0] == "is kept", "an old question was answered"
    screen.press("C-]", "C-]")
    screen.press("Enter")
    screen.wait_for("^]")
    screen.press("C-c")
    screen.wait_for_prompt("there$")
    screen.type("exit")
    screen.wait_for("here$")


def test_an_editor_is_left_and_found_again(screen: Screen, box: str) -> None:
    open_shell(screen, box)
    open_editor(screen)
    screen.press("i", "high tide", "Escape")
    screen.wait_for("high tide")
    process = leave(screen)
    see_that_it_is_ours_again(screen, 0)
    # In a window of another size: what the editor set for the old one does not hold.
    screen.resize(40, 90)
    screen.run([TIDEBOX, "sandbox", "attach", box, process])
    screen.wait_until(lambda lines: "high tide" in lines and lines.count("~") > 30, "editor in its new size")
    screen.type(":q!")
    screen.wait_for_prompt("there$")
    screen.type("clear; seq 100; stty size")
    lines = screen.wait_until(lambda lines: lines[-2:] == ["40 90", "there$"], "end of the numbers")
    assert lines[:-2] == [str(number) for number in range(63, 101)], "all of the screen scrolls"
    screen.type("exit")
    screen.wait_for("here$")
    see_that_it_is_ours_again(screen, 0)


def test_a_terminal_that_is_stopped_and_goes_on(screen: Screen, box: str) -> None:
    open_shell(screen, box)
    command = f"sandbox shell {box}"
    [pid] = subprocess.run(["pgrep", "-f", command], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(pid), signal.SIGTSTP)
    screen.wait_for("[1]+  Stopped")
    screen.type("clear; stty -a | grep -c -e '-icanon'")
    screen.wait_for("0")
    screen.resize(26, 90)
    screen.type("fg")
    time.sleep(0.5)
    screen.type("clear; stty size")
    screen.wait_for("26 90")
    screen.type("exit")
    screen.wait_for("here$")


def test_the_server_is_restarted_in_the_middle(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    remote = Remote.of(server, tmp_path)
    box = remote.text("sandbox", "create", "box")
    with Screen(tmp_path, remote.env) as screen:
        open_shell(screen, box)
        open_editor(screen)
        server.stop(signal.SIGKILL)
        start_server("--port", str(server.address[1]), data_dir=server.data_dir)
        screen.wait_for("tidebox: the sandbox")
        see_that_it_is_ours_again(screen, 2)
        # The sandbox is another one, and can be used at once.
        open_shell(screen, box)
        screen.type("exit")
        screen.wait_for("here$")


def test_no_terminal_no_shell(remote: Remote, box: str) -> None:
    done = remote("sandbox", "shell", box)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"needs a terminal" in done.stderr


def test_keys_for_us_and_for_the_program() -> None:
    keys = Keys()
    assert keys.take(b"a\x1d\x1db\x1dx") == b"a\x1db\x1dx"
    assert (keys.take(b"c\x1d"), keys.detach) == (b"c", False)
    assert (keys.take(b"d not sent"), keys.detach) == (b"", True)


def test_what_a_terminal_would_answer() -> None:
    asked = b"\x1b[6n\x1b[c\x1b[>0c\x1b[?25$p\x1b]11;?\x07\x1b]10;?\x1b\\\x1bP+q544e\x1b\\\x1b[18t"
    assert replayed(b"a\x1b[1;20r" + asked + b"b\x1b[1;31mred\x1b[0m\x1b[2J") == b"ab\x1b[1;31mred\x1b[0m\x1b[2J"


CHANGES = [
    (
        b"\x1b[?1049h\x1b[?1h\x1b=\x1b[1;24r\x1b[?1000;1006h\x1b[?25l",
        b"\x1b[?1049l\x1b[?1l\x1b[?1000l\x1b[?1006l\x1b[?25h\x1b7\x1b[r\x1b8\x1b>",
    ),
    (b"\x1b[?2004h there$ \x1b[?2004l", b""),
    (b"\x1b[1;31mred", b"\x1b[m"),
    (b"\x1b[1;31mred\x1b[0m\x1b[31m\x1b[m", b""),
    (b"\x1b[>4;2m\x1b[2 q\x1b(0", b"\x1b[>4m\x1b[0 q\x1b(B"),
    (b"\x1b[>4;2m\x1b[>4m\x1b[2 q\x1b[ q\x1b(0\x1b(B", b""),
    (b"\x1b[?1049h\x1b[?25l\x1bc", b""),
    (b"no escape \x1b[2J\x1b[6n\x1b]0;title\x07\x1b[?12h\x1b[34h", b""),
]


@pytest.mark.parametrize(("output", "back"), CHANGES)
def test_what_a_program_changed_is_changed_back(output: bytes, back: bytes) -> None:
    for cut in range(len(output) + 1):
        modes = Modes()
        modes.see(output[:cut])
        modes.see(output[cut:])
        assert modes.undo() == back, cut
        assert modes.undo() == b""


def test_the_terminal_of_a_killed_test_is_not_left_behind(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\nfrom tests.cli.screen import Screen\n"
        "screen = Screen(pathlib.Path(sys.argv[1]), os.environ)\n"
        "print(screen._server.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, timeout=50, check=False)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
