"""Where paths lead, and where they do not."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidebox.agent import paths
from tidebox.agent.path_resolution import read_link, resolve_path
from tidebox.agent.paths import PathOpener
from tidebox.wire.files import Attributes


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "f").write_text("f")
    for link, target in {
        "to-d": "d",
        "to-e": "to-d/e",
        "d/up": "..",
        "d/e/absolute": str(tmp_path / "d"),
        "to-f": "d/f",
        "nowhere": "d/missing",
        "loop": "loop",
        "slash": "d/",
        "file-slash": "d/f/",
    }.items():
        (tmp_path / link).symlink_to(target)
    return tmp_path


_PATHS = (
    "d",
    "to-d",
    "to-e/absolute/f",
    "d/up/d/up/to-f",
    "to-e/..",
    "to-e/../..",
    "d//./e/.",
    "slash/f",
    "nowhere",
    "new",
    "to-d/new",
    ".",
)


@pytest.mark.parametrize("path", _PATHS)
def test_paths_lead_where_the_kernel_goes(tree: Path, path: str) -> None:
    path = f"{tree}/{path}"
    assert paths.real_path(path.encode()).decode() == os.path.realpath(path)


@pytest.mark.parametrize("path", _PATHS)
def test_a_path_that_is_not_absolute(tree: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "d")
    assert paths.real_path(f"../{path}".encode()).decode() == os.path.realpath(f"../{path}")


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("loop", errno.ELOOP),
        ("loop/x", errno.ELOOP),
        ("missing/x", errno.ENOENT),
        ("d/f/x", errno.ENOTDIR),
        ("d/f/", errno.ENOTDIR),
        ("d/f/..", errno.ENOTDIR),
        ("file-slash", errno.ENOTDIR),
        ("to-f/", errno.ENOTDIR),
        ("", errno.ENOENT),
    ],
)
def test_paths_that_lead_nowhere(tree: Path, path: str, number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)):
        paths.real_path(f"{tree}/{path}".encode() if path else b"")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[bytes]:
    """The path in procfs of a directory that this process has open, and nobody else could find."""
    secret = tmp_path / "held"
    secret.mkdir()
    (secret / "file").write_text("secret")
    descriptor = os.open(secret, os.O_RDONLY | os.O_DIRECTORY)
    yield b"/proc/self/fd/%d" % descriptor
    os.close(descriptor)


@pytest.mark.parametrize("through", ["itself", "link to it", "link to its directory"])
def test_no_link_of_procfs_is_followed(held: bytes, tmp_path: Path, through: str) -> None:
    if through == "link to it":
        os.symlink(held, tmp_path / "link")
        held = bytes(tmp_path / "link")
    elif through == "link to its directory":
        os.symlink(os.path.dirname(held), tmp_path / "link")
        held = bytes(tmp_path / "link") + b"/" + os.path.basename(held)
    assert os.listdir(held) == [b"file"]
    opener = PathOpener(lambda: None)
    attempts: list[Callable[[], object]] = [
        lambda: paths.status_of(held, True),
        lambda: paths.status_of(held + b"/file", False),
        lambda: paths.real_path(held),
        lambda: paths.open_directory(held),
        lambda: opener.open(held + b"/file", os.O_RDONLY),
        lambda: opener.open(held + b"/new", os.O_WRONLY | os.O_CREAT),
        lambda: opener.open(held + b"/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        lambda: paths.make_directories(held + b"/new", None),
        lambda: paths.set_attributes(held + b"/file", Attributes(mode=0), follow=True),
        lambda: paths.set_attributes(held, Attributes(mode=0), follow=True),
        lambda: list(paths.remove_tree(held + b"/file")),
        lambda: list(paths.copy(opener, held + b"/file", bytes(tmp_path / "copy"))),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="Too many levels") as caught:
            attempt()
        assert caught.value.errno == errno.ELOOP
    assert os.listdir(held) == [b"file"]


def test_what_a_link_of_procfs_leads_to_is_not_told(held: bytes) -> None:
    with resolve_path(held, follow=False) as where, pytest.raises(PermissionError):
        read_link(where)


@pytest.mark.parametrize("name", ["root", "cwd", "exe", "ns/mnt", "map_files"])
def test_other_links_of_procfs(name: str) -> None:
    path = f"/proc/self/{name}".encode()
    if name == "map_files":
        path += b"/" + os.fsencode(os.listdir(path)[0])
    with pytest.raises(OSError, match="Too many levels"):
        paths.status_of(path, True)


def test_procfs_is_still_seen() -> None:
    assert paths.real_path(b"/proc/self/status") == b"/proc/%d/status" % os.getpid()
    assert paths.status_of(b"/proc/self/fd/0", False).st_mode


def test_directories_are_made_as_deep_as_wanted(tree: Path) -> None:
    paths.make_directories(f"{tree}/to-d/new/{'x/' * 100}".encode(), 0o700)
    assert len(list((tree / "d" / "new").rglob("*"))) == 100
    with pytest.raises(FileExistsError):
        paths.make_directories(f"{tree}/d/f".encode(), None)
    with pytest.raises(NotADirectoryError):
        paths.make_directories(f"{tree}/d/f/x".encode(), None)


def test_nothing_stays_open(tree: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in (*_PATHS, "loop", "d/f/x", "missing/x"):
        try:
            paths.status_of(f"{tree}/{path}".encode(), True)
        except OSError:
            continue
    assert os.listdir("/proc/self/fd") == before
