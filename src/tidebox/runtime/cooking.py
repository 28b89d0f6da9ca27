"""Recipes carried out: packages into a root file system or on top of one, then what is worked out ahead inside it."""

from __future__ import annotations

import os
import platform
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tidebox.errors import InvalidImage, UnsupportedOperation
from tidebox.model.box import BoxSpec, CaptureRule
from tidebox.model.events import Event, OutputEvent, Preparing
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest, Sink
from tidebox.model.launch import WORKSPACE, plan_command
from tidebox.model.limits import GIB, Limits
from tidebox.model.packages import Packages, make_packages
from tidebox.model.recipes import OUT, VERSION, Recipe, Step
from tidebox.model.result import Outcome
from tidebox.runtime.images import Image, ImageStore, with_layers
from tidebox.runtime.layers import Layer, Lock

Tell = Callable[[Preparing], None]
Run = Callable[[ExecutionRequest, Sink], Awaitable[ExecutionOutcome]]

_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}
# Of each step: compilers are what needs most.
_LIMITS = Limits(timeout=600, memory=2 * GIB, workspace=GIB, file_size=GIB, cpus=2, pids=512)
_MOST_KEPT = 4096
MADE_AT = 1577836800
"""The time of every file that is younger."""


def packages_of(recipe: Recipe) -> Packages:
    """The packages that a recipe puts on top; raises ``UnsupportedOperation`` where there are none for this machine."""
    return make_packages(node=[_named(item) for item in recipe.node])


def _named(text: str) -> str:
    """A text of a recipe with npm's word for this machine in it."""
    if "{arch}" not in text:
        return text
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise UnsupportedOperation(f"this recipe has nothing for {machine}")
    return text.replace("{arch}", _ARCHITECTURES[machine])


async def finished(recipe: Recipe, image: Image, store: ImageStore, run: Run, tell: Tell) -> Image:
    """The image with what the recipe's steps leave on top of it, and its links."""
    if not recipe.steps and not recipe.links:
        return image
    lock = Lock("files", {"recipe": recipe.name, "version": str(VERSION), "base": image.digest}, ())
    layer = store.layers.get(lock.digest)
    if layer is None:
        found: dict[str, bytes] = {}
        for number, step in enumerate(recipe.steps, 1):
            tell(Preparing(f"working out what is needed ahead ({number} of {len(recipe.steps)})"))
            found |= await _taken(step, image, run)
        layer = _published(recipe, found, store, lock)
    return with_layers(image, [layer])


async def _taken(step: Step, image: Image, run: Run) -> Mapping[str, bytes]:
    """Run a step in a box of ``image`` and return the files that it leaves, by paths from the root on."""
    said: list[bytes] = []

    async def sink(event: Event) -> None:
        if isinstance(event, OutputEvent):
            said.append(event.data)

    order = ExecutionRequest(
        launch=replace(plan_command(step.command), direct=True),
        spec=BoxSpec(image=image.name, limits=_LIMITS),
        files={f"{WORKSPACE}/{name}": content for name, content in step.files},
        capture=CaptureRule((f"{OUT}/**",), max_file_bytes=GIB, max_total_bytes=GIB, max_files=_MOST_KEPT),
    )
    ending = await run(order, sink)
    if ending.outcome is not Outcome.EXITED or ending.exit_code != 0:
        last = b"".join(said)[-2000:].decode("utf-8", "replace").strip()
        raise InvalidImage(f"a step of the recipe failed ({ending.outcome.value}, {ending.exit_code}): {last}")
    assert ending.captured is not None
    if ending.captured.skipped:
        raise InvalidImage("a step of the recipe left more than an image may have")
    return {path.removeprefix(f"{OUT}/"): content for path, content in ending.captured.files.items()}


def _published(recipe: Recipe, files: Mapping[str, bytes], store: ImageStore, lock: Lock) -> Layer:
    with store.layers.building(lock), store.layers.staging() as staging:
        root = staging / "files"
        root.mkdir()
        for path, content in files.items():
            target = _place(root, path)
            target.write_bytes(content)
            target.chmod(0o644)
            os.utime(target, (MADE_AT, MADE_AT))
        for path, link in recipe.links:
            _place(root, path).symlink_to(_named(link))
        return store.layers.publish(staging, lock, sum(map(len, files.values())))


def _place(root: Path, path: str) -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
