"""The images of an engine: what their names stand for, which ones may be used, and pulling those that are not there."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from tidebox.errors import InvalidImage, TideboxError, UnknownImage
from tidebox.model.events import Preparing
from tidebox.model.images import LANGUAGE_IMAGES, image_of
from tidebox.model.launch import SCRATCH, WORKSPACE
from tidebox.model.runtimes import ResolvedImage
from tidebox.runtime import launchers
from tidebox.runtime.docker.containers import ImageFacts
from tidebox.runtime.docker.engine import DockerEngine, EngineRefused

MAX_NAME = 255

_NAME = re.compile(
    r"(?:[a-zA-Z0-9][a-zA-Z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?\Z"
)
_ID = re.compile(r"sha256:[0-9a-f]{64}\Z")
_MISSING = 404
_MOST_KNOWN = 256
# Between two messages about one pull.
_TELL_SECONDS = 1.0
_MOST_LAYERS = 1024
# What a program's own variables have room beside; an engine takes minutes over very many.
_MOST_VARIABLES, _MOST_ENVIRONMENT = 1024, 65_536
_MOST_VOLUMES = 64
# Where a container has what is the engine's or ours.
_TAKEN = ("/proc", "/sys", "/dev", launchers.DIRECTORY)
_PLACES = (*_TAKEN, "/dev/shm", "/tmp", WORKSPACE, SCRATCH)
# How engines, written in Go, mark a symbolic link in the mode of a file.
_LINK = 1 << 27

Tell = Callable[[Preparing], None]


class DockerImages:
    """The known facts of an engine's images, and the patterns of the names that are allowed."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        """``allowed`` are patterns of names; none allow every image."""
        self._allowed = tuple(allowed)
        self._known: OrderedDict[str, ImageFacts] = OrderedDict()
        self._vetted: OrderedDict[str, None] = OrderedDict()

    def canonical(self, name: str) -> str:
        """The name by which the engine knows it; raises ``UnknownImage`` for one that it cannot have or may not."""
        name = image_of(name, "", {})
        if len(name) > MAX_NAME or not (_NAME.match(name) or _ID.match(name)):
            raise UnknownImage(f"not the name of an image: {name[:MAX_NAME]!r}", image=name[:MAX_NAME])
        if not _ID.match(name) and ":" not in name.rpartition("/")[2]:
            name += ":latest"
        if self._allowed and not any(_allows(pattern, name) for pattern in self._allowed):
            raise UnknownImage(
                f"the image {name} is not one of those that this server allows: {', '.join(self._allowed)}", image=name
            )
        return name

    def resolve(self, name: str) -> ResolvedImage:
        """Resolve an image's name, as far as that is known without asking the engine."""
        name = self.canonical(name)
        known = self._known.get(name)
        return ResolvedImage(name, known.digest if known is not None else "")

    def known(self) -> list[ResolvedImage]:
        """Those that are known to be there, the default ones first."""
        first = [self._known[name] for name in dict.fromkeys(LANGUAGE_IMAGES.values()) if name in self._known]
        rest = [facts for facts in self._known.values() if facts not in first]
        return [ResolvedImage(facts.name, facts.digest) for facts in (*first, *rest)]

    async def inspect(self, engine: DockerEngine, name: str) -> ImageFacts | None:
        """Ask the engine for an image's facts and remember them; None where it has none of that name."""
        name = self.canonical(name)
        try:
            found = await engine.call("GET", f"/images/{quote(name)}/json")
        except EngineRefused as error:
            if error.status != _MISSING:
                raise
            self._known.pop(name, None)
            return None
        with engine.understood("the image"):
            self._known[name] = facts = image_facts(name, found)
        self._known.move_to_end(name)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return facts

    def facts(self, name: str) -> ImageFacts | None:
        """Return the facts that the engine gave last; None where there are none."""
        return self._known.get(self.canonical(name))

    def forget(self, name: str | None = None) -> None:
        """An image, or all, may be gone or another."""
        if name is None:
            self._known.clear()
        else:
            self._known.pop(self.canonical(name), None)

    async def provide(self, engine: DockerEngine, name: str, tell: Tell) -> ImageFacts:
        """The image, pulled where it is not there; raises ``UnknownImage`` or ``InvalidImage`` where it cannot be had.

        Several who wait for one image wait for one pull of the engine's.
        """
        name = self.canonical(name)
        facts = self._known.get(name) or await self.inspect(engine, name)
        if facts is not None:
            return facts
        if _ID.match(name):
            raise UnknownImage(f"the engine has no image {name}", image=name)
        await self._pull(engine, name, tell)
        facts = await self.inspect(engine, name)
        if facts is None:
            raise InvalidImage(f"the image {name} was pulled and is not there", image=name)
        return facts

    async def vet(self, engine: DockerEngine, image: ImageFacts, container: str) -> None:
        """Refuse an image by which what is mounted at a place of ours would land elsewhere; seen in a container of it
        that was not started yet."""
        if image.id in self._vetted:
            return
        for place in _PLACES:
            found = await engine.stat(container, place)
            with engine.understood("a file"):
                if found is not None and int(found["mode"]) & _LINK:
                    raise InvalidImage(f"in the image {image.name} {place} is a symbolic link", image=image.name)
        self._vetted[image.id] = None
        while len(self._vetted) > _MOST_KNOWN:
            self._vetted.popitem(last=False)

    async def _pull(self, engine: DockerEngine, name: str, tell: Tell) -> None:
        tell(Preparing(f"pulling the image {name}"))
        repository, tag = _split(name)
        loop = asyncio.get_running_loop()
        layers: dict[str, tuple[int, int]] = {}
        told = loop.time()
        try:
            query = {"fromImage": repository, "tag": tag}
            async with contextlib.aclosing(engine.lines("POST", "/images/create", query=query)) as lines:
                async for line in lines:
                    if problem := line.get("error"):
                        raise _not_pulled(name, str(problem))
                    with engine.understood("the progress of a pull"):
                        progress = line.get("progressDetail") or {}
                        if progress.get("total") and len(layers) < _MOST_LAYERS:
                            layers[str(line.get("id"))[:64]] = int(progress.get("current") or 0), int(progress["total"])
                    if layers and loop.time() - told >= _TELL_SECONDS:
                        told = loop.time()
                        done, total = (sum(column) for column in zip(*layers.values(), strict=True))
                        tell(Preparing(f"pulling the image {name}: {100 * done // max(total, 1)} %"))
        except EngineRefused as error:
            raise _not_pulled(name, error.message) from None

    async def prepull(self, engine: DockerEngine, names: Sequence[str], tell: Tell) -> None:
        """Have these images before anybody asks for them, as far as they can be had."""
        for name in names:
            try:
                await self.provide(engine, name, tell)
            except TideboxError as error:
                tell(Preparing(error.message))


def _allows(pattern: str, name: str) -> bool:
    """Whether a pattern is for this image: repository and tag apart, for the port of a registry looks like a tag."""
    repository, tag = _parts(name)
    wanted, wanted_tag = _parts(pattern)
    return fnmatch.fnmatchcase(repository, wanted) and fnmatch.fnmatchcase(tag, wanted_tag or "*")


def _parts(name: str) -> tuple[str, str]:
    """Repository, and tag; where there is a digest that, for an engine does not look at the tag then."""
    start = name.rfind("/") + 1
    tagged, _, digest = name[start:].partition("@")
    repository, _, tag = tagged.partition(":")
    return name[:start] + repository, digest or tag


def _split(name: str) -> tuple[str, str]:
    """Repository, and tag or digest."""
    if "@" in name:
        repository, _, digest = name.partition("@")
        return repository, digest
    repository, _, tag = name.rpartition(":")
    return repository, tag


def image_facts(name: str, found: dict[str, Any]) -> ImageFacts:
    """Parse the engine's answer about an image; raises ``InvalidImage`` for one that no container can be made of."""
    config = found.get("Config") or {}
    id = str(found["Id"])
    # One that came from a registry has its digest there; another is known by that of its configuration.
    digests = [str(item).partition("@")[2] for item in found.get("RepoDigests") or ()]
    environment = [str(item) for item in config.get("Env") or ()]
    if len(environment) > _MOST_VARIABLES or sum(map(len, environment)) > _MOST_ENVIRONMENT:
        raise InvalidImage(
            f"the environment of the image {name} is larger than {_MOST_VARIABLES} variables of {_MOST_ENVIRONMENT} "
            "characters together",
            image=name,
        )
    volumes = [str(path) for path in config.get("Volumes") or ()]
    if len(volumes) > _MOST_VOLUMES:
        raise InvalidImage(f"the image {name} has more than {_MOST_VOLUMES} volumes", image=name)
    variables = (item.partition("=") for item in environment)
    return ImageFacts(
        name=name,
        id=id,
        digest=digests[0] if digests and digests[0] else id,
        environment={variable: value for variable, _, value in variables if variable},
        volumes=tuple(dict.fromkeys(_place(name, path) for path in volumes)),
    )


def _place(name: str, path: str) -> str:
    """Return the path of an image's volume as an engine mounts it; raises ``InvalidImage`` where that may not be.

    An engine takes what has another name there for something else, and leaves it a directory of its disk, of no size;
    one that does not begin at the root has no name at all by which that could be told.
    """
    parts = [part for part in path.split("/") if part]
    place = "/" + "/".join(parts)
    # Our own directory itself is covered; anything below it would cover that.
    taken = any(place == other or place.startswith(f"{other}/") for other in _TAKEN) and place != launchers.DIRECTORY
    if not parts or taken or not path.startswith("/") or {".", ".."} & set(parts):
        raise InvalidImage(f"the image {name} has a volume at {path[:MAX_NAME]!r}, where none may be", image=name)
    return place


def _not_pulled(name: str, reason: str) -> UnknownImage:
    return UnknownImage(f"the engine has no image {name}, and could not pull it: {reason[:500]}", image=name)
