"""Reads an OCI image layout: finds the image for this machine and yields its layers, each checked against its digest.

Only what is reached from ``index.json`` by digest is ever read, through descriptors that follow no symbolic link.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import json
import os
import platform
import re
import stat
from collections.abc import Iterator
from typing import Any

from tidebox.errors import InvalidImage

MAX_DOCUMENT = 4 << 20
"""The bound registries put on a manifest."""
MAX_LAYERS = 500
MAX_MANIFESTS = 200
MAX_INDEX_DEPTH = 4
MAX_DOCUMENTS = 500
MAX_DOCUMENTS_BYTES = 32 << 20
"""Of all that are read to find one image: each index may name a great many others, and these too."""

_DIGEST = re.compile(r"sha(256:[0-9a-f]{64}|512:[0-9a-f]{128})\Z")
_INDEX_TYPES = {
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
}
_MANIFEST_TYPES = {
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
}
_LAYER_TYPE = re.compile(
    r"application/vnd\.(oci\.image\.layer\.(nondistributable\.)?v1\.tar(\+gzip|\+zstd)?"
    r"|docker\.image\.rootfs\.diff\.tar(\.gzip|\.zstd)?)\Z"
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Descriptor = dict[str, Any]


class Layout:
    """An image layout in the directory ``directory_fd``."""

    def __init__(self, directory_fd: int) -> None:
        self._directory = directory_fd
        self._documents_left = MAX_DOCUMENTS
        self._document_bytes_left = MAX_DOCUMENTS_BYTES

    def layers(self) -> Iterator[io.BufferedReader[Any]]:
        """The layers of the image for this machine, lowest first, each open while it is the current one.

        A layer without the right digest raises InvalidImage only after it was read: nothing of it may be kept then.
        """
        manifest = self._document(self._choose_manifest())
        layers = _list(manifest, "layers")
        if len(layers) > MAX_LAYERS:
            raise InvalidImage("the image has too many layers")
        for layer in layers:
            if not _LAYER_TYPE.match(_string(layer, "mediaType")):
                raise InvalidImage("the image has a layer that is not a tar archive")
            with self._blob(layer) as blob, io.BufferedReader(blob, 1 << 18) as stream:
                yield stream
                blob.verify()

    def _choose_manifest(self) -> Descriptor:
        with open(_open_beneath(self._directory, "index.json"), "rb") as file:
            content = file.read(MAX_DOCUMENT + 1)
        if len(content) > MAX_DOCUMENT:
            raise InvalidImage("the layout has an index of unreasonable size")
        index = _parse(content)
        found = {_digest(manifest): manifest for manifest in self._manifests(index, MAX_INDEX_DEPTH)}
        ours = _ARCHITECTURES.get(platform.machine(), platform.machine())
        fitting = [manifest for manifest in found.values() if self._platform(manifest) == ("linux", ours)]
        if not fitting:
            raise InvalidImage(f"the layout holds no image for linux/{ours}")
        if len(fitting) > 1:
            raise InvalidImage(f"the layout holds {len(fitting)} images for linux/{ours}; export one alone")
        return fitting[0]

    def _manifests(self, index: Descriptor, depth: int) -> list[Descriptor]:
        found: list[Descriptor] = []
        for descriptor in _list(index, "manifests"):
            media_type = _string(descriptor, "mediaType")
            if media_type in _MANIFEST_TYPES:
                found.append(descriptor)
            elif media_type in _INDEX_TYPES and depth > 1:
                found += self._manifests(self._document(descriptor), depth - 1)
            if len(found) > MAX_MANIFESTS:
                raise InvalidImage("the layout holds too many images")
        return found

    def _platform(self, descriptor: Descriptor) -> tuple[str, str]:
        known = descriptor.get("platform")
        if known is None:
            known = self._document(_mapping(self._document(descriptor), "config"))
        return _string(known, "os"), _string(known, "architecture")

    def _document(self, descriptor: Descriptor) -> Descriptor:
        with self._blob(descriptor) as blob:
            content = blob.read_verified(MAX_DOCUMENT)
        self._documents_left -= 1
        self._document_bytes_left -= len(content)
        if self._documents_left < 0 or self._document_bytes_left < 0:
            raise InvalidImage("the layout has too many documents")
        return _parse(content)

    def _blob(self, descriptor: Descriptor) -> _Blob:
        algorithm, _, value = _digest(descriptor).partition(":")
        size = descriptor.get("size")
        if type(size) is not int or size < 0:
            raise InvalidImage("the layout has a descriptor without a size")
        return _Blob(_open_beneath(self._directory, f"blobs/{algorithm}/{value}"), algorithm, value, size)


class _Blob(io.RawIOBase):
    """A file that is hashed while it is read."""

    def __init__(self, descriptor: int, algorithm: str, digest: str, size: int) -> None:
        self._file = io.FileIO(descriptor)
        self._hash = hashlib.new(algorithm)
        self._digest = digest
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = self._file.readinto(buffer) or 0
        self._left -= count
        if self._left < 0:
            raise InvalidImage(f"blob {self._digest[:12]} is longer than its descriptor says")
        self._hash.update(memoryview(buffer)[:count])
        return count

    def read_verified(self, max_size: int) -> bytes:
        """The whole content, which must be of a size to be held in memory."""
        if self._left > max_size:
            raise InvalidImage("the layout has a document of unreasonable size")
        content = self.readall()
        self.verify()
        return content or b""

    def verify(self) -> None:
        """Read what is left, then compare."""
        while self.read(1 << 18):
            pass
        if self._left or not hmac.compare_digest(self._hash.hexdigest(), self._digest):
            raise InvalidImage(f"blob {self._digest[:12]} does not have the content its digest names")

    def close(self) -> None:
        self._file.close()
        super().close()


def _open_beneath(directory: int, path: str) -> int:
    """Open a regular file for reading, refusing symbolic links on the whole way."""
    *above, name = path.split("/")
    with contextlib.ExitStack() as opened:
        try:
            for part in above:
                directory = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                opened.callback(os.close, directory)
            # Without O_NONBLOCK a fifo in its place would hang us.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except OSError as error:
            raise InvalidImage(f"the layout's {path[:80]} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise InvalidImage(f"the layout's {path[:80]} is not a file")
    return file


def _parse(content: bytes) -> Descriptor:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidImage("the layout has a document that is not JSON") from error
    if not isinstance(document, dict):
        raise InvalidImage("the layout has a document that is not an object")
    return document


def _digest(descriptor: Descriptor) -> str:
    digest = _string(descriptor, "digest")
    if not _DIGEST.match(digest):
        raise InvalidImage("the layout has a malformed digest")
    return digest


def _string(document: Descriptor, key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise InvalidImage(f"the layout has a document without {key}")
    return value


def _list(document: Descriptor, key: str) -> list[Descriptor]:
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidImage(f"the layout has a document without {key}")
    return value


def _mapping(document: Descriptor, key: str) -> Descriptor:
    value = document.get(key)
    if not isinstance(value, dict):
        raise InvalidImage(f"the layout has a document without {key}")
    return value
