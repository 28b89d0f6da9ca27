"""The images of the native runtime: root file systems by name, each with a digest.

    <root>/names/<name>.json    which digest a name stands for, with its layers and what it preloads
    <root>/rootfs/<digest>/     the files, shared by all names with that digest (``runtime.shelf``)
    <root>/packages/            the layers that images have on top (``runtime.layers``)

An import is unpacked in staging and appears by one rename, so that a failed one leaves nothing. Files in use (``hold``)
outlive their name: they go with the first change after their last user.

An image may be another one with layers on top. It is named, or goes by the name of that other image and the digests of
its layers (``host+<digest>``), or, without a name, by the digest of its root file system (``sha256:<digest>``).

The digest is the SHA-256 of a sorted listing of what a box will see: kind, mode and path, a file's size, time and
content hash, a link's target. It is therefore the same however the files were packed, and for every importer.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidebox.errors import InvalidImage, InvalidRequest, RuntimeUnavailable, UnknownImage
from tidebox.model.box import LAYER_MARK
from tidebox.model.images import HOST as HOST
from tidebox.model.packages import NO_PACKAGES, Packages
from tidebox.model.recipes import is_imported_only, recipe_for
from tidebox.runtime.layers import Layer, LayerStore
from tidebox.runtime.oci import Layout
from tidebox.runtime.shelf import DIRECTORY, Shelf, closing
from tidebox.runtime.unpack import Unpacker, UnpackLimits
from tidebox.untrusted_files.tarstream import BLOCK, TarReader, decompress

IMAGES = "images"
"""Directory of an installation's images, below its data directory."""
ALIASES = frozenset({"python", "node", "busybox", "debian", "ubuntu", "alpine"})
"""Names people know from elsewhere; the machine's own system stands in for them unless one was imported."""
MOUNT_POINTS = ("proc", "dev", "tmp", "workspace", "run", ".tidebox")
"""Directories of the read-only root on which a box mounts something of its own."""

MAX_NAME = 128
_BY_DIGEST = "sha256:"
_NAME = re.compile(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?\Z")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?\Z")
_SUITE = re.compile(r"[a-z][a-z0-9-]*\Z")
# Of a program that builds an image and is told to end.
_CLEAN_UP_SECONDS = 10.0
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What changes when the system is upgraded.
_HOST_MARKS = ("/etc/os-release", "/usr/bin", "/usr/lib", "/usr/local/bin", "/var/lib/dpkg/status", "/var/lib/rpm")


@dataclass(frozen=True, slots=True)
class Image:
    """A named root file system; ``rootfs`` is None for the machine's own system directories."""

    name: str
    digest: str
    rootfs: Path | None
    size: int | None = None
    """Bytes of its regular files, None for the host."""
    imported_at: float | None = None
    base: str | None = None
    """The name of the image that its layers are on; None where it has no name of its own, or no layers."""
    layers: tuple[Layer, ...] = ()
    """Read-only, on top of the files: at most one for each language."""
    packages: Packages = NO_PACKAGES
    """The request that its layers were made for."""
    preload: tuple[str, ...] = ()
    """Modules that its programs are likely to import."""

    @property
    def root(self) -> str:
        """The name of its files alone, without layers."""
        return HOST if self.rootfs is None else _BY_DIGEST + self.rootfs.name

    @property
    def root_digest(self) -> str:
        """The digest of these."""
        return _host_image().digest if self.rootfs is None else self.root


class ImageStore:
    """The images kept under a directory of the importing user; safe for several processes at once."""

    def __init__(self, root: Path, limits: UnpackLimits | None = None) -> None:
        self._root = root
        self._names = root / "names"
        self._shelf = Shelf(root, "rootfs")
        self._limits = limits or UnpackLimits()
        self.layers = LayerStore(root / "packages")

    def resolve(self, name: str) -> Image:
        """The image a name stands for: an imported one, else the host for its aliases; with the layers it names."""
        base, *digests = name.split(LAYER_MARK)
        image = self._resolve(base)
        if not digests:
            return image
        found = tuple(layer for digest in digests if (layer := self.layers.get(digest)) is not None)
        if len(found) < len(digests):
            raise UnknownImage(f"packages of {base} were removed meanwhile; ask for them again", image=base)
        return with_layers(image, found)

    def _resolve(self, name: str) -> Image:
        if name == HOST:
            return _host_image()
        if _is_name(name):
            if name.startswith(_BY_DIGEST):
                return self._by_digest(name)
            try:
                return self._load(self._record_path(name))
            except FileNotFoundError:
                if name.partition(":")[0] in ALIASES:
                    return _host_image()
                return self._by_recipe(name)
        raise _unknown(name)

    def _by_recipe(self, name: str) -> Image:
        """The image that stands for one of this name, where it was made."""
        recipe = recipe_for(name)
        if recipe is None:
            raise _unknown(name, "; import it" if is_imported_only(name) else "")
        try:
            return self._load(self._record_path(recipe.image))
        except FileNotFoundError:
            raise _unknown(name, f"; `tidebox image build --recipe {recipe.name}` makes what stands for it") from None

    def _by_digest(self, digest: str) -> Image:
        rootfs = self._shelf.place / digest.removeprefix(_BY_DIGEST)
        if not rootfs.is_dir():
            raise _unknown(digest)
        return Image(digest, digest, rootfs)

    def hold(self, image: Image) -> tuple[int, ...]:
        """Descriptors of the image's directories; its files stay until these are closed."""
        held: list[int] = []
        try:
            if image.rootfs is not None:
                held.append(self._shelf.hold(image.rootfs.name))
            held += [self.layers.hold(layer) for layer in image.layers]
        except FileNotFoundError:
            for descriptor in held:
                os.close(descriptor)
            raise UnknownImage(f"image {image.name} was removed", image=image.name) from None
        return tuple(held)

    def list(self) -> list[Image]:
        """The images that have names, by these."""
        return sorted((self._load(path) for path in self._names.glob("*.json")), key=lambda image: image.name)

    def import_(self, name: str, source: Path) -> Image:
        """Take a root file system from a tar archive (compressed or not), or from an OCI layout (directory or tar)."""
        check_importable(name)
        try:
            descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequest(f"cannot read {source}: {error.strerror}", field="source") from error
        with closing(descriptor), self._shelf.staging() as staging:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                self._unpack_layout(descriptor, staging)
            else:
                with open(descriptor, "rb", closefd=False) as file:
                    self._unpack_archive(file, staging)
            return self._publish(name, staging)

    def build(self, name: str | None, packages: Sequence[str], suite: str, made_at: int | None = None) -> Image:
        """Make an image of Debian or Ubuntu packages with mmdebstrap, whose progress goes to our standard error.

        Without a name it goes by its digest, until something else changes. With ``made_at``, seconds since the epoch,
        no file of it is younger than that, and the same packages are the same image.
        """
        if name is not None:
            check_importable(name)
        for package in packages:
            if not _PACKAGE.match(package):
                raise InvalidRequest(f"not the name of a package: {package!r}", field="packages")
        if not _SUITE.match(suite):
            raise InvalidRequest(f"not the name of a suite: {suite!r}", field="suite")
        program = shutil.which("mmdebstrap")
        if program is None:
            raise RuntimeUnavailable("building images needs mmdebstrap: sudo apt-get install -y mmdebstrap uidmap")
        with self._shelf.staging() as staging:
            archive = staging / "packages.tar"
            command = [program, "--variant=minbase", "--format=tar"]
            command += [f"--include={','.join(packages)}"] if packages else []
            clock = [] if made_at is None else ["env", f"SOURCE_DATE_EPOCH={made_at}"]
            status = _exit_code_of([*clock, *command, "--", suite, str(archive)])
            if status != 0:
                raise InvalidImage(f"mmdebstrap could not build the image (exit code {status})")
            with archive.open("rb") as file:
                self._unpack_archive(file, staging)
            return self._publish(name, staging)

    def tag(self, name: str, base: Image, image: Image, packages: Packages, preload: Sequence[str]) -> Image:
        """Name an image that is ``base`` with other layers on top."""
        check_importable(name)
        for module in preload:
            if len(module) > MAX_NAME or not all(part.isidentifier() for part in module.split(".")):
                raise InvalidRequest(f"not the name of a module: {module[:MAX_NAME]!r}", field="preload")
        held = self.hold(image)
        try:
            record = {
                "name": name,
                "digest": None if image.rootfs is None else _BY_DIGEST + image.rootfs.name,
                "size": (base.size or 0) - sum(layer.size for layer in base.layers),
                "imported_at": time.time(),
                "base": base.name,
                "layers": [layer.digest for layer in image.layers],
                "packages": {"python": packages.python, "node": packages.node},
                "preload": list(preload),
            }
            with self._shelf.staging() as staging, self._shelf.locked():
                self._name(staging, record)
        finally:
            for descriptor in held:
                os.close(descriptor)
        return self._load(self._record_path(name))

    def prune(self, most_bytes: int = 0) -> Sequence[Layer]:
        """Remove layers that no named image has, as many as it takes to keep no more than ``most_bytes`` of them."""
        return self.layers.prune(most_bytes, self._named_layers)

    def _named_layers(self) -> set[str]:
        return {layer.digest for image in self._intact() for layer in image.layers}

    def _intact(self) -> Iterator[Image]:
        for record in self._names.glob("*.json"):
            with suppress(InvalidImage):
                yield self._load(record)

    def remove(self, name: str) -> None:
        """Forget a name, and its files unless another name has them too."""
        with self._shelf.locked():
            try:
                if not _is_name(name):
                    raise FileNotFoundError
                self._record_path(name).unlink()
            except FileNotFoundError:
                raise UnknownImage(f"no image named {name[:MAX_NAME]!r} was imported", image=name) from None
            self._sweep()

    def _record_path(self, name: str) -> Path:
        return self._names / (quote(name, safe="") + ".json")

    def _load(self, path: Path) -> Image:
        content = path.read_bytes()
        try:
            record = json.loads(content)
            digest = record["digest"]
            rootfs = None if digest is None else self._shelf.place / digest.removeprefix(_BY_DIGEST)
            plain = Image(
                record["name"],
                _host_image().digest if digest is None else digest,
                rootfs,
                record["size"],
                record["imported_at"],
                record.get("base"),
                preload=tuple(record.get("preload", ())),
            )
            digests = record.get("layers", [])
            asked = record.get("packages", {})
            packages = Packages(tuple(asked.get("python", ())), tuple(asked.get("node", ())))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidImage(f"the record {path} is damaged; remove that file and import the image again") from error
        layers = [self.layers.get(digest) for digest in digests]
        if (rootfs is not None and not rootfs.is_dir()) or None in layers:
            raise InvalidImage(f"the files of image {plain.name} are gone; import it again")
        return with_layers(replace(plain, packages=packages), [layer for layer in layers if layer is not None])

    def _unpack_archive(self, file: Any, staging: Path) -> None:
        rootfs = staging / "rootfs"
        with _new_directory(rootfs) as root:
            Unpacker(root, self._limits).unpack(self._tar(file))
        if not (rootfs / "oci-layout").is_symlink() and (rootfs / "oci-layout").is_file():
            layout = staging / "layout"
            rootfs.rename(layout)
            with closing(os.open(layout, DIRECTORY)) as directory:
                self._unpack_layout(directory, staging)
        elif os.path.lexists(rootfs / "manifest.json") and not os.path.lexists(rootfs / "usr"):
            raise InvalidImage(
                "a Docker archive without an OCI layout; convert it: skopeo copy docker-archive:FILE oci:DIRECTORY"
            )

    def _unpack_layout(self, directory: int, staging: Path) -> None:
        with _new_directory(staging / "rootfs") as root:
            unpacker = Unpacker(root, self._limits)
            for layer in Layout(directory).layers():
                unpacker.unpack(self._tar(layer), whiteouts=True)

    def _tar(self, file: Any) -> TarReader:
        # Each entry may add two header blocks and its padding to the bytes that count.
        return TarReader(decompress(file), self._limits.max_bytes + self._limits.max_entries * 4 * BLOCK)

    def _publish(self, name: str | None, staging: Path) -> Image:
        rootfs = staging / "rootfs"
        _add_mount_points(rootfs)
        digest, size = _fingerprint(rootfs)
        # The rename must not survive a power cut that the files did not.
        os.sync()
        with self._shelf.locked():
            self._shelf.put(rootfs, digest)
            if name is None:
                return replace(self._by_digest(_BY_DIGEST + digest), size=size)
            record = {"name": name, "digest": _BY_DIGEST + digest, "size": size, "imported_at": time.time()}
            self._name(staging, record)
        return self._load(self._record_path(name))

    def _name(self, staging: Path, record: dict[str, Any]) -> None:
        """Write down what a name stands for. Only while locked."""
        pending = staging / "record.json"
        pending.write_text(json.dumps(record))
        self._names.mkdir(mode=0o700, exist_ok=True)
        pending.replace(self._record_path(record["name"]))
        self._sweep()

    def _sweep(self) -> None:
        """Remove root file systems without a name. Only while locked."""
        wanted = {image.rootfs.name for image in self._intact() if image.rootfs is not None}
        self._shelf.remove(wanted.__contains__)


def with_layers(image: Image, layers: Sequence[Layer]) -> Image:
    """The image with these layers on top, in place of those for the same languages."""
    if not layers and not image.preload:
        return image
    languages = {layer.lock.language for layer in layers}
    all_layers = (*(layer for layer in image.layers if layer.lock.language not in languages), *layers)
    # Of the files alone: the digest of an image with layers is made of what it consists of.
    root = image.rootfs.name if image.rootfs is not None else _host_image().digest
    parts = [root, *sorted(layer.digest for layer in all_layers), *image.preload]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    size = (image.size or 0) - sum(layer.size for layer in image.layers) + sum(layer.size for layer in all_layers)
    return replace(image, digest=_BY_DIGEST + digest, size=size, layers=all_layers)


def _exit_code_of(command: Sequence[str]) -> int:
    """Run a program to its end; if that is not awaited it is told to end, and has a while to clean up."""
    # A signal that comes while it is started waits until there is somebody to be told.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)
    unblock = functools.partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=unblock)
    except BaseException:
        unblock()
        raise
    try:
        unblock()
        return process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(_CLEAN_UP_SECONDS)
        except BaseException:
            process.kill()
        raise


def _unknown(name: str, advice: str = "; see `tidebox image list`") -> UnknownImage:
    return UnknownImage(f"no image named {name[:MAX_NAME]!r}{advice or '; see `tidebox image list`'}", image=name)


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.match(name) is not None


def check_importable(name: str) -> None:
    """Refuse what cannot be the name of an image, or stands for another one."""
    if not _is_name(name) or name.startswith(_BY_DIGEST):
        raise InvalidRequest(f"not a name for an image: {name[:MAX_NAME]!r} (one is like my/app:1.2)", field="name")
    if name == HOST:
        raise InvalidRequest("the name host stands for this machine's own system", field="name")


def _host_image() -> Image:
    # Looked at again only so often: an upgrade takes longer, and every box asks.
    return _host_image_of(int(time.monotonic()))


@functools.lru_cache(maxsize=1)
def _host_image_of(_second: int) -> Image:
    """The host has no listing of its own; its digest changes whenever the system directories do."""
    marks = hashlib.sha256(os.uname().machine.encode())
    for path in _HOST_MARKS:
        try:
            status = os.stat(path)
        except OSError:
            continue
        marks.update(f"{path} {status.st_dev} {status.st_ino} {status.st_mtime_ns}\n".encode())
    return Image(HOST, "sha256:" + marks.hexdigest(), None)


def _new_directory(path: Path) -> AbstractContextManager[int]:
    path.mkdir()
    path.chmod(0o755)
    return closing(os.open(path, DIRECTORY))


def _add_mount_points(rootfs: Path) -> None:
    """Put a real, empty directory at each mount point: a link there would lead the mount astray."""
    if not any(rootfs.iterdir()):
        raise InvalidImage("the image holds no files")
    for name in MOUNT_POINTS:
        path = rootfs / name
        if not path.is_symlink() and path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.mkdir()
        path.chmod(0o755)


def _fingerprint(rootfs: Path) -> tuple[str, int]:
    """Digest and size of a root file system."""
    listing = hashlib.sha256()
    total = 0
    with closing(os.open(rootfs, DIRECTORY)) as root:
        for path, size, entry in _listing(root, b""):
            total += size
            listing.update(path + b"\0" + entry + b"\0")
    return listing.hexdigest(), total


def _listing(directory: int, place: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    # Not os.fwalk: it asks about the targets of symbolic links, which are paths of a box and not of this machine.
    for name in sorted(map(os.fsencode, os.listdir(directory))):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        path = place + name
        if stat.S_ISDIR(status.st_mode):
            yield path, 0, f"directory {status.st_mode & 0o1777:o}".encode()
            with closing(os.open(name, DIRECTORY, dir_fd=directory)) as below:
                yield from _listing(below, path + b"/")
        elif stat.S_ISLNK(status.st_mode):
            yield path, 0, b"link " + os.readlink(name, dir_fd=directory)
        else:
            with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            entry = f"file {status.st_mode & 0o777:o} {status.st_size} {int(status.st_mtime)} {content}"
            yield path, status.st_size, entry.encode()
