"""What a program leaves in its workspace is copied out without ever being trusted."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.escape.probes import MIB, Run
from tests.patience import patient
from tidebox.errors import TideboxError

GOOD = "open('good.txt', 'w').write('good')\n"


def test_ordinary_files_are_copied_out(box_run: Run) -> None:
    result = box_run(
        GOOD + "import os; os.makedirs('a/b'); open('a/b/c', 'wb').write(bytes(range(256)))",
        artifacts=["good.txt", "a/**/*"],
    )
    assert result.artifacts == {"good.txt": b"good", "a/b/c": bytes(range(256))}


@pytest.mark.parametrize(
    "target",
    [
        "/etc/passwd",
        "/etc/hostname",
        "../../../../../../etc/passwd",
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/self/cmdline",
        "/dev/zero",
        "/dev/random",
        "/dev/stdin",
        "/nowhere",
        "loop",
    ],
)
def test_a_link_is_not_followed(box_run: Run, target: str) -> None:
    start = time.monotonic()
    result = box_run(GOOD + f"import os; os.symlink({target!r}, 'loop')", artifacts=["*.txt", "loop"])
    assert result.artifacts == {"good.txt": b"good"}
    assert time.monotonic() - start < patient(10)


def test_a_link_to_a_planted_file_of_the_machine_is_not_followed(box_run: Run) -> None:
    with tempfile.NamedTemporaryFile(prefix="tidebox-canary-") as canary:
        canary.write(b"secret of the machine")
        canary.flush()
        os.chmod(canary.name, 0o644)
        result = box_run(
            f"import os; os.symlink({canary.name!r}, 'out'); os.symlink('/', 'root')",
            artifacts=["out", "root" + canary.name, "**/*"],
        )
    assert not any(b"secret" in content for content in result.artifacts.values())
    assert set(result.artifacts) <= {"main.py"}


@pytest.mark.parametrize("pattern", ["out/passwd", "out/*", "**/passwd", "out/**/*"])
def test_a_link_in_the_middle_of_a_path_is_not_followed(box_run: Run, pattern: str) -> None:
    result = box_run(GOOD + "import os; os.symlink('/etc', 'out')", artifacts=["good.txt", pattern])
    assert result.artifacts == {"good.txt": b"good"}


SPECIAL = {
    "fifo": "import os; os.mkfifo('odd')",
    "fifo-with-a-writer": """
import os
os.mkfifo("odd")
if os.fork() == 0:
    os.setsid()
    open("odd", "w").write("x")
""",
    "socket": "import socket; socket.socket(socket.AF_UNIX).bind('odd')",
    "directory": "import os; os.mkdir('odd')",
    "unreadable-directory": "import os; os.mkdir('odd'); open('odd/in', 'w').close(); os.chmod('odd', 0)",
}


@pytest.mark.parametrize("kind", sorted(SPECIAL))
def test_what_is_no_regular_file_is_left_alone(box_run: Run, kind: str) -> None:
    start = time.monotonic()
    result = box_run(GOOD + SPECIAL[kind], artifacts=["good.txt", "odd"])
    assert result.artifacts == {"good.txt": b"good"}
    assert time.monotonic() - start < patient(10)


def test_a_file_without_permissions_harms_nothing(box_run: Run) -> None:
    result = box_run(
        GOOD + "import os; open('locked', 'w').write('x'); os.chmod('locked', 0)", artifacts=["good.txt", "locked"]
    )
    assert result.artifacts.pop("locked", b"x") == b"x"
    assert result.artifacts == {"good.txt": b"good"}


def test_swapping_a_directory_for_a_link_wins_nothing(box_run: Run) -> None:
    """The race that took files from the machine in other products: a name is checked, then swapped, then opened."""
    program = """
import os, time
os.mkdir("dir"); open("dir/passwd", "w").write("mine")
os.symlink("/etc", "link")
if os.fork() == 0:
    os.setsid()
    for fd in (0, 1, 2):
        os.close(fd)
    while True:
        os.rename("dir", "spare"); os.rename("link", "dir"); os.rename("dir", "link"); os.rename("spare", "dir")
time.sleep(0.2)
"""
    for _ in range(5):
        result = box_run(program, artifacts=["dir/*", "**/passwd"])
        assert set(result.artifacts.values()) <= {b"mine"}


def test_swapping_a_file_for_a_link_wins_nothing(box_run: Run) -> None:
    program = """
import os, time
open("out", "w").write("mine")
os.symlink("/etc/passwd", "link")
if os.fork() == 0:
    os.setsid()
    for fd in (0, 1, 2):
        os.close(fd)
    while True:
        os.rename("out", "spare"); os.rename("link", "out"); os.rename("out", "link"); os.rename("spare", "out")
time.sleep(0.2)
"""
    for _ in range(5):
        result = box_run(program, artifacts=["out", "link", "spare"])
        assert set(result.artifacts.values()) <= {b"mine"}


def test_files_stand_still_when_they_are_copied(box_run: Run) -> None:
    """Every process is dead before the first byte is read."""
    program = """
import os, time
if os.fork() == 0:
    os.setsid()
    n = 0
    while True:
        n += 1
        with open("tmp", "w") as file:
            file.write(str(n) * 1000)
        os.rename("tmp", "out")
        with open("out2", "w") as file:
            file.write(str(n))
time.sleep(0.3)
"""
    start = time.monotonic()
    result = box_run(program, artifacts=["out", "out2"])
    assert time.monotonic() - start < patient(10)
    content = result.artifacts["out"]
    assert content == content[: len(content) // 1000] * 1000


def test_hostile_names_stay_names(box_run: Run) -> None:
    program = """
import os
os.makedirs(b"out/...")
names = [b"-rf", b"a\\nb", b"\\xff\\xfe", b"\\x1b[31m", b"..hidden", b" ", b"*", b"x" * 255, b".../deep", b"C:\\\\x"]
for name in [*names, "\\u202egpj.exe".encode()]:
    with open(b"out/" + name, "wb") as file:
        file.write(b"x")
"""
    result = box_run(program, artifacts=["out/**/*"])
    assert len(result.artifacts) >= 9
    for name in result.artifacts:
        assert name.startswith("out/")
        assert ".." not in name.split("/")
        assert "\0" not in name


@pytest.mark.parametrize(
    "pattern",
    ["/etc/passwd", "../etc/passwd", "../../../../etc/passwd", "a/../../etc/passwd", "/", "..", "/proc/self/environ"],
)
def test_a_pattern_does_not_lead_out_of_the_workspace(box_run: Run, pattern: str) -> None:
    try:
        result = box_run(GOOD, artifacts=[pattern])
    except TideboxError:
        return
    assert result.artifacts == {}


def test_a_sparse_giant_does_not_fill_the_server(box_run: Run) -> None:
    program = (
        GOOD + "f = open('giant', 'wb')\ntry:\n    f.truncate(1 << 40)\nexcept OSError:\n    f.truncate(200 << 20)\n"
    )
    result = box_run(program, artifacts=["good.txt", "giant"])
    assert result.artifacts["good.txt"] == b"good"
    assert len(result.artifacts.get("giant", b"")) <= 64 * MIB


def test_thousands_of_files_do_not_fill_the_server(box_run: Run) -> None:
    program = "import os\nos.mkdir('many')\nfor n in range(6000):\n    open(f'many/{n}', 'w').write('x')\n"
    start = time.monotonic()
    result = box_run(program, artifacts=["many/*"])
    assert len(result.artifacts) <= 1000
    assert time.monotonic() - start < patient(20)


def test_thousands_of_directories_do_not_take_the_servers_descriptors(box_run: Run) -> None:
    program = GOOD + "import os\nfor n in range(3000):\n    os.mkdir(f'd{n}')\n"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    try:
        result = box_run(program, artifacts=["good.txt", "**/x"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert result.artifacts == {"good.txt": b"good"}


def test_a_deep_tree_does_not_exhaust_the_server(box_run: Run) -> None:
    program = (
        GOOD
        + "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nopen('bottom', 'w').write('x')\n"
    )
    result = box_run(program, artifacts=["good.txt", "**/bottom"])
    assert result.artifacts["good.txt"] == b"good"


def test_a_hard_link_counts_as_what_it_is(box_run: Run) -> None:
    result = box_run(GOOD + "import os; [os.link('good.txt', f'copy{n}') for n in range(50)]", artifacts=["copy*"])
    assert set(result.artifacts.values()) == {b"good"}


@pytest.mark.parametrize(
    "pattern",
    ["*" * 200 + "x", "*?" * 100 + "x", "**/" * 40 + "x", "[" + "a" * 500, "[z-a]", "[\\", "?" * 300],
    ids=["stars", "stars-and-marks", "deep", "open", "backwards", "escape", "marks"],
)
def test_a_costly_pattern_costs_little(tmp_path: Path, pattern: str) -> None:
    # In a process of its own: a matcher that runs away holds the whole interpreter, this test included.
    program = f"""
import tidebox
from tidebox.errors import TideboxError
code = "import os; os.makedirs('/workspace/' + 'd/' * 15); open('a' * 200, 'w').close()"
try:
    print(tidebox.run(code, artifacts=[{pattern!r}]).artifacts)
except TideboxError:
    print({{}})
"""
    environment = {**os.environ, "SANDBOX_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patient(20),
        check=False,
    )
    assert (done.stdout, done.returncode) == ("{}\n", 0), done.stderr
