"""Every file operation and its errors."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.peer import Peer
from tidebox.wire import files as fs
from tidebox.wire.files import FsResponse
from tidebox.wire.ids import STEP


def entry(response: FsResponse) -> fs.Entry:
    """The answer to a stat."""
    assert isinstance(response.data, fs.StatData), response
    return response.data.entry


def listed(response: FsResponse) -> list[fs.Entry]:
    """The answer to a listing."""
    assert isinstance(response.data, fs.ListData), response
    return list(response.data.entries)


def path_of(response: FsResponse) -> str:
    """The answer with a path."""
    assert isinstance(response.data, fs.PathData), response
    return response.data.path


def handle_of(response: FsResponse) -> int:
    """The answer with a handle."""
    assert isinstance(response.data, fs.HandleData), response
    return response.data.handle


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that everybody may use, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        yield Path(directory)


def attributes(**values: int) -> fs.Attributes:
    """Some attributes."""
    return fs.Attributes(**values)


def test_stat_of_a_file(agent: Peer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    file.chmod(0o640)
    os.utime(file, (1000, 2000))
    found = entry(agent.fs(fs.Stat(path=str(file), follow_symlink=True)))
    assert (found.path, found.kind, found.size) == (str(file), "file", 5)
    assert found.mode == stat.S_IFREG | 0o640
    assert (found.atime, found.mtime, found.modified) == (1000, 2000, 2000)
    assert (found.uid, found.gid) == (os.getuid(), os.getgid())


def test_stat_follows_links_or_not(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    path = str(tmp_path / "link")
    assert entry(agent.fs(fs.Stat(path=path, follow_symlink=True))).kind == "dir"
    assert entry(agent.fs(fs.Stat(path=path, follow_symlink=False))).kind == "symlink"


def test_stat_of_what_is_neither(agent: Peer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert entry(agent.fs(fs.Stat(path=str(tmp_path / "fifo"), follow_symlink=True))).kind == "other"


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (fs.Stat(path="/no/such", follow_symlink=True), "stat: No such file or directory (os error 2)"),
        (fs.List(path="/no/such"), "list: No such file or directory (os error 2)"),
        (fs.List(path="/etc/passwd"), "list: Not a directory (os error 20)"),
        (fs.ReadLink(path="/etc/passwd"), "readlink: Invalid argument (os error 22)"),
        (fs.Remove(path="/no/such"), "remove: No such file or directory (os error 2)"),
        (fs.Copy(src="/no/such", dst="/tmp/x"), "copy: No such file or directory (os error 2)"),
        (fs.Rename(src="/no/such", dst="/tmp/x"), "rename: No such file or directory (os error 2)"),
        (fs.RealPath(path="/no/such/thing"), "realpath: No such file or directory (os error 2)"),
        (fs.Mkdir(path="/etc/passwd/x"), "mkdir: Not a directory (os error 20)"),
        (fs.Mkdir(path=""), "mkdir: No such file or directory (os error 2)"),
        (fs.OpenDir(path="/no/such"), "opendir: No such file or directory (os error 2)"),
        (fs.Stat(path="a\0b", follow_symlink=True), "stat: Invalid argument (os error 22)"),
        (fs.Stat(path="/" + "x" * 5000, follow_symlink=True), "stat: File name too long (os error 36)"),
        (fs.SetStat(path="/no/such", follow_symlink=True, attrs=attributes(mode=0o644)), "setstat: No such"),
        (fs.CloseHandle(handle=99), "unknown handle: 99"),
        (fs.FStat(handle=99), "unknown handle: 99"),
        (fs.Read(handle=99, offset=0), "unknown handle: 99"),
        (fs.Write(handle=99, offset=0), "unknown handle: 99"),
        (fs.ReadDir(handle=99), "unknown handle: 99"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_errors(agent: Peer, operation: fs.Operation, text: str) -> None:
    response = agent.fs(operation)
    assert not response.ok
    assert response.error is not None
    assert response.error.startswith(text)
    assert agent.run("echo", "alive").stdout == b"alive\n"


def test_symlink_loops(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    loop = str(tmp_path / "a")
    for operation in (
        fs.Stat(path=loop, follow_symlink=True),
        fs.RealPath(path=loop),
        fs.List(path=loop),
        fs.OpenFile(path=loop, options=fs.OpenOptions(read=True)),
    ):
        assert "Too many levels of symbolic links" in (agent.fs(operation).error or "")


def test_real_path(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert path_of(agent.fs(fs.RealPath(path=f"{tmp_path}/./link/../link"))) == str(tmp_path / "real")
    assert path_of(agent.fs(fs.RealPath(path=f"{tmp_path}/link/new"))) == str(tmp_path / "real" / "new")


def test_list(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    found = {item.path: item.kind for item in listed(agent.fs(fs.List(path=str(tmp_path))))}
    assert found == {
        str(tmp_path / "file"): "file",
        str(tmp_path / "dir"): "dir",
        str(tmp_path / "link"): "symlink",
    }


def test_names_that_are_no_text(agent: Peer, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")).write_bytes(b"")
    names = [item.path for item in listed(agent.fs(fs.List(path=str(tmp_path))))]
    assert len(names) == 1
    assert names[0].startswith(f"{tmp_path}/\ufffd")


def test_a_directory_too_large_for_one_answer(agent: Peer, tmp_path: Path) -> None:
    for number in range(9000):
        (tmp_path / f"{number:0200d}").touch()
    assert "too large for one answer" in (agent.fs(fs.List(path=str(tmp_path))).error or "").lower()
    handle = handle_of(agent.fs(fs.OpenDir(path=str(tmp_path))))
    seen: set[str] = set()
    while part := listed(agent.fs(fs.ReadDir(handle=handle, limit=100_000))):
        seen.update(item.path for item in part)
    assert len(seen) == 9000


def test_read_directory_in_parts(agent: Peer, tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number)).touch()
    handle = handle_of(agent.fs(fs.OpenDir(path=str(tmp_path))))
    sizes = []
    while part := listed(agent.fs(fs.ReadDir(handle=handle))):
        sizes.append(len(part))
    assert sizes == [128, 128, 44]
    assert agent.fs(fs.CloseHandle(handle=handle)).ok


def test_links(agent: Peer, tmp_path: Path) -> None:
    link = str(tmp_path / "link")
    assert agent.fs(fs.Symlink(target="some/where", link_path=link)).ok
    assert path_of(agent.fs(fs.ReadLink(path=link))) == "some/where"
    assert agent.fs(fs.Symlink(target="x", link_path=link)).error == "symlink: File exists (os error 17)"


def test_make_directories(agent: Peer, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    assert agent.fs(fs.Mkdir(path=str(path), mode=0o700)).ok
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert agent.fs(fs.Mkdir(path=str(path))).ok
    (tmp_path / "file").touch()
    assert agent.fs(fs.Mkdir(path=str(tmp_path / "file"))).error == "mkdir: File exists (os error 17)"


def test_remove(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert agent.fs(fs.Remove(path=str(tmp_path / "file"))).ok
    assert not (tmp_path / "file").exists()


def test_remove_of_the_wrong_kind(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    assert agent.fs(fs.Remove(path=str(tmp_path / "dir"))).error == "remove: Is a directory (os error 21)"
    for recursive in (False, True):
        response = agent.fs(fs.RemoveDir(path=str(tmp_path / "file"), recursive=recursive))
        assert response.error == "remove_dir: Not a directory (os error 20)"


def test_remove_directory(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "x").touch()
    response = agent.fs(fs.RemoveDir(path=str(tmp_path / "dir"), recursive=False))
    assert response.error == "remove_dir: Directory not empty (os error 39)"
    (tmp_path / "dir" / "x").unlink()
    assert agent.fs(fs.RemoveDir(path=str(tmp_path / "dir"), recursive=False)).ok


def test_remove_tree_follows_no_link(agent: Peer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    tree = tmp_path / "tree"
    for name in ("a/b/c", "a/d", "e"):
        (tree / name).mkdir(parents=True)
        for number in range(100):
            (tree / name / str(number)).touch()
    (tree / "a" / "link").symlink_to(outside)
    os.mkfifo(tree / "fifo")
    assert agent.fs(fs.RemoveDir(path=str(tree), recursive=True)).ok
    assert not tree.exists()
    assert (outside / "keep").exists()


def test_remove_tree_is_no_link(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    assert not agent.fs(fs.RemoveDir(path=str(tmp_path / "link"), recursive=True)).ok
    assert (tmp_path / "dir").exists()


def test_remove_a_tree_deeper_than_any_path(agent: Peer, tmp_path: Path) -> None:
    top = tmp_path / "deep"
    top.mkdir()
    current = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("directory", dir_fd=current)
        below = os.open("directory", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)
    assert agent.fs(fs.RemoveDir(path=str(top), recursive=True)).ok
    assert not top.exists()


def test_copy(agent: Peer, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    data = os.urandom(9 << 20)
    source.write_bytes(data)
    source.chmod(0o751)
    target.write_bytes(b"old" * 10_000_000)
    assert agent.fs(fs.Copy(src=str(source), dst=str(target))).ok
    assert target.read_bytes() == data
    assert stat.S_IMODE(target.stat().st_mode) == 0o751


def test_copy_between_file_systems(agent: Peer, tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("one file system only")
    source = shared / f"tidebox-test-{os.getpid()}"
    source.write_bytes(b"across" * 100_000)
    try:
        assert agent.fs(fs.Copy(src=str(source), dst=str(tmp_path / "copy"))).ok
        assert (tmp_path / "copy").read_bytes() == b"across" * 100_000
    finally:
        source.unlink()


def test_copy_onto_itself_loses_nothing(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    os.link(tmp_path / "file", tmp_path / "same")
    assert not agent.fs(fs.Copy(src=str(tmp_path / "file"), dst=str(tmp_path / "same"))).ok
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_rename(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert agent.fs(fs.Rename(src=str(tmp_path / "a"), dst=str(tmp_path / "b"))).ok
    assert (tmp_path / "b").read_bytes() == b"x"


def test_set_attributes(agent: Peer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"123456")
    change = attributes(mode=0o600, size=3, atime=11, mtime=22)
    assert agent.fs(fs.SetStat(path=str(file), follow_symlink=False, attrs=change)).ok
    status = file.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_size, status.st_atime, status.st_mtime) == (0o600, 3, 11, 22)


def test_one_time_leaves_the_other(agent: Peer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    os.utime(file, (100, 200))
    assert agent.fs(fs.SetStat(path=str(file), follow_symlink=True, attrs=attributes(mtime=300))).ok
    assert (file.stat().st_atime, file.stat().st_mtime) == (100, 300)


def test_attributes_of_a_link_itself(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    link = str(tmp_path / "link")
    assert agent.fs(fs.SetStat(path=link, follow_symlink=False, attrs=attributes(mtime=5))).ok
    assert os.lstat(link).st_mtime == 5
    assert not agent.fs(fs.SetStat(path=link, follow_symlink=False, attrs=attributes(mode=0o600))).ok


def test_impossible_attributes(agent: Peer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for change in (attributes(size=2**64 - 1), attributes(mtime=2**63 - 1)):
        agent.fs(fs.SetStat(path=str(file), follow_symlink=True, attrs=change))
    assert agent.run("echo", "alive").stdout == b"alive\n"


def test_attributes_by_handle(agent: Peer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"123456")
    handle = agent.open(file, write=True)
    assert agent.fs(fs.FSetStat(handle=handle, attrs=attributes(mode=0o604, size=2, mtime=9))).ok
    found = entry(agent.fs(fs.FStat(handle=handle)))
    assert (found.path, found.size, stat.S_IMODE(found.mode), found.mtime) == (str(file), 2, 0o604, 9)


def test_open_options(agent: Peer, tmp_path: Path) -> None:
    path = str(tmp_path / "file")

    def error(**options: Any) -> str | None:
        return agent.fs(fs.OpenFile(path=path, options=fs.OpenOptions(**options))).error

    assert error(read=True) == "open: No such file or directory (os error 2)"
    assert error(write=True, create=True) is None
    assert error(write=True, create_new=True) == "open: File exists (os error 17)"
    assert error() == "open: Invalid argument (os error 22)"
    assert error(read=True, truncate=True) == "open: Invalid argument (os error 22)"
    assert error(append=True, truncate=True) == "open: Invalid argument (os error 22)"


def test_open_truncates(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    agent.open(tmp_path / "file", write=True, truncate=True)
    assert (tmp_path / "file").read_bytes() == b""


def test_new_files_have_the_asked_mode(agent: Peer, tmp_path: Path) -> None:
    agent.open(tmp_path / "file", write=True, create=True, mode=0o750)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o750


@pytest.mark.parametrize("how", [{"read": True}, {"write": True}, {"read": True, "write": True}])
def test_a_fifo_is_refused_at_once(agent: Peer, tmp_path: Path, how: dict[str, Any]) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert not agent.fs(fs.OpenFile(path=str(tmp_path / "fifo"), options=fs.OpenOptions(**how))).ok


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "/dev/ptmx", "/proc/self/mem", "/proc/self/environ", "/etc"])
def test_only_regular_files_are_opened(agent: Peer, path: str) -> None:
    assert not agent.fs(fs.OpenFile(path=path, options=fs.OpenOptions(read=True))).ok


def test_a_link_to_the_agent_itself_leads_nowhere(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/self/maps")
    assert not agent.fs(fs.OpenFile(path=str(tmp_path / "link"), options=fs.OpenOptions(read=True))).ok
    assert not agent.fs(fs.Copy(src=str(tmp_path / "link"), dst=str(tmp_path / "copy"))).ok


def test_a_socket_is_refused(agent: Peer, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        path = str(tmp_path / "socket")
        assert not agent.fs(fs.OpenFile(path=path, options=fs.OpenOptions(read=True))).ok


def test_handles_are_numbered_from_one(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [agent.open(tmp_path / "file", read=True) for _ in range(3)] == [1, 2, 3]


def test_a_closed_handle_is_gone(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    handle = agent.open(tmp_path / "file", read=True)
    assert agent.fs(fs.CloseHandle(handle=handle)).ok
    assert agent.fs(fs.CloseHandle(handle=handle)).error == f"unknown handle: {handle}"


def test_handles_belong_to_their_client(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    handle = agent.open(tmp_path / "file", read=True)
    response = agent.fs(fs.FStat(handle=handle), id=STEP + 5)
    assert response.error == f"handle {handle} is owned by a different relay client"


def test_handles_of_one_client_are_limited(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    operation = fs.OpenFile(path=str(tmp_path / "file"), options=fs.OpenOptions(read=True))
    opened = 0
    while (response := agent.fs(operation)).ok:
        opened += 1
    # By our own limit, or by the kernel's where that is lower.
    assert opened <= 1024
    assert "too many open" in (response.error or "").lower()
    assert agent.fs(fs.CloseHandle(handle=1)).ok
    assert agent.fs(operation).ok


def test_out_of_descriptors_fails_alone(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    operation = fs.OpenFile(path=str(tmp_path / "file"), options=fs.OpenOptions(read=True))
    for client in range(100):
        if not all(agent.fs(operation, id=client * STEP + number).ok for number in range(1, 1025)):
            break
    outcome = agent.run("true")
    assert outcome.kinds[-1] in ("ExecFailed", "ExecExited")
    assert agent.fs(fs.CloseHandle(handle=1), id=1).ok or client > 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_files_of_another_user(agent: Peer, open_path: Path) -> None:
    path = str(open_path / "file")
    response = agent.fs(fs.OpenFile(path=path, options=fs.OpenOptions(write=True, create=True, user="nobody")))
    assert response.ok, response.error
    assert os.stat(path).st_uid == 65534
    assert agent.fs(fs.Mkdir(path=str(open_path / "dir"), user="65534:65534")).ok
    assert os.stat(open_path / "dir").st_gid == 65534
    response = agent.fs(fs.OpenFile(path="/etc/shadow", options=fs.OpenOptions(read=True, user="nobody")))
    assert response.error == "open: Permission denied (os error 13)"
    assert agent.fs(fs.Mkdir(path=str(open_path / "ours"))).ok
    assert os.stat(open_path / "ours").st_uid == 0
