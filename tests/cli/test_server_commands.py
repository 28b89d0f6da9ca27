"""What the commands for servers show and do."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer
from tests.cli.command import TIDEBOX, error_line
from tests.cli.remote import Remote
from tests.cli.screen import Screen


@pytest.fixture
def remote(running_server: RunningServer, tmp_path: Path) -> Remote:
    return Remote.of(running_server, tmp_path)


# Which server


def test_login_and_logout(running_server: RunningServer, tmp_path: Path) -> None:
    remote = Remote("", None, tmp_path)
    url, key = running_server.url, running_server.key
    assert "tidebox login" in error_line(remote("login", url, stdin=b"wrong\n"))
    assert remote.text("profiles").splitlines() == ["PROFILE  SERVER  CURRENT"]
    done = remote("login", url, "--profile", "work", stdin=key.encode() + b"\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert url.encode() in done.stdout
    assert key.encode() not in done.stdout
    file = tmp_path / ".config" / "tidebox" / "profiles.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "items" in json.loads(remote.text("runs", "list", "--json"))
    assert "items" in json.loads(remote.text("runs", "list", "--json", "--profile", "work"))
    assert remote.text("run", "--profile", "work", "-c", "print(1)") == "1"
    assert "no profile 'other'; there are work" in error_line(remote("runs", "list", "--profile", "other"))
    file.chmod(0o640)
    assert error_line(remote("runs", "list")).endswith(f"type: chmod 600 {file}")
    file.chmod(0o600)
    assert remote.text("logout") == "forgot profile work"
    assert "work" not in file.read_text()
    assert "no login" in error_line(remote("logout"))


def test_the_key_of_a_server_on_this_machine_is_found(running_server: RunningServer, tmp_path: Path) -> None:
    remote = Remote(running_server.url, None, tmp_path)
    remote.env["SANDBOX_DATA_DIR"] = str(running_server.data_dir)
    assert "items" in json.loads(remote.text("runs", "list", "--json"))
    assert running_server.url in remote.text("login")
    assert running_server.key not in (tmp_path / ".config" / "tidebox" / "profiles.json").read_text()


# Runs and sessions


def test_runs(remote: Remote, tmp_path: Path) -> None:
    code = "open('a.txt', 'w').write('made'); print('out'); import sys; print('err', file=sys.stderr); sys.exit(3)"
    run = remote.text("run", "--server", "--detach", "--artifact", "*.txt", "-c", code)
    done = remote("runs", "logs", "-f", run)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out\n", b"err\n")
    assert remote("runs", "logs", "--stream", "stderr", run).stderr == b"err\n"
    entries = [json.loads(line) for line in remote.text("runs", "logs", "--json", run).splitlines()]
    assert sorted(entry["type"] for entry in entries if "data" in entry) == ["stderr", "stdout"]
    assert entries[-1]["exit_code"] == 3
    assert "exit code    3" in remote.text("runs", "show", run)
    assert json.loads(remote.text("runs", "show", run, "--json"))["exit_code"] == 3
    listed = remote.text("runs", "list", "--limit", "5").splitlines()
    assert listed[0].split()[:3] == ["RUN", "PHASE", "EXIT"]
    assert next(line for line in listed if line.startswith(run)).split()[1:3] == ["failed", "3"]
    narrow = remote("runs", "list", COLUMNS="60").stdout.decode().splitlines()
    assert max(map(len, narrow)) <= 60
    assert run in remote.text("runs", "list", "--everybody", "--phase", "failed")
    assert remote.text("runs", "cancel", run) == f"{run} failed"
    assert remote.text("runs", "artifacts", run).splitlines()[1].startswith("a.txt  4 bytes")
    remote.text("runs", "artifacts", run, "--to", "saved")
    assert (tmp_path / "saved" / "a.txt").read_text() == "made"
    assert "--force" in error_line(remote("runs", "artifacts", run, "a.txt", "--to", "saved"))
    assert "no file 'b.txt'" in error_line(remote("runs", "artifacts", run, "b.txt"))


def test_hidden_artifacts_are_copied_when_they_are_named(remote: Remote, tmp_path: Path) -> None:
    code = "import os; os.mkdir('.ssh')\nfor n in ('.bashrc', '.ssh/authorized_keys', 'a'): open(n, 'w').write('x')"
    session = remote.text("sessions", "create")
    run = remote.text(
        "run", "--server", "--detach", "--session", session, "--artifact", "**", "--artifact", ".*",
        "--artifact", ".ssh/*", "-c", code,
    )  # fmt: skip
    remote.text("runs", "logs", "-f", run)
    done = remote("runs", "artifacts", run, "--to", "all")
    assert (done.returncode, done.stderr) == (0, b"tidebox: 2 hidden files were not copied; name one to copy it\n")
    assert [path.name for path in (tmp_path / "all").iterdir() if path.name.startswith(".")] == []
    assert (tmp_path / "all" / "a").read_text() == "x"
    remote.text("runs", "artifacts", run, ".bashrc", "--to", "one")
    assert [path.name for path in (tmp_path / "one").iterdir()] == [".bashrc"]


def test_a_log_that_is_not_over(remote: Remote) -> None:
    run = remote.text("run", "--server", "--detach", "-c", "import time; print('so far', flush=True); time.sleep(60)")
    deadline = time.monotonic() + 20
    while remote.text("runs", "logs", run) != "so far":
        assert time.monotonic() < deadline
    assert remote.text("runs", "cancel", run).startswith(run)
    assert remote("runs", "logs", "-f", run).stdout == b"so far\n"


@pytest.mark.parametrize("words", ["runs logs -f", "runs list --limit"])
def test_a_reader_who_leaves_is_told_nothing(remote: Remote, words: str) -> None:
    run = remote.text("run", "--server", "--detach", "-c", "print('x' * 500_000)")
    last = run if "logs" in words else "5"
    script = f"{{ sleep 0.1; {TIDEBOX} {words} {last}; echo $? >&2; }} | true"
    done = subprocess.run(["sh", "-c", script], env=remote.env, stderr=subprocess.PIPE, timeout=50, check=True)
    assert done.stderr == b"141\n"


def test_sessions(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "a").write_bytes(os.urandom(2_000_000))
    (tmp_path / "tree" / "link").symlink_to("/etc/passwd")
    (tmp_path / "one").write_text("1")
    session = remote.text("sessions", "create", "--label", "project=tide")
    done = remote("sessions", "upload", session, "tree", "one:two/")
    assert (done.returncode, done.stdout) == (0, b"2 files, 2000001 bytes\n")
    assert done.stderr == b"tidebox: 1 links or special files were not copied\n"
    files = json.loads(remote.text("sessions", "files", session, "--json"))["items"]
    assert [file["path"] for file in files] == ["tree/below/a", "two/one"]
    remote.text("sessions", "download", session, "tree/below/a")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "tree" / "below" / "a").read_bytes()
    assert remote("sessions", "download", session, "two/one", "-").stdout == b"1"
    assert "project=tide" in remote.text("sessions", "show", session)
    assert session in remote.text("sessions", "list")
    remote.text("sessions", "rm", session)
    assert session not in remote.text("sessions", "list")


# Sandboxes


def test_sandboxes(remote: Remote, tmp_path: Path) -> None:
    box = remote.text("sandbox", "create", "my-box")
    assert (box, remote.text("sandbox", "create", "my-box")) == ("my-box", "my-box")
    [listed] = [
        each for each in json.loads(remote.text("sandbox", "list", "--json"))["items"] if each["scope"]["id"] == box
    ]
    assert listed["state"] == "active"
    assert listed["sandbox_id"] in remote.text("sandbox", "list")
    # By name and by id; options before the name, everything behind is the program's.
    done = remote("sandbox", "exec", listed["sandbox_id"], "sh", "-c", "echo out; echo err >&2; exit 5")
    assert (done.returncode, done.stdout, done.stderr) == (5, b"out\n", b"err\n")
    data = os.urandom(300_000)
    assert remote("sandbox", "exec", box, "--", "cat", stdin=data).stdout == data
    told = json.loads(remote("sandbox", "exec", "--json", "--env", "A=1", box, "sh", "-c", "echo $A; exit 4").stdout)
    assert (told["stdout"], told["exit_code"]) == ("1\n", 4)
    assert remote("sandbox", "exec", "--timeout", "0.3", box, "sleep", "9").returncode == 124
    assert remote("sandbox", "exec", box, "sh", "-c", "kill -9 $$").returncode == 137
    process = remote.text("sandbox", "exec", "-d", box, "sh", "-c", "echo later; exit 6")
    done = remote("sandbox", "attach", box, process)
    assert (done.returncode, done.stdout) == (6, b"later\n")

    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "a").write_bytes(data)
    (tmp_path / "tree" / "tool").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "tree" / "tool").chmod(0o755)
    remote.text("sandbox", "cp", "tree", f"{box}:")
    assert remote.text(
        "sandbox", "exec", box, "sh", "-c", "ls tree; tree/tool; ln -s /etc/passwd tree/link"
    ).split() == [
        "below",
        "tool",
        "tool",
    ]
    done = remote("sandbox", "cp", f"{box}:tree", "back")
    assert (done.returncode, done.stderr) == (0, b"tidebox: 1 links or special files were not copied\n")
    assert (tmp_path / "back" / "below" / "a").read_bytes() == data
    assert remote("sandbox", "cp", f"{box}:tree/tool", "-").stdout == b"#!/bin/sh\necho tool\n"
    assert remote("sandbox", "cp", "-", f"{box}:piped", stdin=data).returncode == 0
    remote.text("sandbox", "cp", f"{box}:piped", "piped")
    assert (tmp_path / "piped").read_bytes() == data
    remote.text("sandbox", "rm", box)
    assert "no sandbox 'my-box'" in error_line(remote("sandbox", "exec", box, "true"))


def test_an_interrupt_is_the_programs(remote: Remote) -> None:
    box = remote.text("sandbox", "create")
    program = "import signal\nsignal.signal(signal.SIGINT, lambda *_: exit(9))\nprint('up', flush=True)\nsignal.pause()"
    with remote.start("sandbox", "exec", box, "python3", "-c", program) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 9
    remote.text("sandbox", "rm", box)


def test_watching_files(remote: Remote) -> None:
    box = remote.text("sandbox", "create")
    with remote.start("sandbox", "watch", "--json", "-r", box) as process:
        assert process.stdout is not None
        while True:
            # Until the watch has begun nothing is told.
            remote.text("sandbox", "exec", box, "touch", f"file-{time.monotonic()}")
            os.set_blocking(process.stdout.fileno(), False)
            if line := process.stdout.readline():
                break
        assert json.loads(line)["kind"] in ("created", "modified")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    remote.text("sandbox", "rm", box)


# What there is to see


def test_top_without_a_terminal(remote: Remote) -> None:
    run = remote.text("run", "--server", "--detach", "--", "true")
    shown = remote.text("top")
    assert "pool" in shown.splitlines()[1]
    assert run in shown
    assert "USER (LAST DAY)" in shown
    told = json.loads(remote.text("top", "--json"))
    assert told["cells"] > 0
    assert "\x1b" not in shown


def test_top_on_a_terminal(remote: Remote) -> None:
    with Screen(remote.home, remote.env, rows=20, columns=100) as screen:
        screen.run([TIDEBOX, "top", "--interval", "0.3"])
        screen.wait_for("RUN")
        run = remote.text("run", "--server", "--detach", "--", "true")
        screen.wait_for(run)
        screen.press("q")
        screen.wait_for("here$")
        screen.type("stty -a | grep -c -e -icanon; clear; echo over")
        screen.wait_for("over")


def test_colors_only_on_a_terminal(remote: Remote) -> None:
    remote.text("run", "--server", "--", "true")
    assert "\x1b" not in remote.text("runs", "list")
    for variable, colored in (("X", True), ("NO_COLOR", False)):
        words = ["script", "-qec", f"{TIDEBOX} runs list", os.devnull]
        env = {**remote.env, variable: "1", "TERM": "xterm"}
        done = subprocess.run(words, env=env, capture_output=True, timeout=50, check=True, stdin=subprocess.DEVNULL)
        assert (b"\x1b[34mcompleted" in done.stdout) is colored


def test_doctor_of_a_server(running_server: RunningServer, remote: Remote) -> None:
    done = remote("doctor", "--server", running_server.url, "--json")
    found = json.loads(done.stdout)
    assert found["url"] == running_server.url
    assert done.returncode == (0 if found["healthy"] else 1)
    shown = remote("doctor", "--server").stdout.decode()
    assert "answers in" in shown
    assert "syscall_filter" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(remote: Remote, shell: str) -> None:
    assert "_TIDEBOX_COMPLETE" in remote.text("completion", shell)


def test_bash_completes(remote: Remote) -> None:
    done = remote(_TIDEBOX_COMPLETE="bash_complete", COMP_WORDS="tidebox runs l", COMP_CWORD="2")
    assert done.stdout.split() == [b"plain,list", b"plain,logs"]


def test_how_to_begin(remote: Remote) -> None:
    assert remote.text().splitlines()[2:4] == [
        "Here:",
        "  tidebox run -c 'print(\"hello from a box\")'    run code, a file or a command",
    ]


# How soon


# Prints the processor time of a command, in seconds.
_COUNTED = """
import os, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(sum(os.times()[2:4]))
"""


@pytest.mark.parametrize(("words", "times"), [(["--help"], 8), (["runs", "list"], 40)])
def test_starting_costs_little(remote: Remote, words: list[str], times: float) -> None:
    """Processor time, as a multiple of what a bare interpreter takes: other work on the machine must not count."""

    def cost(command: list[str]) -> float:
        done = subprocess.run(
            ["python3", "-c", _COUNTED, *command], env=remote.env, capture_output=True, timeout=50, check=True
        )
        return float(done.stdout)

    bare = min(cost(["python3", "-I", "-S", "-c", "pass"]) for _ in range(5))
    assert min(cost([TIDEBOX, *words]) for _ in range(3)) <= times * max(bare, 0.01)
