"""The images of the native runtime: root file systems by name, each with a digest.

    <root>/names/<name>.json    which digest a name stands for
    <root>/rootfs/<digest>/     the files, shared by all names with that digest
    <root>/staging-*            an import under way, or what a killed one left; locked by its importer while that lives
    <root>/lock                 held while names and root file systems change

An import is unpacked in staging and appears by one rename, so that a failed one leaves nothing. Files in use (``hold``)
outlive their name: they go with the first change after their last user.

The digest is the SHA-256 of a sorted listing of what a box will see: kind, mode and path, a file's size, time and
content hash, a link's target. It is therefore the same however the files were packed and whoever imported them.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidebox.errors import InvalidImage, InvalidRequest, RuntimeUnavailable, UnknownImage
from tidebox.files.tarstream import BLOCK, TarReader, decompress
from tidebox.runtime.oci import Layout
from tidebox.runtime.unpack import Unpacker, UnpackLimits

IMAGES = "images"
"""Where the images of an installation are, below its data directory."""
HOST = "host"
ALIASES = frozenset({"python", "node", "busybox", "debian", "ubuntu", "alpine"})
"""Names people know from elsewhere; the machine's own system stands in for them unless one was imported."""
MOUNT_POINTS = ("proc", "dev", "tmp", "workspace", "run", ".tidebox")
"""Where a box mounts something of its own on the read-only root."""

MAX_NAME = 128
_NAME = re.compile(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?\Z")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?\Z")
_SUITE = re.compile(r"[a-z][a-z0-9-]*\Z")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
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


class ImageStore:
    """The images kept under a directory of the importing user; safe for several processes at once."""

    def __init__(self, root: Path, limits: UnpackLimits | None = None) -> None:
        self._root = root
        self._names = root / "names"
        self._rootfs = root / "rootfs"
        self._limits = limits or UnpackLimits()

    def resolve(self, name: str) -> Image:
        """The image a name stands for: an imported one, else the host for its aliases."""
        if name == HOST:
            return _host_image()
        if _is_name(name):
            try:
                return self._load(self._record_path(name))
            except FileNotFoundError:
                if name.partition(":")[0] in ALIASES:
                    return _host_image()
        raise UnknownImage(f"no image named {name[:MAX_NAME]!r}; see `tidebox image list`", image=name)

    def hold(self, image: Image) -> int:
        """A descriptor of the image's root directory; its files stay until that is closed."""
        with self._locked():
            try:
                descriptor = os.open(image.rootfs or "/", _DIRECTORY)
            except FileNotFoundError:
                raise UnknownImage(f"image {image.name} was removed", image=image.name) from None
            if image.rootfs is not None:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def list(self) -> list[Image]:
        """The imported images, by name."""
        return sorted((self._load(path) for path in self._names.glob("*.json")), key=lambda image: image.name)

    def import_(self, name: str, source: Path) -> Image:
        """Take a root file system from a tar archive (compressed or not), or from an OCI layout (directory or tar)."""
        _check_importable(name)
        try:
            descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequest(f"cannot read {source}: {error.strerror}", field="source") from error
        with _closing(descriptor), self._staging() as staging:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                self._unpack_layout(descriptor, staging)
            else:
                with open(descriptor, "rb", closefd=False) as file:
                    self._unpack_archive(file, staging)
            return self._publish(name, staging)

    def build(self, name: str, packages: Sequence[str], suite: str) -> Image:
        """Make an image of Debian or Ubuntu packages with mmdebstrap, whose progress goes to our standard error."""
        _check_importable(name)
        for package in packages:
            if not _PACKAGE.match(package):
                raise InvalidRequest(f"not the name of a package: {package!r}", field="packages")
        if not _SUITE.match(suite):
            raise InvalidRequest(f"not the name of a suite: {suite!r}", field="suite")
        program = shutil.which("mmdebstrap")
        if program is None:
            raise RuntimeUnavailable("building images needs mmdebstrap: sudo apt-get install -y mmdebstrap uidmap")
        with self._staging() as staging:
            archive = staging / "packages.tar"
            command = [program, "--variant=minbase", "--format=tar"]
            command += [f"--include={','.join(packages)}"] if packages else []
            status = _exit_code_of([*command, "--", suite, str(archive)])
            if status != 0:
                raise InvalidImage(f"mmdebstrap could not build the image (exit code {status})")
            with archive.open("rb") as file:
                self._unpack_archive(file, staging)
            return self._publish(name, staging)

    def remove(self, name: str) -> None:
        """Forget a name, and its files unless another name has them too."""
        with self._locked():
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
            rootfs = self._rootfs / record["digest"].removeprefix("sha256:")
            image = Image(record["name"], record["digest"], rootfs, record["size"], record["imported_at"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidImage(f"the record {path} is damaged; remove that file and import the image again") from error
        if not rootfs.is_dir():
            raise InvalidImage(f"the files of image {image.name} are gone; import it again")
        return image

    def _unpack_archive(self, file: Any, staging: Path) -> None:
        rootfs = staging / "rootfs"
        with _new_directory(rootfs) as root:
            Unpacker(root, self._limits).unpack(self._tar(file))
        if not (rootfs / "oci-layout").is_symlink() and (rootfs / "oci-layout").is_file():
            layout = staging / "layout"
            rootfs.rename(layout)
            with _closing(os.open(layout, _DIRECTORY)) as directory:
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

    def _publish(self, name: str, staging: Path) -> Image:
        rootfs = staging / "rootfs"
        _add_mount_points(rootfs)
        digest, size = _fingerprint(rootfs)
        # The rename must not survive a power cut that the files did not.
        os.sync()
        record = {"name": name, "digest": "sha256:" + digest, "size": size, "imported_at": time.time()}
        pending = staging / "record.json"
        pending.write_text(json.dumps(record))
        with self._locked():
            if not (self._rootfs / digest).exists():
                rootfs.rename(self._rootfs / digest)
            pending.replace(self._record_path(name))
            self._sweep()
        return self._load(self._record_path(name))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        for directory in (self._root, self._names, self._rootfs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _closing(os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        with self._locked():
            self._sweep()
            path = Path(tempfile.mkdtemp(prefix="staging-", dir=self._root))
            descriptor = os.open(path, _DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with _closing(descriptor):
            try:
                yield path
            finally:
                shutil.rmtree(path)

    def _sweep(self) -> None:
        """Remove root file systems without a name and what killed imports left. Only while locked."""
        wanted = set()
        for record in self._names.glob("*.json"):
            with contextlib.suppress(InvalidImage):
                wanted.add(self._load(record).digest.removeprefix("sha256:"))
        for unnamed in (path for path in self._rootfs.iterdir() if path.name not in wanted):
            with _closing(os.open(unnamed, _DIRECTORY)) as descriptor:
                if _is_unused(descriptor):
                    # Out of the way by one rename, so that half a root file system never stands under its digest.
                    unnamed.rename(self._root / f"staging-{unnamed.name}")
        for leftover in self._root.glob("staging-*"):
            with _closing(os.open(leftover, _DIRECTORY)) as descriptor:
                if _is_unused(descriptor):
                    shutil.rmtree(leftover)


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


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.match(name) is not None


def _check_importable(name: str) -> None:
    if not _is_name(name):
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


def _is_unused(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _new_directory(path: Path) -> contextlib.AbstractContextManager[int]:
    path.mkdir()
    path.chmod(0o755)
    return _closing(os.open(path, _DIRECTORY))


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
    with _closing(os.open(rootfs, _DIRECTORY)) as root:
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
            with _closing(os.open(name, _DIRECTORY, dir_fd=directory)) as below:
                yield from _listing(below, path + b"/")
        elif stat.S_ISLNK(status.st_mode):
            yield path, 0, b"link " + os.readlink(name, dir_fd=directory)
        else:
            with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            entry = f"file {status.st_mode & 0o777:o} {status.st_size} {int(status.st_mtime)} {content}"
            yield path, status.st_size, entry.encode()
