"""Builds archives and OCI layouts for tests, friendly and hostile ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def file(name: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A regular file."""
    info = entry(name, tarfile.REGTYPE, **fields)
    info.size = len(content)
    return info, content


def special(name: str, kind: bytes, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Anything without content: directory, link, device."""
    return entry(name, kind, **fields), b""


def directory(name: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A directory."""
    return special(name, tarfile.DIRTYPE, **{"mode": 0o755, **fields})


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """A symbolic link."""
    return special(name, tarfile.SYMTYPE, linkname=target)


def hardlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """A hard link."""
    return special(name, tarfile.LNKTYPE, linkname=target)


def entry(name: str, kind: bytes, **fields: Any) -> tarfile.TarInfo:
    """A header with the given fields."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = 0o644
    info.mtime = 1_700_000_000
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def tar(members: Iterable[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    """The bytes of an archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class OciLayout:
    """An image layout being written into a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs" / "sha256").mkdir(parents=True)
        (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, content: bytes, media_type: str, **fields: Any) -> dict[str, Any]:
        """Store bytes; their descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        (self.root / "blobs" / "sha256" / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content), **fields}

    def document(self, content: dict[str, Any], media_type: str, **fields: Any) -> dict[str, Any]:
        """Store JSON; its descriptor."""
        return self.blob(json.dumps(content).encode(), media_type, **fields)

    def manifest(self, layers: Iterable[bytes], architecture: str = ARCHITECTURE, **fields: Any) -> dict[str, Any]:
        """Store an image of these layers, gzipped unless they are compressed already; its descriptor."""
        system = {"os": "linux", "architecture": architecture}
        config = self.document(system, "application/vnd.oci.image.config.v1+json")
        stored = [
            self.blob(gzip.compress(layer), "application/vnd.oci.image.layer.v1.tar+gzip")
            if layer[257:262] == b"ustar"
            else self.blob(layer, "application/vnd.oci.image.layer.v1.tar+zstd")
            for layer in layers
        ]
        content = {"schemaVersion": 2, "config": config, "layers": stored}
        return self.document(content, "application/vnd.oci.image.manifest.v1+json", **fields)

    def index(self, *manifests: dict[str, Any]) -> None:
        """Write the entry point."""
        (self.root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))

    def as_tar(self) -> bytes:
        """The whole layout as an archive."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(self.root, ".")
        return buffer.getvalue()
