"""What an upload may not be: each trick is refused, the member that plays it is named, and nothing gets out."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import struct
import sys
import tarfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.untrusted_files.archives import directory, entry, file, hardlink, special, symlink, tar
from tests.unit.untrusted_files.staged import LIMITS, overlapping_zip, stage_archive, tree, zip_member, zip_of, zip_with
from tidebox.errors import InvalidRequest, PayloadTooLarge, TideboxError
from tidebox.untrusted_files.file_names import split_name
from tidebox.untrusted_files.staging import ArchiveKind, StageLimits, archive_kind

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FRIENDLY = {"main.py": b"print('hi')\n", "src/lib/a.txt": b"a" * 5000, "empty": b""}


def _tar_of(files: dict[str, bytes]) -> bytes:
    return tar([file(name, content) for name, content in files.items()])


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_tar_archives_of_every_compression_are_taken(tmp_path: Path, pack: type[bytes]) -> None:
    stage = stage_archive(tmp_path, pack(_tar_of(FRIENDLY)))
    assert tree(tmp_path) == FRIENDLY
    assert (stage.file_count, stage.bytes) == (3, 5012)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_archives_are_taken(tmp_path: Path, method: int) -> None:
    stage_archive(tmp_path, zip_of(FRIENDLY, method), "zip")
    assert tree(tmp_path) == FRIENDLY


def test_modes_and_times_stay_without_set_id_bits(tmp_path: Path) -> None:
    stage_archive(tmp_path, tar([directory("d"), file("d/run.sh", b"#!/bin/sh\n", mode=0o6755)]))
    found = (tmp_path / "d" / "run.sh").stat()
    assert stat.S_IMODE(found.st_mode) == 0o755
    assert found.st_mtime == 1_700_000_000


BAD_NAMES = [
    "../x",
    "a/../../x",
    "a/..",
    "..",
    "/etc/passwd",
    "//x",
    "a\\..\\x",
    "..\\x",
    "C:/x",
    "c:x",
    "a\x01b",
    "a\nb",
    "a\x7f",
    "x" * 256,
    "/".join(["y" * 200] * 6),
]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str, kind: ArchiveKind) -> None:
    good, bad = ("good", b"1"), (name, b"2")
    archive = _tar_of(dict([good, bad])) if kind == "tar" else zip_of(dict([good, bad]))
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(InvalidRequest) as caught:
        stage_archive(inside, archive, kind)
    assert caught.value.details["member"]
    assert caught.value.details["member"].isprintable()
    assert sorted(os.listdir(tmp_path)) == ["inside"]
    assert set(tree(inside)) <= {"good"}


@pytest.mark.parametrize(
    "member",
    [
        symlink("x", "/etc/passwd"),
        symlink("x", "y"),
        hardlink("x", "good"),
        hardlink("x", "/etc/passwd"),
        special("x", tarfile.CHRTYPE, devmajor=1, devminor=3),
        special("x", tarfile.BLKTYPE, devmajor=8),
        special("x", tarfile.FIFOTYPE),
        special("x", b"Z"),
    ],
    ids=["link-out", "link-in", "hard-link", "hard-link-out", "device", "block-device", "fifo", "unknown"],
)
def test_members_that_are_no_files_are_refused(tmp_path: Path, member: tuple[tarfile.TarInfo, bytes]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        stage_archive(tmp_path, tar([file("good", b"1"), member]))
    assert caught.value.details["member"] == "x"
    assert not os.path.lexists(tmp_path / "x")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_zip_members_that_are_no_files_are_refused(tmp_path: Path, kind: int) -> None:
    archive = zip_with(
        (zip_member("good", stat.S_IFREG | 0o644), b"1"), (zip_member("x", kind | 0o777), b"/etc/passwd")
    )
    with pytest.raises(InvalidRequest) as caught:
        stage_archive(tmp_path, archive, "zip")
    assert caught.value.details["member"] == "x"


def test_a_file_below_a_link_is_refused_with_the_link(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        stage_archive(tmp_path, tar([symlink("d", "/tmp"), file("d/x", b"1")]))
    assert caught.value.details["member"] == "d"


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", "a"), ("a", "./a"), ("a", ".//a"), ("d/a", "d/./a"), ("a", "a/b"), ("a/b", "a")],
)
def test_names_that_meet_are_refused(tmp_path: Path, first: str, second: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        stage_archive(tmp_path, tar([file(first, b"1"), file(second, b"2")]))
    assert caught.value.details["member"] == second


def test_a_directory_may_be_named_again(tmp_path: Path) -> None:
    stage_archive(tmp_path, tar([directory("d"), file("d/a", b"1"), directory("d/"), directory("./d")]))
    assert tree(tmp_path) == {"d/a": b"1"}


def test_more_files_than_allowed(tmp_path: Path) -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        stage_archive(tmp_path, _tar_of({f"f{number}": b"" for number in range(LIMITS.max_files + 1)}))
    assert caught.value.details == {"member": f"f{LIMITS.max_files}", "limit": LIMITS.max_files}


def test_more_directories_than_allowed(tmp_path: Path) -> None:
    with pytest.raises(PayloadTooLarge):
        stage_archive(tmp_path, tar([directory(f"d{number}") for number in range(LIMITS.max_files + 1)]))


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_deeper_than_allowed(tmp_path: Path, kind: ArchiveKind) -> None:
    fits, deep = "a/b/c/d/file", "a/b/c/d/e/file"
    pack = _tar_of if kind == "tar" else zip_of
    stage_archive(tmp_path, pack({fits: b"1"}), kind)
    with pytest.raises(PayloadTooLarge) as caught:
        stage_archive(tmp_path, pack({deep: b"1"}), kind)
    assert caught.value.details["member"] == deep


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_bomb_is_stopped_at_the_limit(tmp_path: Path, pack: type[bytes]) -> None:
    bomb = pack(tar([file("zeros", bytes(64 << 20))]))
    with pytest.raises(PayloadTooLarge) as caught:
        stage_archive(tmp_path, bomb)
    assert caught.value.details["member"] == "zeros"
    assert tree(tmp_path) == {}


def test_a_zip_bomb_is_stopped_at_the_limit(tmp_path: Path) -> None:
    with pytest.raises(PayloadTooLarge):
        stage_archive(tmp_path, zip_of({"zeros": bytes(64 << 20)}), "zip")
    assert tree(tmp_path) == {}


def test_many_members_that_are_left_out_end_somewhere(tmp_path: Path) -> None:
    many = tar([file(f".git/{number}", b"") for number in range(LIMITS.max_files * 20 + 1)])
    with pytest.raises(PayloadTooLarge):
        stage_archive(tmp_path, many)


@pytest.mark.parametrize("name", ["zeros", ".git/zeros"])
def test_an_archive_that_takes_too_long_is_given_up(tmp_path: Path, name: str) -> None:
    slow = bz2.compress(tar([file(name, bytes(32 << 20))]))
    limits = StageLimits(max_bytes=64 << 20, max_seconds=0.02)
    with pytest.raises(PayloadTooLarge, match="seconds to unpack"):
        stage_archive(tmp_path, slow, limits=limits)


_MANY = 2 << 20


@pytest.mark.parametrize(
    "endless",
    [
        gzip.compress(b"") * (_MANY // 20),
        b"\x1f\x8b\x08\x08\0\0\0\0\0\0" + b"n" * _MANY,
        bz2.compress(b"") * (_MANY // 14),
        lzma.compress(b"") * (_MANY // 32),
        zstd.compress(b"") * (_MANY // 13),
    ],
    ids=["gzip-members", "gzip-name", "bz2-streams", "xz-streams", "zstd-frames"],
)
def test_an_archive_of_which_nothing_comes_out_is_given_up(tmp_path: Path, endless: bytes) -> None:
    started = time.thread_time()
    with pytest.raises(PayloadTooLarge, match="seconds to unpack"):
        stage_archive(tmp_path, endless, limits=StageLimits(max_bytes=64 << 20, max_seconds=0.02))
    assert time.thread_time() - started < 0.3


def test_members_of_a_zip_that_take_too_long_are_given_up(tmp_path: Path) -> None:
    files = zip_of({f"{number}": b"" for number in range(900)})
    with pytest.raises(PayloadTooLarge, match="seconds to unpack"):
        stage_archive(tmp_path, files, "zip", StageLimits(max_bytes=1 << 20, max_seconds=0.001))


def test_what_is_left_out_of_a_zip_is_not_unpacked(tmp_path: Path) -> None:
    damaged = zip_of({".git/large": b"1" * 1000, "a": b"2"}).replace(b"1" * 1000, b"3" * 1000)
    assert stage_archive(tmp_path, damaged, "zip").ignored == 1
    assert tree(tmp_path) == {"a": b"2"}


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TideboxError, match="shares its bytes"):
        stage_archive(tmp_path, overlapping_zip(5, 1000), "zip")


def test_a_zip_with_a_huge_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PayloadTooLarge):
        stage_archive(tmp_path, overlapping_zip(LIMITS.max_files * 20 + 1, 10), "zip")


def test_a_zip_member_that_lies_about_its_size(tmp_path: Path) -> None:
    honest = bytearray(zip_of({"a": b"x" * 1000}))
    central = honest.index(b"PK\x01\x02")
    struct.pack_into("<L", honest, central + 24, 10)
    with pytest.raises(InvalidRequest, match="lies about its size") as caught:
        stage_archive(tmp_path, bytes(honest), "zip")
    assert caught.value.details["member"] == "a"


def test_a_zip_member_that_is_longer_than_it_says_is_cut_off_in_time(tmp_path: Path) -> None:
    honest = bytearray(zip_of({"a": bytes(64 << 20)}))
    struct.pack_into("<L", honest, honest.index(b"PK\x01\x02") + 24, 10)
    with pytest.raises(InvalidRequest, match="lies about its size"):
        stage_archive(tmp_path, bytes(honest), "zip")


def test_a_zip_member_with_another_name_in_its_own_header(tmp_path: Path) -> None:
    archive = zip_of({"a.txt": b"1"}).replace(b"a.txt", b"b.txt", 1)
    with pytest.raises(InvalidRequest, match="two names"):
        stage_archive(tmp_path, archive, "zip")


def test_a_zip_member_with_a_wrong_check_sum(tmp_path: Path) -> None:
    archive = zip_of({"a": b"content"}, zipfile.ZIP_STORED).replace(b"content", b"c0ntent")
    with pytest.raises(InvalidRequest, match="check sum"):
        stage_archive(tmp_path, archive, "zip")


def test_an_encrypted_zip_member(tmp_path: Path) -> None:
    archive = bytearray(zip_of({"a": b"1"}))
    archive[archive.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(InvalidRequest, match="encrypted"):
        stage_archive(tmp_path, bytes(archive), "zip")


def test_a_tar_member_that_is_shorter_than_it_says(tmp_path: Path) -> None:
    info = entry("a", tarfile.REGTYPE)
    info.size = 10_000
    with pytest.raises(InvalidRequest, match="cut off") as caught:
        stage_archive(tmp_path, info.tobuf() + b"x" * 512)
    assert caught.value.details["member"] == "a"


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("content", [b"", b"x", b"hello world" * 100, b"PK\x05\x06", b"\x1f\x8b\x08"])
def test_what_is_no_archive(tmp_path: Path, kind: ArchiveKind, content: bytes) -> None:
    with pytest.raises(InvalidRequest):
        stage_archive(tmp_path, content, kind)


def test_a_dockerignore_counts_wherever_it_is_in_the_archive(tmp_path: Path) -> None:
    rules = b"# comment\nnode_modules\n*.log\n**/*.pyc\nbuild/*\n!build/keep.txt\n"
    files = {
        "node_modules/x/y.js": b"1",
        "a.log": b"2",
        "sub/b.log": b"3",
        "sub/c.pyc": b"4",
        "build/out": b"5",
        "build/keep.txt": b"6",
        "main.py": b"7",
        ".git/config": b"8",
        ".dockerignore": rules,
    }
    wanted = {name: files[name] for name in ("sub/b.log", "build/keep.txt", "main.py", ".dockerignore")}
    for kind, archive in (("tar", _tar_of(files)), ("zip", zip_of(files))):
        inside = tmp_path / kind
        inside.mkdir()
        stage = stage_archive(inside, archive, "zip" if kind == "zip" else "tar")
        assert tree(inside) == wanted
        assert stage.ignored == 5


def test_what_is_left_out_does_not_count(tmp_path: Path) -> None:
    files = {f"node_modules/{number}": bytes(30_000) for number in range(100)} | {
        "a": b"1",
        ".dockerignore": b"node_modules",
    }
    assert stage_archive(tmp_path, _tar_of(files)).file_count == 2


def test_archives_are_told_by_their_names() -> None:
    assert archive_kind("a.TAR.GZ") == archive_kind("b.tgz") == archive_kind("c.tar") == archive_kind("d.txz") == "tar"
    assert archive_kind("x.zip") == "zip"
    assert archive_kind("main.py") is archive_kind("zip") is archive_kind("a.gz") is None


PIECES = st.sampled_from(
    ["a", "b", ".", "..", "/", "../", "\\", ":", "~", " ", "\0", "\x01", "\n", "\x7f", "é", "\u202e"]
)
NAMES = st.lists(PIECES, min_size=1, max_size=12).map("".join)


def refused(action: Callable[[], object]) -> TideboxError | None:
    """The error of a refusal, which is the only one that may be raised."""
    try:
        action()
    except TideboxError as error:
        return error
    return None


@given(st.one_of(NAMES, st.text(max_size=300), st.binary(max_size=300)))
def test_a_name_is_refused_or_stays_inside(name: str | bytes) -> None:
    if (error := refused(lambda: split_name(name, 10))) is not None:
        assert error.http_status in (400, 413)
        assert error.details["member"].isascii()
        return
    parts = split_name(name, 10)
    assert len(parts) <= 11
    for part in parts:
        assert part not in ("", ".", "..")
        assert not set(part) & set("/\\\0")
        assert len(part.encode()) <= 255


@given(st.lists(NAMES, max_size=8), st.sampled_from(["tar", "zip"]))
def test_whatever_an_archive_names_nothing_gets_out(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], kind: ArchiveKind
) -> None:
    above = tmp_path_factory.mktemp("above")
    inside = above / "a" / "inside"
    inside.mkdir(parents=True)
    clean = [name for name in names if "\0" not in name]
    if kind == "tar":
        archive = tar([file(name, b"x") for name in clean], tarfile.GNU_FORMAT)
    else:
        with warnings.catch_warnings(action="ignore"):  # a name that is there twice
            archive = zip_with(*((zipfile.ZipInfo(name), b"" if name.endswith("/") else b"x") for name in clean))
    error = refused(lambda: stage_archive(inside, archive, kind))
    assert error is None or error.http_status in (400, 413)
    tree(inside)
    assert os.listdir(above) == ["a"]
    assert os.listdir(above / "a") == ["inside"]


@given(st.data())
def test_damaged_archives_are_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    kind: ArchiveKind = data.draw(st.sampled_from(["tar", "zip"]))
    files = {"a/b.txt": b"hello" * 50, "c": b"x"}
    archive = bytearray(_tar_of(files) if kind == "tar" else zip_of(files))
    for _ in range(data.draw(st.integers(1, 6))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    del archive[data.draw(st.integers(0, len(archive))) :]
    inside = tmp_path_factory.mktemp("inside")
    limits = StageLimits(max_bytes=100_000, max_files=20)
    error = refused(lambda: stage_archive(inside, bytes(archive), kind, limits))
    assert error is None or error.http_status in (400, 413)
    assert sum(map(len, tree(inside).values())) <= 100_000
