"""Uploads staged in a directory, for tests that look at what came of them."""

from __future__ import annotations

import io
import os
import struct
import tempfile
import zipfile
import zlib
from contextlib import closing
from pathlib import Path

from tidebox.untrusted_files.ignore import ALWAYS, Ignore
from tidebox.untrusted_files.staging import ArchiveKind, Stage, StageLimits

LIMITS = StageLimits(max_bytes=1 << 20, max_files=50, max_depth=4)


def stage_archive(
    root: Path,
    archive: bytes,
    kind: ArchiveKind = "tar",
    limits: StageLimits = LIMITS,
    ignore: tuple[str, ...] = ALWAYS,
) -> Stage:
    """Unpack an archive into ``root``."""
    left_out = Ignore(ignore)
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.seek(0)
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with closing(Stage(directory, limits, left_out)) as stage:
                left_out.extend(stage.ignore_lines(file.fileno(), kind))
                stage.unpack(file.fileno(), kind)
            return stage
        finally:
            os.close(directory)


def tree(root: Path) -> dict[str, bytes]:
    """Every file below ``root``; nothing else may be there but directories."""
    found = {}
    for path in sorted(root.rglob("*")):
        assert not path.is_symlink()
        if path.is_file():
            found[str(path.relative_to(root))] = path.read_bytes()
        else:
            assert path.is_dir()
    return found


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def zip_with(*infos: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    """A zip archive of members with headers of their own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in infos:
            archive.writestr(info, content)
    return buffer.getvalue()


def zip_member(name: str, mode: int) -> zipfile.ZipInfo:
    """A header with a Unix mode."""
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = mode << 16
    return info


def overlapping_zip(count: int, size: int) -> bytes:
    """A bomb whose members all share the bytes of one."""
    content = bytes(size)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(content) + packer.flush()
    crc = zlib.crc32(content)
    name = b"a"
    local = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 8, 0, 33, crc, len(packed), size, len(name), 0) + name
    directory = b"".join(
        struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 8, 0, 33, crc, len(packed), size, len(name), 0, 0, 0, 0, 0, 0
        )
        + name
        for _ in range(count)
    )
    start = len(local) + len(packed)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(directory), start, 0)
    return local + packed + directory + end
