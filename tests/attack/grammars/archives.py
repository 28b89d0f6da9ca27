"""Archives, honest and hostile and then damaged, as uploads to a session and as images."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

import httpx2 as httpx

from tests.attack.mutation import damaged_bytes
from tests.attack.target import API, Target

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

AT_ONCE = 4
_IMPORT_SECONDS = 60.0
_NAME = "attack/image"
_NAMES = (
    "a",
    "dir/b",
    "../up",
    "/absolute",
    "x" * 300,
    "dir/../../c",
    "a\\b",
    "\u202ename",
    "dir",
    ".",
    "a/" * 30 + "z",
)
_KINDS = (
    *[tarfile.REGTYPE] * 5,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.FIFOTYPE,
    tarfile.GNUTYPE_SPARSE,
)
_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "gz": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    # A dictionary of 64 MiB, which a reader may have to have, for an archive of a few bytes.
    "xz-9": lambda data: lzma.compress(data, preset=9),
    "zst": zstd.compress,
}
_TYPES = {"tar": "application/x-tar", "gz": "application/gzip", "bz2": "application/x-bzip2", "zip": "application/zip"}


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive, and what the request says that it is."""

    kind: str
    data: bytes

    @property
    def content_type(self) -> str:
        """For an upload."""
        return _TYPES.get(self.kind, "application/x-xz")


def archive(chance: random.Random) -> Archive:
    """A random archive of a random kind, mostly damaged."""
    kind = chance.choice([*_PACKERS, "zip", "oci"])
    match kind:
        case "zip":
            data = _zip(chance)
        case "oci":
            data = _oci(chance)
        case _:
            inner = _tar(chance)
            if chance.random() < 0.3:
                inner = damaged_bytes(chance, inner, 3)
            data = _PACKERS[kind](inner)
    if chance.random() < 0.6:
        data = damaged_bytes(chance, data, chance.randint(1, 6))
    if chance.random() < 0.15:
        data = data[: chance.randrange(len(data) + 1)]
    return Archive(kind, data)


def _content(chance: random.Random, members: int) -> bytes:
    # Zeros are a bomb when they are packed; how far a bomb gets is bounded by the caps, not by its size.
    return chance.choice([b"", b"hello", chance.randbytes(700), bytes((2 << 20) // members)])


def _tar(chance: random.Random) -> bytes:
    buffer = io.BytesIO()
    form = chance.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
    with tarfile.open(fileobj=buffer, mode="w", format=form) as made:
        members = chance.choice([1, 3, 8, 200])
        for _ in range(members):
            info = tarfile.TarInfo(chance.choice(_NAMES))
            info.type = chance.choice(_KINDS)
            info.mode = chance.choice([0o644, 0o755, 0o4755, 0o7777, 0])
            info.mtime = chance.choice([0, 1_700_000_000, (1 << 33) - 1])
            content = _content(chance, members) if info.type in (tarfile.REGTYPE, tarfile.GNUTYPE_SPARSE) else b""
            info.size = len(content)
            info.linkname = chance.choice(_NAMES) if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            if form == tarfile.PAX_FORMAT and chance.random() < 0.2:
                info.pax_headers = {chance.choice(["path", "size", "mtime", "GNU.sparse.map", "x" * 90]): "9" * 40}
            try:
                made.addfile(info, io.BytesIO(content))
            except ValueError:
                continue  # a name that this format cannot hold
    return buffer.getvalue()


def _zip(chance: random.Random) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        members = chance.choice([1, 3, 8, 200])
        for number in range(members):
            info = zipfile.ZipInfo(f"{chance.choice(_NAMES)}{number}", (2020, 1, 1, 0, 0, 0))
            info.compress_type = chance.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
            info.external_attr = chance.choice([0o100644, 0o120777, 0o40755, 0o20666]) << 16
            made.writestr(info, _content(chance, members))
    return buffer.getvalue()


def _oci(chance: random.Random) -> bytes:
    """An image layout as a tar archive, whose documents may not be true."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, str | int]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content if chance.random() < 0.9 else content + b"x"
        size = len(content) if chance.random() < 0.9 else 1 << 40
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": size}

    layers = [blob(_PACKERS["gz"](_tar(chance)), "layer.v1.tar+gzip") for _ in range(chance.choice([0, 1, 3, 40]))]
    config = blob(json.dumps({"os": "linux", "architecture": "amd64"}).encode(), "config.v1+json")
    manifest = {"schemaVersion": 2, "config": config, "layers": layers}
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode(), "manifest.v1+json")]}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def step(chance: random.Random, target: Target) -> list[str]:
    """Some uploads at once, and one import beside them."""
    image, *uploads = await asyncio.to_thread(lambda: [archive(chance) for _ in range(1 + AT_ONCE)])
    found = await asyncio.gather(_import(target, image), *(_upload(target, one) for one in uploads))
    return [problem for problem in found if problem]


async def _upload(target: Target, archive: Archive) -> str | None:
    path = f"{API}/sessions/{target.session_id}/files"
    try:
        answer = await target.http.post(path, content=archive.data, headers={"Content-Type": archive.content_type})
    except httpx.HTTPError:
        return None
    return f"upload of {archive.kind}: answered 500" if answer.status_code == 500 else None


async def _import(target: Target, archive: Archive) -> str | None:
    """As an operator would; a refusal is one sentence, and nothing is left of it."""
    with tempfile.NamedTemporaryFile(prefix="attack-", suffix=f".{archive.kind}") as file:
        file.write(archive.data)
        file.flush()
        code, said = await _tidebox(target, "image", "import", _NAME, file.name)
    if code == 0:
        await _tidebox(target, "image", "remove", _NAME)
    left = [path.name for path in (target.data_dir / "images").glob("staging-*")]
    if left:
        return f"import of {archive.kind}: left {left}"
    if code not in (0, 2) or "Traceback" in said:
        return f"import of {archive.kind}: exit code {code}: {said[-300:]}"
    return None


async def _tidebox(target: Target, *words: str) -> tuple[int, str]:
    program = "import sys; from tidebox.cli.main import main; sys.exit(main())"
    environment = os.environ | {"SANDBOX_DATA_DIR": str(target.data_dir)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *words),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_IMPORT_SECONDS):
            _, said = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return -1, "took longer than a minute"
    assert process.returncode is not None
    return process.returncode, said.decode("utf-8", "replace")
