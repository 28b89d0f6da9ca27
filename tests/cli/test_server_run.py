"""``tidebox run --server``: what it prints and how it ends, byte by byte as without a server."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer
from tests.cli.command import TIDEBOX, error_line
from tests.cli.remote import Remote
from tests.cli.test_interrupt import POLITE, STUBBORN
from tests.sdk.proxy import cutting

StartServer = Callable[..., RunningServer]


@pytest.fixture
def remote(running_server: RunningServer, tmp_path: Path) -> Remote:
    return Remote.of(running_server, tmp_path)


SAME = {
    "code": ["-c", "import sys; print('out'); print('err', file=sys.stderr)"],
    "exit code": ["-c", "import sys; sys.exit(7)"],
    "arguments": ["-c", "import sys; print(sys.argv)", "a b", "--server", "-"],
    "bytes": ["-c", "import os; os.write(1, bytes(range(256)) * 300)"],
    "shell": ["--language", "shell", "-c", "echo $0 $TOKEN; pwd", "x"],
    "environment": ["--env", "TOKEN=s3", "-c", "import os; print(os.environ['TOKEN'])"],
    "traceback": ["-c", "1 / 0"],
    "command": ["--", "sh", "-c", "echo hi; exit 3"],
    "no such command": ["--", "no-such-program"],
    "a command that says it is none": ["--", "sh", "-c", "echo 'sh: No such file or directory' >&2; exit 127"],
    "signal": ["-c", "import os; os.kill(os.getpid(), 11)"],
    "timeout": ["--timeout", "0.5", "-c", "while True: pass"],
    "memory": ["--memory", "64M", "-c", "x = 'a' * 10**9"],
    "output limit": ["--output-limit", "1K", "-c", "print('x' * 5000)"],
    "workspace": ["--workspace", "1M", "-c", "open('a', 'wb').write(bytes(2 << 20))"],
    "no such image": ["--image", "no-such", "-c", "1"],
    "no such language": ["--language", "no-such", "-c", "1"],
    "a limit that is none": ["--memory", "1", "-c", "1"],
}


@pytest.mark.parametrize("words", SAME.values(), ids=SAME.keys())
def test_the_same_as_here(remote: Remote, words: list[str]) -> None:
    here, there = remote("run", *words), remote("run", "--server", *words)
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)


@pytest.mark.parametrize("words", [["-c", "print(input()[::-1])"], ["-"]], ids=["input", "program"])
def test_what_is_piped_in(remote: Remote, words: list[str]) -> None:
    given = b"print('tide')\n"
    here, there = remote("run", *words, stdin=given), remote("run", "--server", *words, stdin=given)
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
    assert there.stdout


def test_a_pipe_is_byte_exact(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(os.urandom(5_000_000))
    script = f"cat x | {TIDEBOX} run --server --output-limit 16M -- cat > y"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, env=remote.env, timeout=50, check=True)
    assert (tmp_path / "y").read_bytes() == (tmp_path / "x").read_bytes()


def test_a_program_from_a_pipe_prints_every_byte(remote: Remote) -> None:
    program = b"import sys\nsys.stdout.buffer.write(bytes(range(256)) * 4096)\n"
    done = remote("run", "--server", "-", stdin=program)
    assert (done.returncode, done.stdout) == (0, bytes(range(256)) * 4096)


def test_files_in_and_artifacts_out(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "data.csv").write_text("1,2")
    program = "print(open('in/data.csv').read()); open('out.txt', 'w').write('made'); open('.hidden', 'w')"
    words = ["--file", "in", "--artifact", "**", "--artifacts-dir", "saved", "--json", "-c", program]
    told = json.loads(remote("run", "--server", *words).stdout)
    assert (told["stdout"], told["exit_code"], told["usage"]["pids_peak"] is None) == ("1,2\n", 0, False)
    assert told["artifacts"] == [{"path": "out.txt", "size": 4, "refused": None}]
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["out.txt"]
    again = remote("run", "--server", *words)
    assert again.returncode == 2
    assert b"--force" in again.stderr


def test_files_that_do_not_fit_into_a_request(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(3_000_000))
    before = json.loads(remote.text("sessions", "list", "--json"))["items"]
    done = remote("run", "--server", "--file", "big", "-c", "import os; print(os.path.getsize('big'))")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"3000000\n", b"")
    assert json.loads(remote.text("sessions", "list", "--json"))["items"] == before


def test_a_file_with_its_own_interpreter(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho $1 from $0\n")
    here, there = remote("run", "tool", "hi"), remote("run", "--server", "tool", "hi")
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout) == (0, b"hi from /workspace/tool\n")


def test_a_session_is_shared(remote: Remote) -> None:
    session = remote.text("sessions", "create")
    remote.text("run", "--server", "--session", session, "-c", "open('kept', 'w').write('yes')")
    assert remote.text("run", "--server", "--session", session, "-c", "print(open('kept').read())") == "yes"
    remote.text("sessions", "rm", session)


def test_a_run_that_is_left_alone(remote: Remote) -> None:
    run = remote.text("run", "--server", "--detach", "-c", "import time; time.sleep(0.5); print('late')")
    assert remote.text("runs", "logs", "-f", run) == "late"
    assert remote.text("runs", "logs", "-f", run) == "late"
    assert json.loads(remote.text("run", "--server", "--detach", "--json", "--", "true")).keys() == {"run_id"}


@pytest.mark.parametrize("words", [["--detach", "-c", "1"], ["--session", "x", "-c", "1"]])
def test_what_only_a_server_can(remote: Remote, words: list[str]) -> None:
    assert "--server" in error_line(remote("run", *words))


def test_a_workspace_and_files_that_do_not_go_together(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(2_000_000))
    assert "workspace" in error_line(remote("run", "--server", "--workspace", "4M", "--file", "big", "-c", "1"))


def test_what_a_server_cuts_is_said(remote: Remote) -> None:
    done = remote("run", "--server", "--pids", "5000", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert done.stderr == b"tidebox: the server allows --pids 256 at most\n"


def test_input_that_breaks_a_rule(start_server: StartServer, tmp_path: Path) -> None:
    remote = Remote.of(start_server(interactive_max_bytes="10"), tmp_path)
    assert "stdin_max_bytes" in error_line(remote("run", "--server", "--", "cat", stdin=b"x" * 100)).replace("\n", "")


def test_output_beyond_what_the_server_keeps(start_server: StartServer, tmp_path: Path) -> None:
    remote = Remote.of(start_server(max_log_bytes="1000"), tmp_path)
    done = remote("run", "--server", "-c", "import time\nwhile True: print('x' * 99, flush=True)")
    assert (done.returncode, done.stdout) == (125, (b"x" * 99 + b"\n") * 10)
    assert done.stderr == b"tidebox: output limit: stopped after 1000 bytes\n"


# Interrupts


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_cancels_the_run(remote: Remote, number: int, exit_code: int) -> None:
    with remote.start("run", "--server", "-c", POLITE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (exit_code, b"term\n", b"tidebox: cancelled\n")


def test_a_second_interrupt_leaves_it(remote: Remote) -> None:
    with remote.start("run", "--server", "--timeout", "60", "-c", STUBBORN) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        left = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - left < 4
    [line] = err.decode().splitlines()
    run = next(word for word in line.split() if word.startswith("run-")).rstrip(",")
    assert json.loads(remote.text("runs", "show", "--json", run))["run_id"] == run
    assert remote("runs", "logs", "-f", run).stdout == b"up\n"
    assert json.loads(remote.text("runs", "show", "--json", run))["reason_code"] == "canceled_by_user"


def test_a_reader_who_leaves(remote: Remote) -> None:
    with remote.start("run", "--server", "-c", "while True: print('x' * 1000)") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 141


# Lost connections


async def test_every_byte_once_through_five_cuts(start_server: StartServer, tmp_path: Path) -> None:
    size = 50_000_000
    server = start_server(max_log_bytes=str(2 * size))
    program = f"import random, sys\nsys.stdout.buffer.write(random.Random(7).randbytes({size}))"
    # The request, the first of the log, and the log again and again.
    cuts = itertools.chain([None, *(9_000_000 for _ in range(5))], itertools.repeat(None))
    async with cutting(server, cuts) as proxy:
        remote = Remote(proxy.url, server.key, tmp_path)
        words = ["run", "--server", "--output-limit", "100M", "--timeout", "60", "-c", program]
        done = await asyncio.to_thread(remote, *words)
    assert proxy.cut == 5
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == random.Random(7).randbytes(size)


async def test_input_that_arrived_is_not_lost_with_its_connection(
    running_server: RunningServer, tmp_path: Path
) -> None:
    program = "import sys\nprint(sys.stdin.read())\nfor n in range(30000): print(f'{n:09}')"
    cuts = itertools.chain([None, 100_000], itertools.repeat(None))
    async with cutting(running_server, cuts) as proxy:
        remote = Remote(proxy.url, running_server.key, tmp_path)
        done = await asyncio.to_thread(lambda: remote("run", "--server", "-c", program, stdin=b"tide"))
        assert proxy.cut == 1
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"tide\n" + b"".join(b"%09d\n" % number for number in range(30000))
