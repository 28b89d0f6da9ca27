"""A runner per runtime: its driver and its pool, made when the first run or probe asks for that runtime."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tidebox.errors import (
    InvalidImage,
    PolicyUnsupported,
    RuntimeUnavailable,
    StartupTimeout,
    UnknownImage,
    UnknownLanguage,
)
from tidebox.model.box import BoxSpec
from tidebox.model.events import Preparing
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest, Sink
from tidebox.model.images import HOST, LANGUAGE_IMAGES, image_of
from tidebox.model.languages import BUILT_IN, Language, Languages
from tidebox.model.launch import Launch
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.packages import NO_PACKAGES, Packages
from tidebox.model.recipes import RECIPES
from tidebox.model.runtimes import ResolvedImage
from tidebox.runtime.base import NO_FILES, BoxFiles, Runner, Runtime
from tidebox.runtime.driver import NEVER_STARTED, Driver
from tidebox.runtime.pool import Pool

Tell = Callable[[Preparing], None]
PackageProvider = Callable[[str, Packages, Tell, str], Awaitable[str]]
Prepare = Callable[[Tell], Coroutine[Any, Any, BoxSpec]]

# What is left of a start whose image took all of its time, so that the driver is the one to say so.
_LEAST_START_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class RuntimeRunner:
    """One runtime with its pool and its driver."""

    runtime: Runtime
    pool: Pool
    driver: Driver

    async def close(self) -> None:
        """End everything; nothing is left behind."""
        try:
            await self.pool.close()
            await self.driver.close()
        finally:
            await self.runtime.close()


class Runners(Runner):
    """Runs each order on the runtime that its spec names, or on the default one."""

    def __init__(
        self,
        make: Callable[[str], RuntimeRunner],
        default: str,
        provide: PackageProvider | None = None,
        images: Mapping[str, str] = MappingProxyType({}),
        languages: Languages = BUILT_IN,
        *,
        host_tools: bool = True,
    ) -> None:
        """``make`` is called once for each runtime that is used; it raises for one that there is not.

        ``provide`` gives the name of an image that has packages on top, ``images`` are those of languages where the
        usual ones will not do. Without ``host_tools`` a language that has a recipe is there only where its image was
        made, or one was chosen for it: not because the machine happens to have its compiler.
        """
        self._images = images
        self.languages = languages
        self._host_tools = host_tools
        self._make = make
        self._provide = provide
        self._made: dict[str, RuntimeRunner] = {}
        self._default = default
        self._keeps_cells = False
        self.on_unavailable: Callable[[str], None] = lambda name: None
        """Told the name of a runtime that comes and goes when a run finds that it is gone."""

    def __getitem__(self, name: str) -> RuntimeRunner:
        """The runner of a runtime; raises ``RuntimeUnavailable`` where there is none of that name."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[RuntimeRunner]:
        """Those that were made so far."""
        return iter(self._made.values())

    @property
    def default(self) -> RuntimeRunner:
        """The runner of orders that name no runtime."""
        return self[self._default]

    def start(self) -> None:
        """Keep cells ready from now on: of the default runtime at once, of others from their first run on."""
        self._keeps_cells = True
        self.default.pool.start()

    def run(
        self, order: ExecutionRequest, sink: Sink, cancel: OneShotFlag | None = None, files: BoxFiles = NO_FILES
    ) -> Coroutine[Any, Any, ExecutionOutcome]:
        """Run ``order`` on its runtime."""
        runner = self[order.spec.runtime or self._default]
        spec = order.spec
        if spec.image == HOST and (order.launch.language or not runner.runtime.shows_host):
            image = self._image_of_launch(runner.runtime, order.launch)
            if image != HOST:
                spec = replace(spec, image=image)
                order = replace(order, spec=spec)
        if spec.packages:
            return self._run_prepared(order, lambda tell: self.with_packages(spec, tell), sink, cancel, files)
        if self._keeps_cells:
            runner.pool.start()
        if not runner.runtime.external:
            return runner.driver.run(order, sink, cancel, files)
        if runner.runtime.is_provided(order.spec.image):
            running = runner.driver.run(order, sink, cancel, files)
        else:
            running = self._run_provided(runner, order, sink, cancel, files)
        return self._watched(runner.runtime.name, running)

    async def _run_provided(
        self, runner: RuntimeRunner, order: ExecutionRequest, sink: Sink, cancel: OneShotFlag | None, files: BoxFiles
    ) -> ExecutionOutcome:
        """Run ``order`` when its image is there, in what is then left of the time that its start may take."""
        loop = asyncio.get_running_loop()
        until = loop.time() + order.startup_timeout

        async def provided(tell: Tell) -> BoxSpec:
            limit = asyncio.timeout_at(until)
            try:
                async with limit:
                    await runner.runtime.provide(order.spec.image, tell)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise StartupTimeout(
                    f"the image {order.spec.image} was not there within {order.startup_timeout:g} s", step="image"
                ) from None
            return order.spec

        if await self._prepared(provided, sink, cancel) is None:
            return NEVER_STARTED
        left = max(until - loop.time(), _LEAST_START_SECONDS)
        return await runner.driver.run(replace(order, startup_timeout=left), sink, cancel, files)

    async def _watched(self, name: str, running: Coroutine[Any, Any, ExecutionOutcome]) -> ExecutionOutcome:
        try:
            return await running
        except RuntimeUnavailable:
            self.on_unavailable(name)
            raise

    def _image_of_launch(self, runtime: Runtime, launch: Launch) -> str:
        if launch.language:
            return self.image_for(runtime, self.languages.named(launch.language))
        return self.image_of(runtime, HOST, self.languages.of_command(launch.command[0]))

    def image_for(self, runtime: Runtime, language: Language) -> str:
        """The image of programs in a language whose caller names none; raises ``UnknownLanguage`` where none has it."""
        if found := self._images.get(language.name) or language.image:
            return found
        if not runtime.shows_host:
            if language.name in LANGUAGE_IMAGES:
                return LANGUAGE_IMAGES[language.name]
            raise UnknownLanguage(
                f"the runtime {runtime.name} has no image for {language.name}; SANDBOX_LANGUAGE_IMAGES names one",
                language=language.name,
            )
        if not language.recipe:
            # What of it is not there is told by what executes it.
            return HOST
        image = RECIPES[language.recipe].image
        try:
            return runtime.resolve(image).name
        except UnknownImage:
            if self._host_tools and all(map(runtime.has_command, language.needs)):
                return HOST
        raise UnknownLanguage(
            f"nothing here has {language.name}; `tidebox image build --recipe {language.recipe}` makes an image that "
            "has it",
            language=language.name,
        )

    def may_change(self, runtime: Runtime, language: Language) -> bool:
        """Whether a language comes with an image that may be made, or removed, at any time."""
        chosen = self._images.get(language.name) or language.image
        return not chosen and runtime.shows_host and bool(language.recipe)

    def languages_of(self, runtime: Runtime) -> dict[str, str]:
        """The languages that there is an image for, with that image."""
        found = {}
        for language in self.languages:
            try:
                image = self.image_for(runtime, language)
            except (UnknownLanguage, InvalidImage):
                continue
            if image != HOST or all(map(runtime.has_command, language.needs)):
                found[language.name] = image
        return found

    def image_of(self, runtime: Runtime, image: str, language: str) -> str:
        """Resolve an image's name in a runtime, for a command that starts a program in some language."""
        return image if runtime.shows_host else image_of(image, language, self._images)

    def resolve(self, name: str, image: str, language: str) -> ResolvedImage:
        """The same, as the runtime of a name knows it; raises ``UnknownImage``."""
        runtime = self[name].runtime
        return runtime.resolve(self.image_of(runtime, image, language))

    def image_with(self, name: str, language: Language) -> str:
        """The image of programs in a language in the runtime of a name; raises ``UnknownLanguage``."""
        return self.image_for(self[name].runtime, language)

    async def with_packages(self, spec: BoxSpec, tell: Tell) -> BoxSpec:
        """The same box, with its packages in its image; ``tell`` hears what is being done for them."""
        if not spec.packages:
            return spec
        runtime = self[spec.runtime or self._default].runtime
        if self._provide is None or not runtime.features.layers:
            raise PolicyUnsupported(
                f"the runtime {runtime.name} has no packages on top of its images", field="packages"
            )
        image = await self._provide(spec.image, spec.packages, tell, spec.packages_for)
        return replace(spec, image=image, packages=NO_PACKAGES, packages_for="")

    async def _run_prepared(
        self, order: ExecutionRequest, prepare: Prepare, sink: Sink, cancel: OneShotFlag | None, files: BoxFiles
    ) -> ExecutionOutcome:
        spec = await self._prepared(prepare, sink, cancel)
        if spec is None:
            return NEVER_STARTED
        return await self.run(replace(order, spec=spec), sink, cancel, files)

    async def _prepared(self, prepare: Prepare, sink: Sink, cancel: OneShotFlag | None) -> BoxSpec | None:
        """Return what ``prepare`` makes of a box, while ``sink`` hears of it; None where it was cancelled meanwhile."""
        messages: asyncio.Queue[Preparing | None] = asyncio.Queue()
        preparing = asyncio.get_running_loop().create_task(prepare(messages.put_nowait))
        preparing.add_done_callback(lambda _: messages.put_nowait(None))

        def give_up() -> None:
            preparing.cancel()

        if cancel is not None:
            cancel.on_set(give_up)
        try:
            while (message := await messages.get()) is not None:
                await sink(message)
            return None if preparing.cancelled() else preparing.result()
        finally:
            preparing.cancel()
            if cancel is not None:
                cancel.forget(give_up)

    def let_go(self, name: str) -> None:
        """Close the box that is kept under a name, on any runtime."""
        for runner in self:
            runner.driver.let_go(name)

    async def close(self) -> None:
        """Close every runner that was made."""
        # One after the other in this task: a close that is cancelled over it still leaves nothing behind.
        async with contextlib.AsyncExitStack() as stack:
            for runner in self:
                stack.push_async_callback(runner.close)
