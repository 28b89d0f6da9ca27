"""Terminals."""

from __future__ import annotations

import signal
import sys

from tests.agent.peer import Peer
from tidebox.wire.messages import ExecExited, ExecResize, ExecSignal, ExecStarted, ExecStdin, ExecStdout


def until(peer: Peer, id: int, wanted: bytes) -> bytes:
    """Output up to and with the wanted bytes."""
    seen = b""
    while wanted not in seen:
        data = peer.expect(id, ExecStdout).data
        peer.consumed(id, len(data))
        seen += bytes(data)
    return seen


def test_all_output_comes_as_stdout(agent: Peer) -> None:
    outcome = agent.run_sh("echo out; echo err >&2; exit 3", tty=True)
    assert outcome.stdout == b"out\r\nerr\r\n"
    assert outcome.stderr == b""
    assert outcome.exited.code == 3


def test_it_is_a_terminal_with_the_asked_size(agent: Peer) -> None:
    outcome = agent.run_sh(
        "test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM", tty=True, rows=33, cols=111
    )
    assert outcome.stdout == b"33 111\r\nxterm\r\n"


def test_it_is_the_controlling_terminal(agent: Peer) -> None:
    assert agent.run_sh("echo hello > /dev/tty", tty=True).stdout == b"hello\r\n"


def test_input_is_echoed_and_read(agent: Peer) -> None:
    id = agent.sh("read line; echo got $line", tty=True)
    agent.send(id, ExecStdin(data=b"abc\n"))
    assert agent.finish(id).stdout == b"abc\r\ngot abc\r\n"


def test_empty_input_is_no_end(agent: Peer) -> None:
    id = agent.sh("read line; echo got $line", tty=True)
    agent.send(id, ExecStdin(data=b""), ExecStdin(data=b"x\n"))
    assert agent.finish(id).stdout.endswith(b"got x\r\n")


def test_control_d_is_the_end(agent: Peer) -> None:
    id = agent.start("cat", tty=True)
    agent.expect(id, ExecStarted)
    agent.send(id, ExecStdin(data=b"a\n"))
    until(agent, id, b"a\r\na\r\n")
    agent.send(id, ExecStdin(data=b"\x04"))
    assert agent.finish(id).exited.code == 0


def test_control_c_interrupts_the_foreground(agent: Peer) -> None:
    # The shell looks at its trap when what it waits for has ended.
    id = agent.sh("trap 'echo interrupted' INT; sh -c 'echo ready; exec sleep 100'; echo after", tty=True)
    agent.expect(id, ExecStarted)
    until(agent, id, b"ready\r\n")
    agent.send(id, ExecStdin(data=b"\x03"))
    assert agent.finish(id).stdout.replace(b"^C", b"") == b"interrupted\r\nafter\r\n"


def test_job_control(agent: Peer) -> None:
    id = agent.start("bash", "--norc", "-i", tty=True, env=["PS1=$ ", "TERM=dumb"])
    agent.expect(id, ExecStarted)
    until(agent, id, b"$ ")
    # It says where it is; in the line that the terminal echoes the words are cut. One process: a shell that stands
    # between fork and exec does not stop.
    job = 'import signal, time; signal.signal(18, lambda *_: print("a" "gain")); print("g" "o"); time.sleep(100)'
    agent.send(id, ExecStdin(data=f"{sys.executable} -uSc '{job}'\n".encode()))
    until(agent, id, b"go\r\n")
    agent.send(id, ExecStdin(data=b"\x1a"))
    assert b"Stopped" in until(agent, id, b"Stopped")
    agent.send(id, ExecStdin(data=b"fg\n"))
    until(agent, id, b"again\r\n")
    agent.send(id, ExecStdin(data=b"\x03"))
    until(agent, id, b"$ ")
    agent.send(id, ExecStdin(data=b"exit 7\n"))
    assert agent.finish(id).exited.code == 7


def test_resize_reaches_the_program(agent: Peer) -> None:
    id = agent.sh("trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done", tty=True)
    agent.expect(id, ExecStarted)
    until(agent, id, b"ready")
    agent.send(id, ExecResize(rows=50, cols=132))
    assert agent.finish(id).stdout.endswith(b"50 132\r\n")


def test_signal(agent: Peer) -> None:
    id = agent.start("sleep", "100", tty=True)
    agent.expect(id, ExecStarted)
    agent.send(id, ExecSignal(signal=signal.SIGTERM))
    assert agent.finish(id).exited.signal == signal.SIGTERM


def test_a_lot_of_output(agent: Peer) -> None:
    outcome = agent.run_sh("stty -opost; seq 1 50000", tty=True)
    assert outcome.stdout == b"".join(b"%d\n" % number for number in range(1, 50001))


def test_what_cannot_be_started(agent: Peer) -> None:
    failed = agent.run("/does/not/exist", tty=True).failed
    assert (failed.kind, failed.stage) == ("not_found", "execvp")


def test_background_process_does_not_hold_the_exec(agent: Peer) -> None:
    outcome = agent.run_sh("trap '' HUP; sleep 30 & echo done", tty=True)
    assert isinstance(outcome.end, ExecExited)
    assert outcome.stdout == b"done\r\n"
