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
from tidebox.cli.terminal import Keys, without_questions

StartServer = Callable[..., RunningServer]


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


def see_that_it_is_ours_again(screen: Screen, code: int) -> None:
    """The command ended with that exit code, and left the terminal as it was."""
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
    screen.press("C-]", "d")
    line = next(line for line in screen.wait_for("tidebox: left") if line.startswith("tidebox: left"))
    process = re.search(r"proc-\w+", line)
    assert process is not None
    see_that_it_is_ours_again(screen, 0)
    time.sleep(1)
    screen.run([TIDEBOX, "sandbox", "attach", box, process[0]])
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
    assert without_questions(b"a" + asked + b"b\x1b[1;31mred\x1b[0m\x1b[2J") == b"ab\x1b[1;31mred\x1b[0m\x1b[2J"


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
