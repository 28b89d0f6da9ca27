"""Options that the agent is started with: builtins, confinement, cgroup leaves, another user for the programs."""

from __future__ import annotations

import os
import tempfile
import time
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.peer import Peer, running
from tidebox.wire import files as fs
from tidebox.wire.messages import ExecSignal, ExecStarted, ExecStdout

PROGRAM = str(Path(__file__).with_name("special_agent.py"))
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that everybody may use, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        yield Path(directory)


@pytest.fixture
def leaves(tmp_path: Path) -> Path:
    """Where the agent keeps its leaves."""
    path = tmp_path / "leaves"
    path.mkdir()
    return path


@pytest.fixture
def special(python: str, leaves: Path) -> Iterator[Peer]:
    """An agent with all of it."""
    with running(python, program=[PROGRAM, str(leaves)]) as peer:
        yield peer


def test_a_builtin_runs_instead_of_a_program(special: Peer) -> None:
    outcome = special.run("tidebox:report", "a", "ü", env=["X=1"], stdin=b"input")
    arguments, environment, descriptors, stdin = map(literal_eval, outcome.stdout.decode().split("\n"))
    assert arguments == ["a", "ü"]
    assert environment["X"] == "1"
    assert "SECRET" not in environment
    assert descriptors == [0, 1, 2]
    assert stdin == b"input"
    assert outcome.exited.code == 7


def test_a_builtin_that_fails_ends_alone(special: Peer) -> None:
    outcome = special.run("tidebox:fail")
    assert outcome.started is not None
    assert (outcome.exited.code, outcome.stdout, outcome.stderr) == (127, b"", b"")
    assert special.run("tidebox:report").exited.code == 7


def test_what_cannot_be_confined_does_not_start(special: Peer) -> None:
    outcome = special.run("echo", "never", cwd="/var")
    assert outcome.kinds == ["ExecFailed"]
    assert outcome.failed.kind == "permission_denied"


def test_programs_are_the_first_to_go_when_memory_is_short(special: Peer) -> None:
    assert special.run("cat", "/proc/self/oom_score_adj").stdout == b"500\n"


def removed(leaves: Path, number: str) -> None:
    """Wait for it: a leaf is removed when the word of the end is on its way."""
    deadline = time.monotonic() + 20
    while (leaves / number).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_exec_has_its_leaf(special: Peer, leaves: Path) -> None:
    outcome = special.run_sh("echo $$")
    assert outcome.started is not None
    assert outcome.started.leaf == "1"
    removed(leaves, "1")
    assert (leaves / "removed-1" / "pid").read_bytes() == outcome.stdout.strip()
    assert outcome.exited.usage is not None
    assert outcome.exited.usage["cpu_us"] == 42
    assert outcome.exited.usage["pids_peak"] == 1


def test_a_failed_start_leaves_no_leaf(special: Peer, leaves: Path) -> None:
    special.run("/does/not/exist")
    removed(leaves, "1")
    # Beside it there may be that of the child that is kept ready.
    assert {"removed-1"} <= {path.name for path in leaves.iterdir()} <= {"removed-1", "2"}


def runs(pid: int) -> bool:
    """Whether a process is there, and not only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_kill_reaches_everything_in_the_leaf(special: Peer, leaves: Path) -> None:
    id = special.sh("setsid sh -c 'echo $$; exec sleep 100' & wait", user=str(os.getuid()))
    special.expect(id, ExecStarted)
    escaped = int(special.expect(id, ExecStdout).data)
    (leaves / "1" / "escaped").write_text(str(escaped))
    special.send(id, ExecSignal(signal=9))
    assert special.finish(id).exited.signal == 9
    deadline = time.monotonic() + 30
    while runs(escaped):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@as_root
def test_programs_run_as_the_user(special: Peer) -> None:
    assert special.run_sh("id -u; id -g; id -G").stdout.split() == [b"65534"] * 3


@as_root
def test_standard_streams_can_be_opened_by_name(special: Peer) -> None:
    outcome = special.run_sh("cat /dev/stdin > /dev/stdout; echo err > /dev/stderr", stdin=b"in")
    assert (outcome.stdout, outcome.stderr) == (b"in", b"err\n")


@as_root
def test_the_user_by_its_name_in_the_box(special: Peer) -> None:
    assert special.run("id", "-u", user="boxuser").stdout == b"65534\n"


@as_root
def test_the_terminal_belongs_to_the_user(special: Peer) -> None:
    assert special.run_sh("stat -c %u $(tty); echo hello > /dev/tty", tty=True).stdout == b"65534\r\nhello\r\n"


@as_root
def test_new_files_belong_to_the_user(special: Peer, open_path: Path) -> None:
    handle = special.open(open_path / "file", write=True, create=True)
    assert special.write(handle, b"x").ok
    assert special.fs(fs.Mkdir(path=str(open_path / "a" / "b"))).ok
    assert special.fs(fs.Symlink(target="x", link_path=str(open_path / "link"))).ok
    assert special.fs(fs.Copy(src=str(open_path / "file"), dst=str(open_path / "copy"))).ok
    for name in ("file", "a", "a/b", "link", "copy"):
        status = os.lstat(open_path / name)
        assert (status.st_uid, status.st_gid) == (65534, 65534), name


@as_root
@pytest.mark.parametrize("how", ["read", "remove", "list", "copy", "remove tree", "chmod"])
def test_what_is_closed_to_the_user_stays_closed(special: Peer, open_path: Path, how: str) -> None:
    closed = open_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "file").write_bytes(b"secret")
    path = str(closed / "file")
    operations: dict[str, fs.Operation] = {
        "read": fs.OpenFile(path=path, options=fs.OpenOptions(read=True)),
        "remove": fs.Remove(path=path),
        "list": fs.List(path=str(closed)),
        "copy": fs.Copy(src=path, dst=str(open_path / "copy")),
        "remove tree": fs.RemoveDir(path=str(closed), recursive=True),
        "chmod": fs.SetStat(path=str(closed), follow_symlink=True, attrs=fs.Attributes(mode=0o777)),
    }
    error = special.fs(operations[how]).error or ""
    assert "Permission denied" in error or "not permitted" in error
    assert (closed / "file").read_bytes() == b"secret"


@as_root
def test_the_agent_is_itself_again_after_a_file_operation(special: Peer, open_path: Path) -> None:
    special.fs(fs.List(path="/root"))
    special.fs(fs.Mkdir(path=str(open_path / "x")))
    lines = Path(f"/proc/{special.process.pid}/status").read_text().splitlines()
    ids = next(line for line in lines if line.startswith("Uid:")).split()[1:]
    assert ids == ["0", "0", "0", "0"]
