"""The languages that a runtime offers: each with its image, its version, and how its programs start."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tidebox.errors import InvalidImage, TideboxError, UnknownLanguage
from tidebox.model.box import BoxSpec
from tidebox.model.events import Event, OutputEvent
from tidebox.model.execution_request import ExecutionRequest
from tidebox.model.languages import Language
from tidebox.model.launch import plan_command
from tidebox.model.limits import Limits
from tidebox.model.runtimes import OfferedLanguage, Start
from tidebox.runtime.base import Runtime
from tidebox.runtime.runners import Runners

_LIMITS = Limits(timeout=10.0, output=4096)
# The first caller to ask waits this long for what is not known yet.
_WAIT_SECONDS = 1.0
_VERSION = re.compile(rb"\d+(?:\.\d+)+[0-9A-Za-z.+~-]{0,40}")


class LanguageImages(Mapping[str, str]):
    """The image of each language that a runtime has one for, as it is now: images are made and removed meanwhile."""

    def __init__(self, runners: Runners, runtime: Runtime) -> None:
        self._runners = runners
        self._runtime = runtime
        # Most programs are in these, and to look at them takes no file.
        self._fixed = {
            name: image
            for name, image in runners.languages_of(runtime).items()
            if not runners.may_change(runtime, runners.languages[name])
        }

    def __getitem__(self, name: str) -> str:
        """The image of programs in the language of this very name."""
        if name in self._fixed:
            return self._fixed[name]
        language = self._runners.languages[name]
        if not self._runners.may_change(self._runtime, language):
            raise KeyError(name)
        try:
            return self._runners.image_for(self._runtime, language)
        except (UnknownLanguage, InvalidImage):
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._runners.languages_of(self._runtime))

    def __len__(self) -> int:
        return len(self._runners.languages_of(self._runtime))


class Offers:
    """Finds out, in boxes, what versions there are: once for each image, when somebody asks."""

    def __init__(self, runners: Runners) -> None:
        self._runners = runners
        self._versions: dict[tuple[str, str], str | None] = {}
        """By the digest of the image and the language."""
        self._looking: dict[str, asyncio.Task[None]] = {}

    async def of(self, name: str) -> tuple[OfferedLanguage, ...]:
        """The languages of a runtime that works here."""
        runtime = self._runners[name].runtime
        found = [
            (self._runners.languages[language], image)
            for language, image in self._runners.languages_of(runtime).items()
        ]
        # What images of a container engine hold is known once they are there, and they are not fetched to be asked.
        if not runtime.external:
            await self._look(runtime, found)
        return tuple(
            OfferedLanguage(
                name=language.name,
                aliases=language.aliases,
                image=image,
                version=self._versions.get((_digest(runtime, image), language.name)),
                start=_start(runtime, language, image),
                compiled=bool(language.compile),
                file=language.file,
            )
            for language, image in found
        )

    async def _look(self, runtime: Runtime, found: list[tuple[Language, str]]) -> None:
        """See to the versions that are not known, and wait for them for a while."""
        missing = [
            (language, image)
            for language, image in found
            if language.version and (_digest(runtime, image), language.name) not in self._versions
        ]
        looking = self._looking.get(runtime.name)
        if looking is None and missing:
            looking = asyncio.get_running_loop().create_task(self._find(runtime, missing), name="versions")
            self._looking[runtime.name] = looking
            looking.add_done_callback(lambda _: self._looking.pop(runtime.name, None))
        if looking is not None:
            await asyncio.wait([looking], timeout=_WAIT_SECONDS)

    async def _find(self, runtime: Runtime, missing: list[tuple[Language, str]]) -> None:
        for language, image in missing:
            key = _digest(runtime, image), language.name
            try:
                self._versions[key] = await self._version(runtime, language, image)
            except TideboxError:
                # One that cannot be asked now may be the next time.
                continue

    async def _version(self, runtime: Runtime, language: Language, image: str) -> str | None:
        said: list[bytes] = []

        async def sink(event: Event) -> None:
            if isinstance(event, OutputEvent):
                said.append(event.data)

        launch = replace(plan_command(language.version), direct=True)
        await self._runners.run(
            ExecutionRequest(launch=launch, spec=BoxSpec(runtime=runtime.name, image=image, limits=_LIMITS)), sink
        )
        found = _VERSION.search(b"".join(said))
        return found[0].decode() if found is not None else None

    async def close(self) -> None:
        """Ask nothing any more."""
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _digest(runtime: Runtime, image: str) -> str:
    try:
        return runtime.resolve(image).digest
    except TideboxError:
        return image


def _start(runtime: Runtime, language: Language, image: str) -> Start:
    try:
        return "cold" if language.compile else runtime.start_of(language.cell, image)
    except TideboxError:
        return "cold"
