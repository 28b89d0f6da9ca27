"""The tar reader agrees with the standard library on good archives, and refuses bad ones with bounded means."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tarfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.untrusted_files import archives
from tidebox.errors import InvalidImage
from tidebox.untrusted_files import tarstream
from tidebox.untrusted_files.tarstream import Member, TarReader, decompress

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def read_all(data: bytes, max_bytes: int = 1 << 24) -> list[tuple[Member, bytes]]:
    reader = TarReader(decompress(io.BufferedReader(io.BytesIO(data))), max_bytes)
    found = []
    for member in reader:
        content = b""
        while part := reader.read(1000):
            content += part
        found.append((member, content))
    return found


names = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1)
paths = st.lists(names, min_size=1).map("/".join).filter(lambda path: len(path.encode()) < 2000)


@given(
    members=st.lists(
        st.tuples(paths, st.binary(max_size=2000), st.integers(0, 0o7777), st.integers(0, 1 << 32)), max_size=8
    ),
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_reads_what_the_standard_library_writes(members: list[tuple[str, bytes, int, int]], form: int) -> None:
    data = archives.tar((archives.file(n, content, mode=mode, mtime=time) for n, content, mode, time in members), form)
    got = [(m.name, m.kind, m.mode, m.size, m.mtime, content) for m, content in read_all(data)]
    assert got == [(n.encode(), "file", mode, len(c), time, c) for n, c, mode, time in members]


@pytest.mark.parametrize("form", FORMATS)
def test_every_kind_of_member(form: int) -> None:
    long = "d" * 90 + "/" + "e" * 60
    members = [
        archives.directory("dir/"),
        archives.file(long, b"x" * 513),
        archives.symlink("link", "/etc/passwd"),
        archives.hardlink("hard", "dir/file"),
        archives.special("null", tarfile.CHRTYPE, devmajor=1, devminor=3),
        archives.special("fifo", tarfile.FIFOTYPE),
        archives.file("last", b"end"),
    ]
    got = [
        (m.name.decode(), m.kind, m.link.decode(), len(content)) for m, content in read_all(archives.tar(members, form))
    ]
    assert got == [
        ("dir/" if got[0][0].endswith("/") else "dir", "directory", "", 0),
        (long, "file", "", 513),
        ("link", "symlink", "/etc/passwd", 0),
        ("hard", "hardlink", "dir/file", 0),
        ("null", "other", "", 0),
        ("fifo", "other", "", 0),
        ("last", "file", "", 3),
    ]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_link_targets(form: int) -> None:
    target = "t/" * 400 + "end"
    [(member, _)] = read_all(archives.tar([archives.symlink("link", target)], form))
    assert member.link == target.encode()


def test_content_that_was_not_asked_for_is_skipped() -> None:
    data = archives.tar([archives.file("a", b"1" * 5000), archives.file("b", b"2")])
    assert [member.name for member in TarReader(io.BytesIO(data), 1 << 20)] == [b"a", b"b"]


@pytest.mark.parametrize(
    "compress",
    [bytes, gzip.compress, bz2.compress, lzma.compress, zstd.compress],
    ids=["plain", "gz", "bz2", "xz", "zst"],
)
class TestCompression:
    def test_is_told_by_the_first_bytes(self, compress: type[bytes]) -> None:
        data = compress(archives.tar([archives.file("a", b"content" * 9999)]))
        [(member, content)] = read_all(data)
        assert (member.name, content) == (b"a", b"content" * 9999)

    def test_cut_off_anywhere_is_refused(self, compress: type[bytes]) -> None:
        data = compress(archives.tar([archives.file("a", bytes(range(256)) * 40)]))
        for length in range(1, len(data) - 10300 if compress is bytes else len(data) - 1, 7):
            with pytest.raises(InvalidImage):
                read_all(data[:length])

    def test_a_bomb_stops_at_the_limit(self, compress: type[bytes]) -> None:
        data = compress(archives.tar([archives.file("a", bytes(4 << 20))]))
        with pytest.raises(InvalidImage, match="larger than allowed"):
            read_all(data, max_bytes=1 << 20)


def test_streams_of_several_parts_are_read_to_the_end() -> None:
    plain = archives.tar([archives.file("a", b"1" * 5000), archives.file("b", b"2")])
    for compress in (gzip.compress, bz2.compress, lzma.compress, zstd.compress):
        assert len(read_all(compress(plain[:3000]) + compress(plain[3000:]))) == 2


def test_damage_behind_the_last_member_is_seen() -> None:
    data = bytearray(gzip.compress(archives.tar([archives.file("a", b"content")])))
    data[-6] ^= 1
    with pytest.raises(InvalidImage, match="decompressed"):
        read_all(bytes(data))


def test_xz_may_not_ask_for_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarstream, "MAX_XZ_MEMORY", 1 << 20)
    data = lzma.compress(archives.tar([archives.file("a", b"content")]), preset=6)
    with pytest.raises(InvalidImage, match="decompressed"):
        read_all(data)


def with_xz_dictionary(data: bytes, code: int) -> bytes:
    """An xz stream whose header asks for another dictionary: 28 is for 64 MiB, and each step half as much more."""
    head = bytearray(data[12 : 12 + (data[12] + 1) * 4])
    assert head[2:4] == b"\x21\x01"  # LZMA2, with one byte of properties
    head[4] = code
    head[-4:] = zlib.crc32(head[:-4]).to_bytes(4, "little")
    return data[:12] + bytes(head) + data[12 + len(head) :]


def test_as_much_memory_as_the_most_demanding_preset_of_xz_needs_and_no_more() -> None:
    data = lzma.compress(archives.tar([archives.file("a", b"content")]), preset=0)
    assert len(read_all(with_xz_dictionary(data, 28))) == 1
    for code in (29, 30, 40):
        with pytest.raises(InvalidImage, match="decompressed"):
            read_all(with_xz_dictionary(data, code))


def zstd_frame(content: bytes, window_log: int) -> bytes:
    """One frame of raw blocks whose header asks for a window."""
    blocks = [content[start : start + (1 << 17)] for start in range(0, len(content), 1 << 17)]
    last = len(blocks) - 1
    packed = [(len(block) << 3 | (at == last)).to_bytes(3, "little") + block for at, block in enumerate(blocks)]
    return b"\x28\xb5\x2f\xfd\0" + bytes([window_log - 10 << 3]) + b"".join(packed)


def test_as_much_memory_as_ordinary_zstd_needs_and_no_more() -> None:
    plain = archives.tar([archives.file("a", b"content")])
    assert len(read_all(zstd_frame(plain, 25))) == 1
    for window_log in (26, 27, 31):
        with pytest.raises(InvalidImage, match="decompressed"):
            read_all(zstd_frame(plain, window_log))


def test_extended_headers_of_one_member_are_bounded_together() -> None:
    def extended(kind: bytes, content: bytes) -> bytes:
        header = bytearray(archives.tar([archives.file("x", content)], tarfile.USTAR_FORMAT)[:512])
        header[156:157] = kind
        return sealed(header) + content + bytes(-len(content) % 512)

    member = archives.tar([archives.file("a", b"content")], tarfile.USTAR_FORMAT)
    record = b"600009 k=" + b"v" * 599_999 + b"\n"
    assert len(record) == 600_009
    assert len(read_all((extended(b"x", record) + member[:1024]) * 3)) == 3
    for kind, content in ((b"x", record), (b"L", b"n" * 600_000), (b"K", b"n" * 600_000)):
        with pytest.raises(InvalidImage, match="unreasonable size"):
            read_all(extended(kind, content) * 2 + member, max_bytes=1 << 24)


def sealed(header: bytearray) -> bytes:
    """A header with its checksum made right."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def crafted(position: int, value: bytes, kind: bytes = b"0") -> bytes:
    header = bytearray(archives.tar([archives.file("a", b"")], tarfile.USTAR_FORMAT)[:512])
    header[156:157] = kind
    header[position : position + len(value)] = value
    return sealed(header) + bytes(2048)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 1024,
    ],
)
def test_an_empty_archive_has_no_members(data: bytes) -> None:
    assert read_all(data) == []


@pytest.mark.parametrize(
    "data",
    [
        b"not a tar archive at all, but long enough to be a header block" * 20,
        b"\x1f\x8b broken",
        crafted(124, b"\xff" * 12),  # a negative size
        crafted(124, b"\x80" + b"\xff" * 11),  # a size beyond everything
        crafted(124, b"12345678901\0"),  # no octal
        crafted(124, b"00000010000\0", b"x"),  # an extended header that is not there
        crafted(124, b"77777777777\0", b"x"),  # an extended header of 8 GiB
        crafted(124, b"77777777777\0", b"L"),
        crafted(124, b"00000000000\0", b"S"),  # sparse
    ],
)
def test_crafted_headers_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidImage):
        read_all(data)


def pax(content: bytes) -> bytes:
    header = bytearray(archives.tar([archives.file("x", b"")], tarfile.USTAR_FORMAT)[:512])
    header[156:157] = b"x"
    header[124:136] = b"%011o\0" % len(content)
    return sealed(header) + content + bytes(-len(content) % 512) + archives.tar([archives.file("a", b"")])


@pytest.mark.parametrize(
    "content",
    [
        b"0 path=a\n",
        b"-5 path=a\n",
        b"9999 path=a\n",
        b"99999999999999999999999999 path=a\n",
        b"10 path=ab",
        b"6 path\n",
        b"path=a\n",
        b"13 size=-100\n",
        b"12 size=abc\n",
        b"12 path=a\0b\n",
        b"24 GNU.sparse.size=1000\n",
    ],
)
def test_crafted_extended_headers_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidImage):
        read_all(pax(content))


@given(data=st.binary(max_size=3000), position=st.integers(0, 2600))
def test_garbage_is_refused_or_read_but_never_anything_else(data: bytes, position: int) -> None:
    good = archives.tar([archives.file("a" * 120, b"1" * 600), archives.symlink("b", "c" * 200)])
    for candidate in (data, good[:position] + data[:20] + good[position + 20 :]):
        try:
            read_all(candidate)
        except InvalidImage:
            pass
