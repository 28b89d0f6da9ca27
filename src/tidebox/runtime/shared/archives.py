"""Small tar archives, as engines take files."""

from __future__ import annotations

import io
import tarfile


def tar_of(files: dict[str, bytes]) -> bytes:
    """An archive of these files, by their paths."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        _add(tar, files)
    return target.getvalue()


def with_files(archive: bytes, files: dict[str, bytes]) -> bytes:
    """One archive of both; what ends the first would end the whole."""
    target = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as source, tarfile.open(fileobj=target, mode="w") as tar:
        for member in source:
            tar.addfile(member, source.extractfile(member))
        _add(tar, files)
    return target.getvalue()


def _add(tar: tarfile.TarFile, files: dict[str, bytes]) -> None:
    for path, content in sorted(files.items()):
        member = tarfile.TarInfo(path)
        member.size, member.mode = len(content), 0o644
        tar.addfile(member, io.BytesIO(content))
