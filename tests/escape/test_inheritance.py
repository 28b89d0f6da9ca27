"""A program starts with what it was given and with nothing of those who started it."""

from __future__ import annotations

import os

import pytest

from tests.escape.probes import Run, on_gvisor, outside, python, said

DESCRIPTORS = {
    "python": "import os; print(*sorted(int(name) for name in os.listdir('/proc/self/fd')))",
    "shell": "for fd in /proc/$$/fd/*; do printf '%s ' ${fd##*/}; done",
}


def test_python_has_its_standard_streams_and_no_other_descriptor(box_run: Run) -> None:
    # The fourth is the listing itself.
    assert said(box_run(DESCRIPTORS["python"])).split() == ["0", "1", "2", "3"]


def test_a_shell_has_no_descriptor_of_ours(box_run: Run) -> None:
    # The shell keeps the script it reads open under a number of its own, at 10 or above; the fourth is the listing.
    numbers = [int(number) for number in said(box_run(DESCRIPTORS["shell"], "shell")).split()]
    assert [number for number in numbers if number < 10] in ([0, 1, 2], [0, 1, 2, 3])


def test_node_has_no_file_of_ours(box_run: Run) -> None:
    program = """
const fs = require("fs");
for (const fd of fs.readdirSync("/proc/self/fd")) {
  let target = "";
  try { target = fs.readlinkSync("/proc/self/fd/" + fd); } catch { continue; }
  console.log(target.replace(/\\d+/g, "N"));
}
"""
    targets = set(said(box_run(program, "javascript")).split("\n"))
    plain = {
        "pipe:[N]",
        "anon_inode:[eventpoll]",
        "anon_inode:[eventfd]",
        "/dev/null",
        "/proc/N/fd",
        "anon_inode:[io_uring]",
    }
    assert targets - plain <= {"/workspace/main.js", "socket:[N]"}


def test_a_child_program_inherits_nothing_of_ours(box_run: Run) -> None:
    program = """
import subprocess
print(subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout)
"""
    assert said(box_run(program)).split() == ["0", "1", "2", "3"]


def test_no_high_descriptor_hides(box_run: Run) -> None:
    program = """
import os
found = []
for fd in range(3, 70000):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
print(found)
"""
    assert said(box_run(program)) == "[]"


@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_standard_streams_are_no_files_of_the_machine(box_run: Run, descriptor: int) -> None:
    target = said(box_run(f"import os; print(os.readlink('/proc/self/fd/{descriptor}'))"))
    assert target.startswith("pipe:[") or target == "/dev/null"


def test_there_is_no_terminal_to_write_to(box_run: Run) -> None:
    answers = {"denied ENXIO", *on_gvisor("denied EIO")}
    assert said(box_run(python("attempt(lambda: os.open('/dev/tty', os.O_RDWR))"))) in answers


def test_the_working_directory_is_the_workspace(box_run: Run) -> None:
    assert (
        said(box_run("import os; print(os.getcwd(), os.readlink('/proc/self/cwd'), os.readlink('/proc/self/root'))"))
        == "/workspace /workspace /"
    )


ENVIRONMENTS = {
    "python": "import os; print('\\n'.join(os.environ))",
    "javascript": "console.log(Object.keys(process.env).join('\\n'))",
    "shell": "env | cut -d= -f1",
}


@pytest.mark.parametrize("language", sorted(ENVIRONMENTS))
def test_the_environment_holds_only_the_documented_variables(box_run: Run, language: str) -> None:
    names = set(said(box_run(ENVIRONMENTS[language], language)).split())
    assert names <= {"PATH", "HOME", "LANG", "PYTHONUNBUFFERED", "PWD", "OLDPWD", "SHLVL", "_"}


def test_the_environment_block_of_the_process_is_no_one_elses(box_run: Run) -> None:
    program = "print(open('/proc/self/environ', 'rb').read())"
    block = said(box_run(program, env={"GIVEN": "1"}))
    assert os.environ["TIDEBOX_ESCAPE_CANARY"] not in block
    assert "SANDBOX_" not in block


SCAN = """
import re
needle = {half!r}.encode() + {rest!r}.encode()
hits = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        span, rights = line.split()[:2]
        if rights[0] != "r" or "[v" in line:
            continue
        low, high = (int(end, 16) for end in span.split("-"))
        while low < high:
            step = min(high - low, 1 << 20)
            try:
                memory.seek(low)
                block = memory.read(step)
            except (OSError, ValueError, OverflowError):
                break
            hits += block.count(needle)
            del block
            low += step
print(hits)
"""


def scan_for(secret: str) -> str:
    """A program that counts ``secret`` in its own memory, without holding it in one piece before it looks."""
    return SCAN.format(half=secret[:9], rest=secret[9:])


def test_secrets_of_the_server_are_not_in_memory(box_run: Run) -> None:
    """User code is forked from a warm interpreter, so what that one ever held could be found here."""
    # The program's own needle may be found more than once: it is built, read and searched.
    assert int(said(box_run(scan_for(os.environ["TIDEBOX_ESCAPE_CANARY"])))) <= int(
        said(box_run(scan_for("canary-" + os.urandom(12).hex())))
    )


def test_a_secret_in_memory_would_be_found(box_run: Run) -> None:
    secret = "canary-" + os.urandom(12).hex()
    held = f"held = ''.join({list(secret)!r}).encode() * 50\n"
    program = held + scan_for(secret)
    assert int(said(box_run(program))) >= 50
    assert int(outside(program) or 50) >= 50


def test_no_signal_is_blocked(box_run: Run) -> None:
    assert said(box_run("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))")) == "set()"


# Those that end a program that does not ignore them.
DEADLY = "HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM XCPU XFSZ VTALRM PROF IO SYS"


def test_a_shell_ignores_no_signal(box_run: Run) -> None:
    # A kernel need not tell which ones are ignored, and a shell passes on what it was given.
    program = f'for name in {DEADLY}; do sh -c "kill -$name \\$\\$; echo $name is ignored" 2>/dev/null; done; true'
    assert said(box_run(program, "shell")) == ""
    # Python ignores two, and a shell that it starts with them says so.
    inherited = f"import subprocess; subprocess.run(['sh', '-c', {program!r}], restore_signals=False, check=True)"
    assert said(box_run(inherited)).splitlines() == ["PIPE is ignored", "XFSZ is ignored"]


def test_the_file_mode_mask_is_the_usual_one(box_run: Run) -> None:
    assert said(box_run("import os; print(oct(os.umask(0)))")) == "0o22"


def test_programs_die_before_init_when_memory_is_short(box_run: Run) -> None:
    # Init starts with the score that the machine's session was started with; a program of the box is well above it.
    assert int(said(box_run("print(open('/proc/self/oom_score_adj').read())"))) >= 500
