"""Trees of strangers' files: copied as they are, never followed, never more than allowed."""

from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.boxes import is_root
from tidebox.errors import InvalidRequest, PayloadTooLarge
from tidebox.model.box import CaptureRule
from tidebox.runtime import capture
from tidebox.untrusted_files.content_types import content_type, is_text
from tidebox.untrusted_files.ignore import MAX_PATTERNS, Ignore
from tidebox.untrusted_files.trees import (
    Tally,
    TreeLimits,
    copy_tree,
    make_beneath,
    open_beneath,
    opened,
    remove_tree,
    size_of,
    walk,
)

REFUSED = r"Not a directory|symbolic links|not a regular file|No such file"
LIMITS = TreeLimits(max_bytes=1 << 20, max_entries=1000, max_depth=8)


def copied(source: Path, target: Path, limits: TreeLimits = LIMITS, *, link_files: bool = False) -> Tally:
    target.mkdir()
    with opened(source) as reading, opened(target) as writing:
        return copy_tree(reading, writing, limits, link_files=link_files)


def shape(root: Path) -> dict[str, tuple[str, object]]:
    """Everything below ``root``: what it is, and what is in it."""
    found: dict[str, tuple[str, object]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("directory", stat.S_IMODE(path.stat().st_mode))
        else:
            found[name] = ("file", path.read_bytes())
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a" / "b").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o750)
    (root / "a" / "file").write_bytes(b"x" * 100_000)
    (root / "a" / "b" / "script").write_text("#!")
    (root / "a" / "b" / "script").chmod(0o755)
    (root / "link").symlink_to("/etc/passwd")
    (root / "a" / "loop").symlink_to("..")
    return root


def test_a_tree_is_copied_as_it_is(tree: Path, tmp_path: Path) -> None:
    tally = copied(tree, tmp_path / "copy")
    assert shape(tmp_path / "copy") == shape(tree)
    assert (tally.bytes, tally.files, tally.entries, tally.left_out) == (100_002, 4, 7, 0)
    for name in ("a/file", "a/b/script", "a", "empty"):
        assert (tmp_path / "copy" / name).stat().st_mtime_ns == (tree / name).stat().st_mtime_ns


def test_files_may_be_shared(tree: Path, tmp_path: Path) -> None:
    copied(tree, tmp_path / "copy", link_files=True)
    assert shape(tmp_path / "copy") == shape(tree)
    assert (tmp_path / "copy" / "a" / "file").stat().st_ino == (tree / "a" / "file").stat().st_ino


def test_what_is_no_file_is_left_out(tree: Path, tmp_path: Path) -> None:
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tree / "socket"))
    if is_root():
        os.mknod(tree / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    tally = copied(tree, tmp_path / "copy")
    assert tally.left_out == 2 + is_root()
    assert {"fifo", "socket", "device"}.isdisjoint(os.listdir(tmp_path / "copy"))


def test_set_id_bits_are_not_copied(tree: Path, tmp_path: Path) -> None:
    (tree / "a" / "file").chmod(0o6777)
    (tree / "empty").chmod(0o3777)
    copied(tree, tmp_path / "copy")
    assert stat.S_IMODE((tmp_path / "copy" / "a" / "file").stat().st_mode) == 0o777
    assert stat.S_IMODE((tmp_path / "copy" / "empty").stat().st_mode) == 0o777


def test_a_file_that_is_mostly_a_hole_stays_one(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with open(source / "holes", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 30)
        file.write(b"data")
    tally = copied(source, tmp_path / "copy")
    assert tally.bytes <= 1 << 20
    copy = (tmp_path / "copy" / "holes").stat()
    assert (copy.st_size, copy.st_blocks * 512 <= 1 << 20) == (1 << 40, True)


@pytest.mark.parametrize(
    "limits",
    [TreeLimits(max_bytes=100_001), TreeLimits(max_bytes=1 << 20, max_entries=6)],
    ids=["bytes", "entries"],
)
@pytest.mark.parametrize("link_files", [False, True])
def test_more_than_allowed_is_refused(tree: Path, tmp_path: Path, limits: TreeLimits, link_files: bool) -> None:
    with pytest.raises(PayloadTooLarge):
        copied(tree, tmp_path / "copy", limits, link_files=link_files)


def test_deep_trees_cost_few_descriptors(tmp_path: Path) -> None:
    with opened(tmp_path) as root:
        deep = make_beneath(root, ["d"] * 200)
        os.close(deep)
    before = len(os.listdir("/proc/self/fd"))
    with opened(tmp_path) as root:
        assert sum(1 for _ in walk(root, max_depth=20)) == 21
        assert size_of(root, LIMITS).entries == 9
    assert len(os.listdir("/proc/self/fd")) == before
    remove_tree(tmp_path / "d")
    remove_tree(tmp_path / "d")


def test_nothing_is_opened_through_a_link(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    (tree / "out").symlink_to(tmp_path / "outside")
    with opened(tree) as root:
        for parts in (["link"], ["out", "secret"], ["a", "loop", "a", "file"], ["a"], ["nothing"], ["a", "file", "x"]):
            with pytest.raises(OSError, match=REFUSED):
                open_beneath(root, parts)
        with pytest.raises(OSError, match=REFUSED):
            make_beneath(root, ["out", "new"])
    with pytest.raises(OSError, match=REFUSED), opened(tree / "out"):
        pass
    assert os.listdir(tmp_path / "outside") == ["secret"]
    os.mkfifo(tree / "fifo")
    with opened(tree) as root, pytest.raises(OSError, match=REFUSED):
        open_beneath(root, ["fifo"])


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..") and len(name.encode()) <= 255
)


@given(st.dictionaries(st.lists(NAMES, min_size=1, max_size=4).map(tuple), st.binary(max_size=50), max_size=8))
def test_any_tree_is_copied_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, files: dict[tuple[str, ...], bytes]
) -> None:
    root = tmp_path_factory.mktemp("any")
    (root / "source").mkdir()
    for parts, content in files.items():
        path = root / "source" / Path(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue
    copied(root / "source", root / "copy")
    assert shape(root / "copy") == shape(root / "source")


# What is left out.


@pytest.mark.parametrize(
    ("lines", "path", "left_out"),
    [
        (["*.log"], "a.log", True),
        (["*.log"], "d/a.log", False),
        (["**/*.log"], "d/e/a.log", True),
        (["**/*.log"], "a.log", True),
        (["node_modules"], "node_modules/a/b.js", True),
        (["node_modules/"], "node_modules/a", True),
        (["/build"], "build/x", True),
        (["build/*", "!build/keep"], "build/keep", False),
        (["build", "!build/keep"], "build/keep", False),
        (["!a", "a"], "a", True),
        (["# a", ""], "a", False),
        (["[ab].txt"], "a.txt", True),
        (["a?c"], "abc", True),
        ([], "anything", False),
    ],
)
def test_patterns_of_what_is_left_out(lines: list[str], path: str, left_out: bool) -> None:
    assert Ignore(lines).leaves_out(path) is left_out


def test_there_is_an_end_to_patterns() -> None:
    with pytest.raises(InvalidRequest, match="patterns"):
        Ignore(["a"] * (MAX_PATTERNS + 1))


@given(st.lists(st.text(max_size=30), max_size=10), st.text(min_size=1, max_size=60))
def test_any_pattern_has_an_answer(lines: list[str], path: str) -> None:
    assert Ignore(lines).leaves_out(path) in (True, False)


# What is in a file.


@given(st.text(max_size=30), st.binary(max_size=1100))
def test_any_file_has_a_type_that_is_a_header(path: str, head: bytes) -> None:
    kind = content_type(path, head)
    assert kind.isascii()
    assert kind.isprintable()
    assert "/" in kind
    if is_text(kind):
        head[:1024].decode(errors="ignore")
        assert b"\0" not in head


def test_patterns_that_take_too_long_are_given_up() -> None:
    ignore = Ignore(["*a" * 250 + "b"] * 150)
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="too long"):
        any(ignore.leaves_out("a" * 250 + str(number)) for number in range(100_000))
    assert time.monotonic() - began < 60


def test_files_whose_patterns_take_too_long_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "SECONDS", 0.2)
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for number in range(300):
        (source / ("a" * 200 + str(number))).touch()
    with opened(source) as workspace:
        captured = capture.capture_into(workspace, target, CaptureRule(("*a" * 250 + "b",) * 50))
    assert captured.skipped == {"patterns": 1}
