"""Layers: the packages of one language, resolved to a lock, unpacked read-only and shared by all images that have them.

    <root>/layers/<digest>/files/       what a box sees on top of its image, from the root on
    <root>/layers/<digest>/layer.json   what it is: language, lock, size
    <root>/layers/<digest>/used         touched whenever it is asked for
    <root>/building/<digest>            locked by the process that makes that layer
    <root>/notes/<key>                  what requests were resolved to, and what interpreters said of themselves
    <root>/tools.log                    what uv and npm said, in full

A layer's digest is that of its lock: the same packages for the same interpreter are one layer. Layers that no named
image has are a cache: beyond its size those that were not asked for the longest go, unless a box may have them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tidebox.errors import InvalidImage
from tidebox.runtime.shelf import Shelf, closing

Language = Literal["python", "node"]
Kind = Literal["python", "node", "files"]
"""Kind of a layer: the packages of a language, or files that were worked out ahead."""

FORMAT = 2
"""Counts the ways in which layers were laid out; part of every digest, so that an older one is not taken for a new."""
# Between the answer that a layer is there and the box that has it.
_ABOUT_TO_BE_USED_SECONDS = 10.0
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of a lock."""

    name: str
    version: str
    digest: str
    """Of its archive, as the index gives it: ``sha256:`` and so on."""
    source: str
    """Location of the archive, as the resolver gave it; not part of what the package is."""
    place: str = ""
    """Path that it is unpacked to, where that is not the same for all."""

    @property
    def shown(self) -> str:
        """As people write it."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Lock:
    """Packages of one language with their exact versions, for the interpreters that ``target`` describes."""

    language: Kind
    target: Mapping[str, str]
    packages: tuple[Locked, ...]

    @property
    def digest(self) -> str:
        """Names the layer."""
        packages = sorted((item.name, item.version, item.digest, item.place) for item in self.packages)
        content = [FORMAT, self.language, sorted(self.target.items()), packages]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def encoded(self) -> dict[str, Any]:
        """As it is kept."""
        packages = [[item.name, item.version, item.digest, item.source, item.place] for item in self.packages]
        return {"language": self.language, "target": dict(self.target), "packages": packages}

    @classmethod
    def decoded(cls, kept: dict[str, Any]) -> Lock:
        """Decode the result of ``encoded``; raises TypeError or KeyError for anything else."""
        return cls(kept["language"], kept["target"], tuple(Locked(*item) for item in kept["packages"]))


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that is there."""

    digest: str
    path: Path
    """Its files."""
    lock: Lock
    size: int


class LayerStore:
    """The layers of an installation."""

    def __init__(self, root: Path) -> None:
        self._shelf = Shelf(root, "layers")
        self._notes = root / "notes"
        self._building = root / "building"
        self.tools_log = root / "tools.log"
        """All that uv and npm said, for the operator alone: it may hold credentials of an index."""

    def get(self, digest: str) -> Layer | None:
        """A layer, and a note that it was asked for."""
        layer = self._read(digest) if _DIGEST.match(digest) else None
        if layer is not None:
            with contextlib.suppress(OSError):
                os.utime(layer.path.parent / "used")
        return layer

    def _read(self, digest: str) -> Layer | None:
        path = self._shelf.place / digest
        try:
            kept = json.loads((path / "layer.json").read_bytes())
            return Layer(digest, path / "files", Lock.decoded(kept["lock"]), kept["size"])
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidImage(f"the layer {path} is damaged; remove that directory") from error

    def hold(self, layer: Layer) -> int:
        """A descriptor; the layer stays until that is closed. Raises FileNotFoundError."""
        return self._shelf.hold(layer.digest)

    def list(self) -> list[Layer]:
        """All layers; those that were asked for last come first."""
        found = [layer for path in _entries(self._shelf.place) if (layer := self._read(path.name)) is not None]
        return sorted(found, key=_used_at, reverse=True)

    @contextlib.contextmanager
    def building(self, lock: Lock) -> Iterator[None]:
        """Be the only one, of all processes, to make the layer of ``lock``; raises BlockingIOError where another is.

        A process that is killed over it stands in nobody's way.
        """
        self._building.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._building / lock.digest
        with closing(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                same = os.path.samestat(path.stat(), os.fstat(descriptor))
            except FileNotFoundError:
                same = False
            # The one before us may have removed what we opened.
            if not same:
                raise BlockingIOError
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """A directory to make a layer in, on the file system that it will be on."""
        return self._shelf.staging()

    def publish(self, staging: Path, lock: Lock, size: int) -> Layer:
        """Make ``files`` of a staging directory the layer of ``lock``."""
        whole = staging / "layer"
        whole.mkdir()
        (staging / "files").rename(whole / "files")
        (whole / "used").touch()
        (whole / "layer.json").write_text(json.dumps({"lock": lock.encoded(), "size": size, "made_at": time.time()}))
        # The rename must not survive a power cut that the files did not.
        os.sync()
        with self._shelf.locked():
            self._shelf.put(whole, lock.digest)
        layer = self.get(lock.digest)
        assert layer is not None
        return layer

    def prune(self, most_bytes: int, kept: Callable[[], Collection[str]]) -> Sequence[Layer]:
        """Remove the layers that were not asked for the longest, beyond ``most_bytes``; those of ``kept`` stay.

        Layers that boxes have, or may be about to have, stay too, so that more may be left. Returns what was removed.
        """
        with self._shelf.locked():
            named = kept()
            layers = [layer for layer in self.list() if layer.digest not in named]
            recent = time.time() - _ABOUT_TO_BE_USED_SECONDS
            room = most_bytes
            unwanted = set()
            for layer in layers:
                room -= layer.size
                if room < 0 and _used_at(layer) < recent:
                    unwanted.add(layer.digest)
            self._shelf.remove(lambda digest: digest not in unwanted)
            return [layer for layer in layers if layer.digest in unwanted and not layer.path.exists()]

    # What was found out, for a while.

    def note(self, key: str, most_age: float) -> bytes | None:
        """Return the note under ``key`` if it was made within ``most_age`` seconds."""
        path = self._notes / key
        try:
            return path.read_bytes() if time.time() - path.stat().st_mtime <= most_age else None
        except OSError:
            return None

    def keep_note(self, key: str, content: bytes, most_age: float) -> None:
        """Note something, and forget what is too old."""
        self._notes.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Two may note the same at once.
        descriptor, pending = tempfile.mkstemp(prefix=".", dir=self._notes)
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(pending, self._notes / key)
        oldest = time.time() - most_age
        for path in _entries(self._notes):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()


def _used_at(layer: Layer) -> float:
    try:
        return (layer.path.parent / "used").stat().st_mtime
    except OSError:
        return 0.0


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
