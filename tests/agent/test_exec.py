"""Programs: how they are started, what they see, how they end."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.agent.peer import Peer, running
from tidebox.wire.messages import Bootstrap, EnvVar, ExecExited, ExecResize, ExecSignal, ExecStarted, ExecStdin, Rlimit


def test_hello(agent: Peer) -> None:
    outcome = agent.run("echo", "hello", "world")
    assert outcome.stdout == b"hello world\n"
    assert outcome.exited.code == 0
    assert outcome.exited.signal is None
    assert outcome.kinds == ["ExecStarted", "ExecStdout", "ExecExited"]


def test_started_has_the_pid(agent: Peer) -> None:
    outcome = agent.run_sh("echo $$")
    assert outcome.started is not None
    assert outcome.started.pid == int(outcome.stdout)


def test_stdout_and_stderr_are_apart(agent: Peer) -> None:
    outcome = agent.run_sh("echo out; echo err >&2")
    assert (outcome.stdout, outcome.stderr) == (b"out\n", b"err\n")


@pytest.mark.parametrize("code", [1, 3, 127, 255])
def test_exit_code(agent: Peer, code: int) -> None:
    assert agent.run_sh(f"exit {code}").exited.code == code


def test_exit_by_signal(agent: Peer) -> None:
    exited = agent.run_sh("kill -9 $$").exited
    assert (exited.code, exited.signal) == (-1, 9)


def test_usage_counts_cpu_and_memory(agent: Peer) -> None:
    usage = agent.run_sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done").exited.usage
    assert usage is not None
    assert usage["cpu_us"] > 1000
    assert usage["max_rss_bytes"] > 100_000


def test_stdin_reaches_the_program_and_ends(agent: Peer) -> None:
    assert agent.run("cat", stdin=b"one\ntwo\n").stdout == b"one\ntwo\n"


def test_stdin_in_many_pieces(agent: Peer) -> None:
    id = agent.start("cat")
    for number in range(100):
        agent.send(id, ExecStdin(data=b"%d\n" % number))
    agent.send(id, ExecStdin(data=b""))
    assert agent.finish(id).stdout == b"".join(b"%d\n" % number for number in range(100))


def test_input_after_the_end_is_ignored(agent: Peer) -> None:
    id = agent.start("cat")
    agent.send(id, ExecStdin(data=b"a"), ExecStdin(data=b""), ExecStdin(data=b"b"), ExecStdin(data=b""))
    assert agent.finish(id).stdout == b"a"


def test_environment_is_the_box_default_and_nothing_of_the_agent(agent: Peer) -> None:
    lines = dict(line.split(b"=", 1) for line in agent.run("env").stdout.splitlines())
    assert lines == {
        b"PATH": b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        b"HOME": b"/workspace",
        b"LANG": b"C.UTF-8",
        b"PYTHONUNBUFFERED": b"1",
    }


def test_request_environment_goes_over_the_default(agent: Peer) -> None:
    assert agent.run_sh("echo $HOME $X", env=["HOME=/h", "X=a=b"]).stdout == b"/h a=b\n"


@pytest.mark.parametrize("variable", ["NOVALUE", "=x", ""])
def test_malformed_environment_is_refused(agent: Peer, variable: str) -> None:
    assert agent.run("true", env=[variable]).failed.kind == "bad_args"


def test_working_directory(agent: Peer, tmp_path: Path) -> None:
    assert agent.run("pwd", cwd=str(tmp_path)).stdout.decode().strip() == str(tmp_path)


def test_bootstrap_sets_defaults(python: str, tmp_path: Path) -> None:
    peer = Peer(python)
    try:
        peer.boot(Bootstrap(default_cwd=str(tmp_path), default_env=[EnvVar(key="GREETING", value="hi there")]))
        assert peer.run_sh("pwd; echo $GREETING").stdout.decode().split("\n")[:2] == [str(tmp_path), "hi there"]
    finally:
        peer.sock.close()
        peer.process.wait(30)


def test_only_the_three_standard_descriptors(agent: Peer) -> None:
    assert agent.run("ls", "/proc/self/fd").stdout.split() == [b"0", b"1", b"2", b"3"]  # 3 is the directory itself


# Signals 32 and 33: whatever was started by posix_spawn, as make does, inherits them ignored, and only the raw system
# call can change that. The spawner does; an agent that is started as a program has what it was given.
OF_THE_C_LIBRARY = 0b11 << 31


def test_plain_signal_dispositions_and_mask(agent: Peer) -> None:
    status = agent.run("cat", "/proc/self/status").stdout.decode()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    for name in ("SigBlk", "SigIgn", "SigCgt"):
        assert int(fields[name], 16) & ~OF_THE_C_LIBRARY == 0, name


def test_own_session(agent: Peer) -> None:
    fields = agent.run("cat", "/proc/self/stat").stdout.split()
    pid, group, session = fields[0], fields[4], fields[5]
    assert pid == group == session


def test_an_interrupt_from_inside_does_not_end_the_agent_with_a_traceback(agent: Peer) -> None:
    os.kill(agent.process.pid, signal.SIGINT)
    assert agent.process.wait(30) == -signal.SIGINT


def test_umask(agent: Peer) -> None:
    assert agent.run_sh("umask").stdout == b"0022\n"


def test_resource_limits(agent: Peer) -> None:
    outcome = agent.run_sh(
        "ulimit -Sn; ulimit -Hn; ulimit -c",
        rlimits=[Rlimit(resource="nofile", soft=33, hard=44), Rlimit(resource="core", soft=0, hard=0)],
    )
    assert outcome.stdout.split() == [b"33", b"44", b"0"]


def test_unlimited_resource(agent: Peer) -> None:
    if resource.getrlimit(resource.RLIMIT_CPU)[1] != resource.RLIM_INFINITY:
        pytest.skip("the tests run under a cpu limit")
    outcome = agent.run_sh("ulimit -t", rlimits=[Rlimit(resource="cpu", soft=2**64 - 1, hard=2**64 - 1)])
    assert outcome.stdout == b"unlimited\n"


def test_unknown_resource_is_refused(agent: Peer) -> None:
    failed = agent.run("true", rlimits=[Rlimit(resource="luck", soft=1, hard=1)]).failed
    assert failed.kind == "bad_args"
    assert "luck" in failed.message


def test_impossible_limit_is_refused(agent: Peer) -> None:
    assert agent.run("true", rlimits=[Rlimit(resource="nofile", soft=9, hard=1)]).failed.errno_name == "EINVAL"


@pytest.mark.parametrize(
    ("command", "kind", "errno_name"),
    [
        ("/does/not/exist", "not_found", "ENOENT"),
        ("no-such-program", "not_found", "ENOENT"),
        ("/etc/passwd", "permission_denied", "EACCES"),
        ("/etc", "permission_denied", "EACCES"),
        ("/bin/" + "x" * 300, "bad_args", "ENAMETOOLONG"),
        ("tidebox:nothing", "not_found", "ENOENT"),
    ],
)
def test_what_cannot_be_started(agent: Peer, command: str, kind: str, errno_name: str) -> None:
    outcome = agent.run(command)
    assert outcome.kinds == ["ExecFailed"]
    assert (outcome.failed.kind, outcome.failed.errno_name) == (kind, errno_name)
    assert outcome.failed.stage == "Command::spawn"


def test_failure_text(agent: Peer) -> None:
    assert agent.run("/x").failed.message == 'spawn "/x": No such file or directory (os error 2)'


def test_not_executable(agent: Peer, tmp_path: Path) -> None:
    program = tmp_path / "data"
    program.write_bytes(b"\x00\x01 no program")
    program.chmod(0o755)
    assert agent.run(str(program)).failed.kind == "not_executable"


@pytest.mark.parametrize("cwd", ["/does/not/exist", "/etc/passwd"])
def test_bad_working_directory(agent: Peer, cwd: str) -> None:
    failed = agent.run("true", cwd=cwd).failed
    assert failed.kind == "bad_cwd"
    assert cwd in failed.message


def test_embedded_nul(agent: Peer) -> None:
    assert agent.run("echo", "a\0b").failed.errno_name == "EINVAL"


@pytest.mark.parametrize("user", ["nobody-knows-them", "0:no-such-group", "4294967295", "-1", "99999999999"])
def test_unknown_user(agent: Peer, user: str) -> None:
    assert agent.run("id", user=user).failed.kind == "user_setup_failed"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("user", ["nobody", "65534:65534", "nobody:root"])
def test_other_user(agent: Peer, user: str) -> None:
    ids = agent.run_sh("id -u; id -g; id -G", user=user).stdout.split()
    group = b"0" if user.endswith("root") else b"65534"
    assert ids == [b"65534", group, group]


@pytest.mark.skipif(os.getuid() == 0, reason="root may become anybody")
def test_user_that_may_not_be(agent: Peer) -> None:
    assert agent.run("id", user="0").failed.kind == "user_setup_failed"


def test_signal_goes_to_the_whole_group(agent: Peer) -> None:
    id = agent.sh("sleep 100 & sleep 100; echo never")
    agent.expect(id, ExecStarted)
    time.sleep(0.2)
    agent.send(id, ExecSignal(signal=signal.SIGTERM))
    outcome = agent.finish(id)
    assert (outcome.exited.code, outcome.exited.signal, outcome.stdout) == (-1, 15, b"")


def test_signal_before_the_program_runs(agent: Peer) -> None:
    id = agent.start("sleep", "100")
    agent.send(id, ExecSignal(signal=9))
    assert agent.finish(id).exited.signal == 9


def test_signal_can_be_handled(agent: Peer) -> None:
    id = agent.sh("trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.05; done")
    agent.expect(id, ExecStarted)
    assert agent.next(id).data == b"ready\n"
    agent.send(id, ExecSignal(signal=signal.SIGUSR1))
    outcome = agent.finish(id)
    assert (outcome.stdout, outcome.exited.code) == (b"caught\n", 5)


@pytest.mark.parametrize("number", [0, -1, 65, 2**31 - 1])
def test_senseless_signals_are_ignored(agent: Peer, number: int) -> None:
    id = agent.start("cat")
    agent.send(id, ExecSignal(signal=number), ExecStdin(data=b""))
    assert agent.finish(id).exited.code == 0


def test_messages_for_unknown_ids_are_ignored(agent: Peer) -> None:
    agent.send(77, ExecStdin(data=b"x"), ExecSignal(signal=9), ExecResize(rows=1, cols=1))
    assert agent.run("echo", "fine").stdout == b"fine\n"
    assert agent.silent(77, 0.1)


def test_two_at_once_do_not_mix(agent: Peer) -> None:
    first, second = agent.start("cat"), agent.start("cat")
    agent.send(second, ExecStdin(data=b"second"), ExecStdin(data=b""))
    agent.send(first, ExecStdin(data=b"first"), ExecStdin(data=b""))
    assert agent.finish(first).stdout == b"first"
    assert agent.finish(second).stdout == b"second"


def test_no_more_than_the_advertised_number(agent: Peer) -> None:
    assert agent.connection.ready is not None
    assert agent.connection.ready.exec_limits is not None
    limit = agent.connection.ready.exec_limits.max_executions
    ids = [agent.start("cat") for _ in range(limit)]
    assert agent.run("true").failed.kind == "resource_limit"
    for id in ids:
        agent.send(id, ExecStdin(data=b""))
    assert {agent.finish(id).exited.code for id in ids} == {0}
    assert agent.run("true").exited.code == 0


def test_exited_does_not_wait_for_a_background_process(agent: Peer) -> None:
    start = time.monotonic()
    outcome = agent.run_sh("sleep 30 & echo done")
    assert outcome.stdout == b"done\n"
    assert outcome.exited.code == 0
    assert time.monotonic() - start < 20


def test_output_of_a_background_process_within_the_grace(agent: Peer) -> None:
    outcome = agent.run_sh("(sleep 0.02; echo late) & echo early")
    assert outcome.stdout == b"early\nlate\n"


def test_a_background_flood_does_not_hold_the_exec(agent: Peer) -> None:
    id = agent.sh("yes & echo $! >&2")
    outcome = agent.finish(id)
    assert outcome.exited.code == 0
    os.kill(int(outcome.stderr), signal.SIGKILL)


def test_a_background_process_survives_its_output(agent: Peer, tmp_path: Path) -> None:
    marker = tmp_path / "alive"
    script = f"(sleep 0.3; seq 1 100000; echo yes > {marker}) & echo started"
    assert agent.run_sh(script).stdout == b"started\n"
    deadline = time.monotonic() + 30
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert marker.read_text() == "yes\n"


def test_closed_output_is_not_the_end(agent: Peer) -> None:
    id = agent.sh("exec >&- 2>&-; sleep 0.3; exit 4")
    assert agent.finish(id).exited.code == 4


def test_no_zombies(agent: Peer) -> None:
    for _ in range(20):
        agent.run_sh("true & true")
    deadline = time.monotonic() + 30
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children")
    while children.read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert children.read_text().strip() == ""


def test_nothing_is_left_open_after_many_execs(agent: Peer) -> None:
    agent.run_sh("exit 0")
    descriptors = Path(f"/proc/{agent.process.pid}/fd")
    before = len(os.listdir(descriptors))
    for number in range(30):
        agent.run("true" if number % 2 else "no-such-program")
    # A child that could not become its program is still about to exit when the host is told.
    deadline = time.monotonic() + 30
    while len(os.listdir(descriptors)) != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(os.listdir(descriptors)) == before


def test_id_in_use(agent: Peer) -> None:
    id = agent.start("cat")
    agent.expect(id, ExecStarted)
    agent.send(id, ExecStdin(data=b"x"))
    agent.start_with(id, "true")
    messages = [agent.next(id), agent.next(id)]
    assert {type(message).__name__ for message in messages} == {"ExecStdout", "Error"}


def test_non_utf8_output(agent: Peer) -> None:
    assert agent.run(sys.executable, "-c", "import os; os.write(1, bytes(range(256)))").stdout == bytes(range(256))


def test_id_is_free_again_after_the_end(agent: Peer) -> None:
    for _ in range(3):
        agent.start_with(500, "echo", "again")
        outcome = agent.finish(500)
        assert isinstance(outcome.end, ExecExited)
        assert outcome.stdout == b"again\n"


def test_exec_works_at_the_oldest_generation(python: str) -> None:
    with running(python, 1, boot=False) as peer:
        assert peer.run("echo", "old").stdout == b"old\n"
