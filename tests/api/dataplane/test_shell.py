"""Terminals: a shell as on any machine one logs in to."""

from __future__ import annotations

import re
import time

import httpx2
import pytest

from tests.api.dataplane.plane import Plane, Socket
from tests.runtimes import native_only
from tidebox.broker.sandboxes.sandbox import LocalSandbox
from tidebox.model.sandbox import Capability

SHELL = "/v1/shell/ws"
PROMPT = "ready> "


def at_prompt(socket: Socket, **fields: object) -> None:
    """Start a shell and wait until it says that it waits."""
    socket.send("start", env={"PS1": PROMPT, "HOME": "/workspace"}, **fields)
    socket.expect("ready")
    # A login shell may set a prompt of its own, and what is typed ahead of it is shown twice.
    type_line(socket, f"PS1='{PROMPT[:2]}''{PROMPT[2:]}'; echo be''gin")
    socket.read_until("begin")
    socket.read_until(PROMPT)


def type_line(socket: Socket, line: str) -> None:
    socket.send("stdin", data=line + "\n")


def run(socket: Socket, line: str) -> str:
    """Type a line; what is shown until the next prompt."""
    type_line(socket, line)
    return socket.read_until(PROMPT)


def announced(socket: Socket, command: str) -> None:
    """Type a command that says that it is in the foreground; the echo of what is typed does not."""
    type_line(socket, f"sh -c 'echo he\"\"re; exec {command}'")
    socket.read_until("here")


def interrupt_until_prompt(socket: Socket) -> None:
    deadline = time.monotonic() + 30
    while True:
        socket.send("stdin", data="\x03")
        try:
            socket.read_until(PROMPT, 1.0)
            return
        except AssertionError:
            assert time.monotonic() < deadline


def test_a_login_shell_on_a_terminal(plane: Plane, token: str) -> None:
    with plane.socket(SHELL, token) as socket:
        at_prompt(socket)
        assert "/dev/pts/" in run(socket, "tty")
        assert "24 80" in run(socket, "stty size")
        assert "xterm-256color" in run(socket, "echo $TERM")
        assert "/workspace" in run(socket, "pwd")
        type_line(socket, "exit 3")
        frames = socket.until("exit")
        assert frames[-1]["exit_code"] == 3
        assert not any(frame["type"] == "stderr" for frame in frames)


def test_the_size_changes_while_it_runs(plane: Plane, token: str) -> None:
    with plane.socket(SHELL, token) as socket:
        at_prompt(socket, tty={"rows": 30, "cols": 100})
        assert "30 100" in run(socket, "stty size")
        socket.send("resize", rows=50, cols=132)
        # The shell shows its prompt again, for the new size.
        type_line(socket, "stty size")
        socket.read_until("50 132")


def test_keys_interrupt_and_suspend(plane: Plane, token: str) -> None:
    with plane.socket(SHELL, token) as socket:
        at_prompt(socket)
        announced(socket, "sleep 1000")
        socket.send("stdin", data="\x03")
        socket.read_until("^C")
        socket.read_until(PROMPT)
        assert "130" in run(socket, "echo $?")
        announced(socket, "sleep 1001")
        socket.send("stdin", data="\x1a")
        assert "Stopped" in socket.read_until(PROMPT)
        assert re.search(r"\[1\] ?\+\s+Stopped\s+.*sleep 1001", run(socket, "jobs"))
        # Shells quote it in their own way.
        assert re.search(r"sleep 1001['\"]", run(socket, "bg %1"))
        assert "Running" in run(socket, "jobs")
        type_line(socket, "fg %1")
        socket.read_until("sleep 1001")
        # The shell says what it continues before it hands the terminal over.
        interrupt_until_prompt(socket)
        assert "Running" not in run(socket, "jobs")
        socket.send("stdin", data="\x04")
        assert socket.until("exit")[-1]["signal"] is None


def test_a_signal_frame_reaches_what_is_in_the_foreground(plane: Plane, token: str) -> None:
    with plane.socket(SHELL, token) as socket:
        socket.send(
            "start", command=["sh", "-c", "trap 'echo caught; exit 9' INT; echo set; while :; do sleep 0.05; done"]
        )
        socket.expect("ready")
        socket.read_until("set")
        socket.send("signal", signal="INT")
        frames = socket.until("exit")
        assert frames[-1]["exit_code"] == 9


@native_only("the image for tests has no such program")
def test_less_fills_the_screen_and_scrolls(plane: Plane, token: str) -> None:
    with plane.socket(SHELL, token) as socket:
        at_prompt(socket, tty={"rows": 10, "cols": 60})
        run(socket, "seq -f 'line %03g' 1 200 > numbers")
        type_line(socket, "less numbers")
        first = socket.read_until("line 009")
        assert "\x1b[?1049h" in first, "the screen of full-screen programs"
        assert "line 011" not in first
        socket.send("stdin", data=" ")
        assert "line 018" in socket.read_until("line 018")
        socket.send("stdin", data="G")
        socket.read_until("(END)")
        socket.send("resize", rows=20, cols=60)
        assert "line 192" in socket.read_until("~")
        socket.send("stdin", data="q")
        assert "\x1b[?1049l" in socket.read_until(PROMPT)


@native_only("the image for tests has no such program")
def test_vim_edits_a_file(plane: Plane, token: str, http: httpx2.Client) -> None:
    with plane.socket(SHELL, token) as socket:
        at_prompt(socket, tty={"rows": 24, "cols": 80})
        type_line(socket, "vim -u NONE -N written.txt")
        # In quotes it is vim that shows it; before that it was typed.
        socket.read_until('"written.txt"')
        socket.send("stdin", data="ihello from vim\x1b")
        socket.read_until("hello from vim")
        socket.send("stdin", data="yyp:wq\r")
        socket.read_until(PROMPT)
        assert run(socket, "wc -l written.txt").count("2 written.txt")
    answer = http.get("/v1/files/download", params={"path": "written.txt"})
    assert answer.text == "hello from vim\nhello from vim\n"


def test_a_terminal_shows_colours(plane: Plane, token: str) -> None:
    with plane.socket(SHELL, token) as socket:
        socket.send("start", command=["ls", "--color=auto", "-d", "/tmp"])
        frames = socket.until("exit")
        assert "\x1b[" in "".join(frame["data"] for frame in frames if frame["type"] == "stdout")


def test_a_key_is_echoed_at_once(plane: Plane, token: str) -> None:
    with plane.socket(SHELL, token) as socket:
        at_prompt(socket)
        taken = []
        for _ in range(50):
            started = time.perf_counter()
            socket.send("stdin", data="x")
            socket.read_until("x")
            taken.append(time.perf_counter() - started)
        # Far from what is promised: this only sees that nothing waits for more to come.
        assert sorted(taken)[25] < 0.04


def test_a_terminal_left_open_is_found_again(plane: Plane, token: str) -> None:
    with plane.socket(SHELL, token) as socket:
        socket.send("start", env={"PS1": PROMPT}, on_disconnect="detach")
        process_id = socket.expect("ready")["process_id"]
        type_line(socket, "HERE=still; echo se''t")
        socket.read_until("set\r\n")
    with plane.socket(SHELL, token) as socket:
        socket.send("start", process_id=process_id)
        socket.expect("ready")
        type_line(socket, "echo $HERE-here")
        socket.read_until("still-here")
        type_line(socket, "exit")
        socket.until("exit")


def test_a_terminal_that_is_closed_takes_its_jobs_along(plane: Plane, token: str, http: httpx2.Client) -> None:
    with plane.socket(SHELL, token) as socket:
        at_prompt(socket)
        run(socket, "sleep 27182 &")
    deadline = time.monotonic() + 30
    command = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    while "27182" in http.post("/v1/exec", json={"command": command}).json()["stdout"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("path", [SHELL, "/api/{id}/shell/ws", "/ws/{id}"])
def test_every_path_to_a_shell(plane: Plane, token: str, sandbox: LocalSandbox, path: str) -> None:
    with plane.socket(path.format(id=sandbox.id), token) as socket:
        socket.send("start")
        socket.expect("ready")
        type_line(socket, "tty; exit")
        frames = socket.until("exit")
        assert "/dev/pts/" in "".join(frame["data"] for frame in frames if frame["type"] == "stdout")


def test_a_shell_needs_the_shell_capability(plane: Plane, sandbox: LocalSandbox) -> None:
    with plane.socket(SHELL, plane.token(sandbox, Capability.EXEC)) as socket:
        socket.send("start")
        error = socket.expect("error")["error"]
        assert (error["code"], error["message"]) == ("CAPABILITY_DENIED", "shell not granted")
