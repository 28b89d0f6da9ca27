"""Hostile archives stay inside the directory they are unpacked into."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.untrusted_files import archives
from tests.unit.untrusted_files.archives import directory, file, hardlink, special, symlink
from tidebox.errors import InvalidImage
from tidebox.runtime.unpack import MAX_DEPTH, Unpacker, UnpackLimits
from tidebox.untrusted_files.tarstream import TarReader

Members = list[tuple[tarfile.TarInfo, bytes]]


class Root:
    """A root directory being filled, beside a file that must never change."""

    def __init__(self, path: Path) -> None:
        self.path = path / "root"
        self.path.mkdir()
        self.outside = path / "outside"
        self.outside.mkdir()
        (self.outside / "victim").write_text("untouched")
        self.descriptor = os.open(self.path, os.O_RDONLY)
        self.unpacker = Unpacker(self.descriptor, UnpackLimits(max_bytes=10_000, max_entries=500))

    def add(self, members: Members, *, whiteouts: bool = False) -> None:
        reader = TarReader(io.BytesIO(archives.tar(members)), 1 << 24)
        self.unpacker.unpack(reader, whiteouts=whiteouts)

    def tree(self) -> dict[str, str]:
        """Every path with its content, its target, or a slash."""
        found = {}
        for place, directories, files in os.walk(self.path):
            for name in directories + files:
                path = Path(place, name)
                relative = str(path.relative_to(self.path))
                if path.is_symlink():
                    found[relative] = "-> " + os.readlink(path)
                else:
                    found[relative] = "/" if path.is_dir() else path.read_text()
        return found


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    created = Root(tmp_path)
    open_before = len(os.listdir("/proc/self/fd"))
    yield created
    assert len(os.listdir("/proc/self/fd")) == open_before
    os.close(created.descriptor)
    assert sorted(os.listdir(tmp_path)) == ["outside", "root"]
    assert os.listdir(created.outside) == ["victim"]
    assert (created.outside / "victim").read_text() == "untouched"


def test_files_directories_and_links(root: Root) -> None:
    root.add(
        [directory("a/"), file("a/f", b"one"), symlink("s", "a/f"), hardlink("h", "a/f"), file("new/deep/f", b"two")]
    )
    assert root.tree() == {
        "a": "/",
        "a/f": "one",
        "s": "-> a/f",
        "h": "one",
        "new": "/",
        "new/deep": "/",
        "new/deep/f": "two",
    }
    assert (root.path / "h").stat().st_ino == (root.path / "a/f").stat().st_ino


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "//evil", "..", "a/.."])
def test_paths_that_lead_out_are_refused(root: Root, name: str) -> None:
    with pytest.raises(InvalidImage, match="leads out"):
        root.add([file(name, b"evil")])


@pytest.mark.parametrize("target", ["../outside", "../../../../../../{outside}", "{outside}"])
def test_a_planted_link_is_resolved_within_the_root(root: Root, target: str) -> None:
    target = target.format(outside=root.outside)
    root.add([symlink("way", target), file("way/victim", b"evil"), directory("way/", mode=0o777)])
    assert "evil" in root.tree().values()


def test_a_planted_link_is_replaced_not_written_through(root: Root) -> None:
    root.add([symlink("f", str(root.outside / "victim")), file("f", b"evil")])
    assert root.tree() == {"f": "evil"}


def test_a_directory_entry_does_not_change_what_a_link_points_to(root: Root) -> None:
    root.outside.chmod(0o700)
    root.add([symlink("d", str(root.outside)), directory("d", mode=0o777)])
    assert root.outside.stat().st_mode & 0o777 == 0o700
    assert root.tree() == {"d": "/"}


@pytest.mark.parametrize("target", ["../outside/victim", "{outside}/victim", "..", "missing", "./", "h"])
def test_hard_links_out_of_the_root_are_refused(root: Root, target: str) -> None:
    with pytest.raises(InvalidImage):
        root.add([file("h", b""), hardlink("h", target.format(outside=root.outside))])


def test_a_hard_link_through_a_planted_link_stays_inside(root: Root) -> None:
    with pytest.raises(InvalidImage, match="No such file"):
        root.add([symlink("way", str(root.outside)), hardlink("stolen", "way/victim")])


def test_a_hard_link_to_a_symbolic_link_is_that_link(root: Root) -> None:
    root.add([symlink("s", str(root.outside / "victim")), hardlink("h", "s"), file("h", b"evil")])
    assert root.tree() == {"s": f"-> {root.outside}/victim", "h": "evil"}


def test_hard_links_to_directories_are_refused(root: Root) -> None:
    with pytest.raises(InvalidImage, match="directory"):
        root.add([directory("d"), hardlink("h", "d")])


def test_links_in_a_circle_are_refused(root: Root) -> None:
    with pytest.raises(InvalidImage, match="symbolic links"):
        root.add([symlink("a", "b"), symlink("b", "a"), file("a/f", b"")])


def test_links_up_and_down_inside_the_root_work(root: Root) -> None:
    root.add([directory("usr/lib"), symlink("lib", "usr/lib"), symlink("usr/lib/up", "../../../..")])
    root.add([file("lib/up/lib/f", b"content")])
    assert (root.path / "usr/lib/f").read_text() == "content"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"s", b"Z"])
def test_devices_fifos_and_unknown_things_are_left_out(root: Root, kind: bytes) -> None:
    root.add([special("dev/thing", kind, devmajor=1, devminor=3), file("f", b"")])
    assert root.tree() == {"f": ""}


def test_set_id_bits_are_dropped_and_the_owner_keeps_access(root: Root) -> None:
    root.add(
        [
            file("f", b"", mode=0o6755),
            file("secret", b"", mode=0),
            directory("d", mode=0o7000),
            directory("t", mode=0o1777),
        ]
    )
    modes = {name: stat.S_IMODE((root.path / name).stat().st_mode) for name in ("f", "secret", "d", "t")}
    assert modes == {"f": 0o755, "secret": 0o600, "d": 0o1700, "t": 0o1777}


def test_a_strict_umask_does_not_hide_files_from_boxes(root: Root) -> None:
    before = os.umask(0o077)
    try:
        root.add([file("new/f", b"", mode=0o644)])
    finally:
        os.umask(before)
    assert (root.path / "new").stat().st_mode & 0o777 == 0o755
    assert (root.path / "new/f").stat().st_mode & 0o777 == 0o644


def test_everything_belongs_to_the_importing_user(root: Root) -> None:
    root.add([file("f", b"", uid=1234, gid=1234), symlink("s", "f")])
    assert (root.path / "f").stat().st_uid == os.geteuid()


def test_too_many_bytes_are_refused(root: Root) -> None:
    with pytest.raises(InvalidImage, match="larger"):
        root.add([file("a", bytes(6000)), file("a", bytes(6000))])


def test_too_many_entries_are_refused(root: Root) -> None:
    with pytest.raises(InvalidImage, match="more files"):
        root.add([file(f"f{number}") for number in range(501)])


def test_implied_directories_count_as_entries(root: Root) -> None:
    with pytest.raises(InvalidImage, match="more files"):
        root.add([file("/".join(f"{number}{level}" for level in range(100)) + "/f") for number in range(6)])


def test_deep_trees_are_refused(root: Root) -> None:
    with pytest.raises(InvalidImage, match="deeply"):
        root.add([file("d/" * (MAX_DEPTH + 1) + "f")])


def test_deep_trees_through_links_are_refused(root: Root) -> None:
    with pytest.raises(InvalidImage, match="deeply"):
        root.add([directory("d/" * 150), symlink("s", "d/" * 150), file("s/" + "d/" * 60 + "f")])


def test_names_the_file_system_refuses_are_the_archives_fault(root: Root) -> None:
    with pytest.raises(InvalidImage, match="too long"):
        root.add([file("n" * 300)])


def test_a_file_gives_way_to_a_directory_that_is_implied(root: Root) -> None:
    root.add([file("f", b"old"), file("f/inner", b"new")])
    assert root.tree() == {"f": "/", "f/inner": "new"}


def test_names_in_errors_are_safe_to_print(root: Root) -> None:
    with pytest.raises(InvalidImage) as caught:
        root.add([file("../\x1b[2J" + "x" * 1000)])
    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) < 300


class TestWhiteouts:
    def test_remove_what_lies_below(self, root: Root) -> None:
        root.add([file("a/keep", b"1"), file("a/gone", b"2"), file("b/c/d", b"3")], whiteouts=True)
        root.add([file("a/.wh.gone"), file(".wh.b"), file("never/.wh.there")], whiteouts=True)
        assert root.tree() == {"a": "/", "a/keep": "1"}

    @pytest.mark.parametrize("marker_first", [True, False])
    def test_opaque_hides_only_lower_layers(self, root: Root, marker_first: bool) -> None:
        root.add([file("a/old", b"1"), file("a/sub/old", b"2"), file("a/sub/both", b"3")], whiteouts=True)
        layer = [file("a/.wh..wh..opq"), file("a/new", b"4"), file("a/sub/both", b"5")]
        root.add(layer if marker_first else layer[::-1], whiteouts=True)
        assert root.tree() == {"a": "/", "a/new": "4", "a/sub": "/", "a/sub/both": "5"}

    def test_spare_what_the_same_layer_brings(self, root: Root) -> None:
        root.add([file("a/old", b"1")], whiteouts=True)
        root.add([file("a/new", b"2"), file(".wh.a")], whiteouts=True)
        assert root.tree() == {"a": "/", "a/new": "2"}

    @pytest.mark.parametrize("name", [".wh...", ".wh.", ".wh..", "a/.wh...", "way/.wh.victim"])
    def test_never_reach_out_of_the_root(self, root: Root, name: str) -> None:
        root.add([symlink("way", str(root.outside)), file("a/f", b"")], whiteouts=True)
        try:
            root.add([file(name)], whiteouts=True)
        except InvalidImage:
            pass
        assert "a/f" in root.tree()

    def test_meta_files_of_other_tools_are_left_out(self, root: Root) -> None:
        root.add([file(".wh..wh.plnk/x"), file(".wh..wh.aufs"), file("f")], whiteouts=True)
        assert "f" in root.tree()
        assert ".wh..wh.aufs" not in root.tree()

    def test_are_plain_files_outside_of_layers(self, root: Root) -> None:
        root.add([file("f", b"1"), file(".wh.f", b"2")])
        assert root.tree() == {"f": "1", ".wh.f": "2"}


@pytest.mark.parametrize("before", ["file", "directory", "symlink"])
@pytest.mark.parametrize("after", ["file", "directory", "symlink"])
def test_a_later_entry_replaces_any_kind_by_any_other(root: Root, before: str, after: str) -> None:
    members = {"file": file("x", b"f"), "directory": directory("x"), "symlink": symlink("x", "y")}
    root.add([members[before], members[after]])
    assert root.tree() == {"x": {"file": "f", "directory": "/", "symlink": "-> y"}[after]}
