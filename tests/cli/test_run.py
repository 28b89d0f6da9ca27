"""``tidebox run``: what goes in, what comes out, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.boxes import descendants
from tests.cli.command import TIDEBOX, start_tidebox, tidebox


def test_code_prints_and_exits() -> None:
    done = tidebox("run", "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_a_file_keeps_its_name_and_gets_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "my script.py").write_text("import sys; print(__file__, sys.argv[1:])")
    done = tidebox("run", tmp_path / "my script.py", "-x", "--json", "--", "a b")
    assert done.stdout == b"/workspace/my script.py ['-x', '--json', '--', 'a b']\n"


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("a.py", "print(1)", b"1\n"),
        ("a.js", "console.log(2)", b"2\n"),
        ("a.mjs", "import os from 'os'; console.log(typeof os)", b"object\n"),
        ("a.sh", "echo 3", b"3\n"),
        ("a.exs", "IO.puts(4)", b"4\n"),
        ("no-extension", "#!/usr/bin/env python3\nprint(5)", b"5\n"),
        ("array", "#!/bin/bash\na=(6 7); echo ${a[1]}", b"7\n"),
        ("options", "#!/usr/bin/env -S python3 -O\nprint(__debug__)", b"False\n"),
        ("first-line-wins.py", "#!/bin/sh\necho 8", b"8\n"),
    ],
)
def test_the_language_of_a_file_is_found(tmp_path: Path, name: str, source: str, expected: bytes) -> None:
    (tmp_path / name).write_text(source)
    done = tidebox("run", tmp_path / name)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, b"")


def test_a_language_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("console.log(process.argv.slice(2))")
    assert tidebox("run", "--language", "js", tmp_path / "program", "a").stdout == b"[ 'a' ]\n"
    assert tidebox("run", "--language", "shell", "-c", "echo $0 $1", "a").stdout == b"/workspace/main.sh a\n"


def test_a_command() -> None:
    done = tidebox("run", "--", "sh", "-c", "echo $0; exit 4", "--json")
    assert (done.returncode, done.stdout) == (4, b"--json\n")


def test_a_program_from_standard_input() -> None:
    assert tidebox("run", "-", "a", stdin=b"import sys; print(sys.argv[1:], sys.stdin.read())").stdout == b"['a'] \n"


def test_standard_input_is_handed_on(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    copy = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    assert tidebox("run", "-c", copy, stdin=data).stdout == data
    (tmp_path / "input").write_bytes(data)
    assert tidebox("run", "--stdin", tmp_path / "input", "-c", copy, stdin=b"not this").stdout == data
    assert tidebox("run", "--stdin", "/dev/null", "-c", copy, stdin=b"not this").stdout == b""


def test_input_that_never_ends_does_not_hold_the_end() -> None:
    with start_tidebox("run", "-c", "print('done')") as process:
        assert process.wait(timeout=30) == 0


def test_a_program_that_does_not_read_its_input() -> None:
    assert tidebox("run", "-c", "print('done')", stdin=bytes(1 << 20)).stdout == b"done\n"


def test_output_arrives_as_it_is_produced() -> None:
    with start_tidebox("run", "-c", "print('first'); input(); print('last')") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"first\n"
        assert process.poll() is None
        process.stdin.write(b"go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"last\n"


def test_output_is_byte_exact() -> None:
    code = "import os; os.write(1, bytes(range(256)) * 1000); os.write(2, b'\\xff\\r\\n')"
    done = tidebox("run", "-c", code)
    assert (done.stdout, done.stderr) == (bytes(range(256)) * 1000, b"\xff\r\n")


def test_variables() -> None:
    code = "import os; print(os.environ['A'], os.environ['B'], os.environ.get('C'))"
    done = tidebox("run", "--env", "A=1=2", "--env", "B", "-c", code, env={"B": "own", "C": "secret"})
    assert done.stdout == b"1=2 own None\n"


@pytest.mark.parametrize(
    ("options", "code", "exit_code", "reason"),
    [
        (["--timeout", "0.5"], "while True: pass", 124, "timeout: stopped after 0.5 s"),
        (["--memory", "64M"], "x = bytearray(b'x') * (1 << 30)", 137, "out of memory: it may use 64 MiB"),
        (["--output-limit", "1K"], "while True: print('x' * 100)", 125, "output limit: stopped after 1 KiB"),
        ([], "import os; os.kill(os.getpid(), 15)", 143, "killed by signal 15 (SIGTERM)"),
        ([], "import os; os.abort()", 134, "killed by signal 6 (SIGABRT)"),
    ],
)
def test_what_is_no_plain_exit_has_its_code_and_reason(
    options: list[str], code: str, exit_code: int, reason: str
) -> None:
    done = tidebox("run", *options, "-c", code)
    assert done.returncode == exit_code
    assert done.stderr.decode().splitlines()[-1] == f"tidebox: {reason}"


def test_the_output_limit_is_exact() -> None:
    assert tidebox("run", "--output-limit", "1000", "-c", "print('x' * 5000)").stdout == b"x" * 1000


def test_limits_reach_the_box() -> None:
    code = (
        "import os, resource\n"
        "print(os.statvfs('/workspace').f_frsize * os.statvfs('/workspace').f_blocks)\n"
        "made = 0\n"
        "try:\n"
        "    while made < 50:\n"
        "        if os.fork() == 0: import time; time.sleep(20)\n"
        "        made += 1\n"
        "except OSError: pass\n"
        "print(made)\n"
    )
    done = tidebox("run", "--workspace", "2M", "--pids", "10", "--cpus", "0.5", "-c", code)
    size, made = done.stdout.split()
    assert int(size) == 2 << 20
    assert int(made) == 9


def test_json_is_one_object_with_everything() -> None:
    code = "import os, sys; print('out'); os.write(2, b'\\xff'); sys.exit(3)"
    done = tidebox("run", "--json", "-c", code)
    assert done.returncode == 3
    assert done.stderr == b""
    result = json.loads(done.stdout)
    usage = result.pop("usage")
    assert usage["wall_seconds"] > 0
    assert usage["memory_peak"] > 0
    assert result == {
        "outcome": "exited",
        "exit_code": 3,
        "signal": None,
        "reason": None,
        "image": "host",
        "stdout": "out\n",
        "stdout_encoding": "utf-8",
        "stderr": "/w==",
        "stderr_encoding": "base64",
        "artifacts": [],
        "skipped_artifacts": 0,
    }


def test_json_of_a_timeout_and_of_an_error() -> None:
    done = tidebox("run", "--json", "--timeout", "0.3", "-c", "print('before', flush=True)\nwhile True: pass")
    result = json.loads(done.stdout)
    assert done.returncode == 124
    assert (result["outcome"], result["exit_code"], result["stdout"]) == ("timeout", None, "before\n")
    done = tidebox("run", "--json", "--language", "cobol", "-c", "")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "unknown_language"


def test_a_reader_who_leaves_ends_the_program_quietly() -> None:
    with start_tidebox("run", "-c", "while True: print('x' * 1000)") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(timeout=30) == 141
        assert process.stderr.read() == b""


def test_closed_standard_streams() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{TIDEBOX} run -c 'print(1)' <&- >&-; echo $?"], capture_output=True, timeout=50, check=True
    )
    assert (done.stdout, done.stderr) == (b"0\n", b"")


def test_nothing_is_left_behind() -> None:
    with start_tidebox("run", "-c", "print('up'); input()") as process:
        assert process.stdout is not None
        process.stdout.readline()
        family = descendants(process.pid)
        assert len(family) >= 3  # the spawner, a template, a box
        process.communicate(b"\n")
    left = [pid for pid in family if Path(f"/proc/{pid}").exists()]
    roots = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")]
    groups = [group for root in roots for pid in family for group in root.glob(f"tidebox-{pid}-*")]
    assert (left, groups) == ([], [])
