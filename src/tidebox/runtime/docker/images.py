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
from tidebox.model.runtimes import ResolvedImage
from tidebox.runtime.docker.containers import ImageFacts
from tidebox.runtime.docker.engine import Engine, EngineRefused

MAX_NAME = 255

_NAME = re.compile(
    r"(?:[a-zA-Z0-9][a-zA-Z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?\Z"
)
_ID = re.compile(r"sha256:[0-9a-f]{64}\Z")
_MISSING = 404
_MOST_KNOWN = 256
# Between two messages about one pull.
_TELL_SECONDS = 1.0

Tell = Callable[[Preparing], None]


class Images:
    """What is known of an engine's images."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        """``allowed`` are patterns of names; none allow every image."""
        self._allowed = tuple(allowed)
        self._known: OrderedDict[str, ImageFacts] = OrderedDict()

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
        """What a name stands for, as far as that is known without asking."""
        name = self.canonical(name)
        known = self._known.get(name)
        return ResolvedImage(name, known.digest if known is not None else "")

    def known(self) -> list[ResolvedImage]:
        """Those that are known to be there, the default ones first."""
        first = [self._known[name] for name in dict.fromkeys(LANGUAGE_IMAGES.values()) if name in self._known]
        rest = [facts for facts in self._known.values() if facts not in first]
        return [ResolvedImage(facts.name, facts.digest) for facts in (*first, *rest)]

    async def inspect(self, engine: Engine, name: str) -> ImageFacts | None:
        """What the engine says of an image; None where it has none of that name."""
        name = self.canonical(name)
        try:
            found = await engine.call("GET", f"/images/{quote(name)}/json")
        except EngineRefused as error:
            if error.status != _MISSING:
                raise
            self._known.pop(name, None)
            return None
        self._known[name] = facts = _facts(name, found)
        self._known.move_to_end(name)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return facts

    def facts(self, name: str) -> ImageFacts | None:
        """What was said of it last."""
        return self._known.get(self.canonical(name))

    def forget(self, name: str | None = None) -> None:
        """An image, or all, may be gone or another."""
        if name is None:
            self._known.clear()
        else:
            self._known.pop(self.canonical(name), None)

    async def provide(self, engine: Engine, name: str, tell: Tell) -> ImageFacts:
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

    async def _pull(self, engine: Engine, name: str, tell: Tell) -> None:
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
                    progress = line.get("progressDetail") or {}
                    if isinstance(progress, dict) and progress.get("total"):
                        layers[str(line.get("id"))[:64]] = int(progress.get("current") or 0), int(progress["total"])
                    if layers and loop.time() - told >= _TELL_SECONDS:
                        told = loop.time()
                        done, total = (sum(column) for column in zip(*layers.values(), strict=True))
                        tell(Preparing(f"pulling the image {name}: {100 * done // max(total, 1)} %"))
        except EngineRefused as error:
            raise _not_pulled(name, error.message) from None

    async def prepull(self, engine: Engine, names: Sequence[str], tell: Tell) -> None:
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
    """Repository, and tag with digest."""
    start = name.rfind("/") + 1
    repository, mark, tag = name[start:].partition(":")
    if "@" in repository:
        repository, mark, tag = name[start:].partition("@")
    return name[:start] + repository, tag if mark else ""


def _split(name: str) -> tuple[str, str]:
    """Repository, and tag or digest."""
    if "@" in name:
        repository, _, digest = name.partition("@")
        return repository, digest
    repository, _, tag = name.rpartition(":")
    return repository, tag


def _facts(name: str, found: dict[str, Any]) -> ImageFacts:
    config = found.get("Config") or {}
    id = str(found["Id"])
    # One that came from a registry has its digest there; another is known by that of its configuration.
    digests = [str(item).partition("@")[2] for item in found.get("RepoDigests") or ()]
    variables = (str(item).partition("=") for item in config.get("Env") or ())
    return ImageFacts(
        name=name,
        id=id,
        digest=digests[0] if digests and digests[0] else id,
        environment={variable: value for variable, _, value in variables if variable},
        volumes=tuple(map(str, config.get("Volumes") or ())),
    )


def _not_pulled(name: str, reason: str) -> UnknownImage:
    return UnknownImage(f"the engine has no image {name}, and could not pull it: {reason[:500]}", image=name)
