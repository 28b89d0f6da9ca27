"""Work for packages that is done in boxes: asking the interpreters of an image, and compiling what was unpacked."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tidebox.errors import ExecFailed, PackageUnresolvable
from tidebox.model.box import BoxSpec
from tidebox.model.events import Event, OutputEvent
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest, Sink
from tidebox.model.launch import plan_command
from tidebox.model.limits import MIB, Limits
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.runtime.base import NO_FILES, Box, BoxFiles
from tidebox.runtime.images import Image
from tidebox.runtime.machine import processors
from tidebox.runtime.packaging.target import MAX_ANSWER
from tidebox.runtime.packaging.tree import Tree
from tidebox.untrusted_files.trees import TreeLimits, opened, walk

Run = Callable[[ExecutionRequest, Sink, OneShotFlag | None, BoxFiles], Awaitable[ExecutionOutcome]]

_ASK_SECONDS = 20.0
_COMPILE_SECONDS = 300.0
# It is in memory while it is compiled, three times. More source than that is no library that people import.
_MAX_SOURCE_BYTES = 256 * MIB
_MAX_SOURCES = 100_000
_PROCESSORS = min(processors(), 4)
_COMPILED = re.compile(r"[^/\0]+\.cpython-3\d{1,2}(?:\.opt-[12])?\.pyc\Z")


async def ask(run: Run, image: Image, command: Sequence[str]) -> bytes:
    """Return what a program of an image prints, without its layers: these may bring a command of that name.

    Raises ``PackageUnresolvable`` where there is no such program.
    """
    printed: list[bytes] = []

    async def keep(event: Event) -> None:
        if isinstance(event, OutputEvent) and event.stream == "stdout":
            printed.append(event.data)

    limits = Limits(timeout=_ASK_SECONDS, output=MAX_ANSWER)
    # The image's own interpreter, and not one that was parked.
    launch = replace(plan_command(command), direct=True)
    try:
        await run(ExecutionRequest(launch=launch, spec=BoxSpec(image=image.root, limits=limits)), keep, None, NO_FILES)
    except ExecFailed as error:
        raise PackageUnresolvable(
            f"there is no {command[0]} in the image {image.name}, so it can have no packages of it", field="packages"
        ) from error
    return b"".join(printed)


async def compile_all(run: Run, image: str, tree: Tree, scratch: Path) -> None:
    """Compile the Python files of a tree in a box of ``image``, and put the bytecode beside them, which counts.

    The package is only data there. Nothing of it is imported, and files that are no Python stay as they are. So does
    all where there is too much of it: then programs compile what they import.
    """
    sources, compiled = scratch / "sources", scratch / "compiled"
    count, size = _link_sources(tree.root, sources)
    if not count or count > _MAX_SOURCES or size > _MAX_SOURCE_BYTES:
        return
    compiled.mkdir()
    workspace = size * 3 + 64 * MIB
    inodes = count * 4 + 4096
    limits = Limits(
        timeout=_COMPILE_SECONDS,
        memory=512 * MIB + workspace,
        cpus=float(_PROCESSORS),
        workspace=workspace,
        inodes=inodes,
        output=MIB,
    )
    # Without site: a .pth file in the image's directories is code.
    command = ["python3", "-I", "-S", "-m", "compileall", "-q", "-q", "-j", str(_PROCESSORS)]
    command += ["--invalidation-mode", "unchecked-hash", "-s", "/workspace", "-p", "/", "/workspace"]

    async def ignore(_event: Event) -> None:
        pass

    launch = replace(plan_command(command), direct=True)
    kept = TreeLimits(max_bytes=workspace, max_entries=inodes)
    order = ExecutionRequest(launch=launch, spec=BoxSpec(image=image, limits=limits))
    await run(order, ignore, None, _Sources(sources, compiled, kept))
    tree.count(*_take_compiled(compiled, tree.root, inodes), "the bytecode")


class _Sources(BoxFiles):
    """Takes files into a box, and all that is there afterwards out of it."""

    has_input = True

    def __init__(self, sources: Path, compiled: Path, limits: TreeLimits) -> None:
        self._sources = sources
        self._compiled = compiled
        self._limits = limits

    async def copy_in(self, box: Box) -> None:
        await box.place(self._sources)

    async def collect(self, box: Box) -> None:
        await box.collect(self._compiled, self._limits)


def _link_sources(root: Path, target: Path) -> tuple[int, int]:
    """A tree of nothing but the Python files of another; their number and bytes."""
    count = size = 0
    for directory, _, files in os.walk(root):
        sources = [name for name in files if name.endswith(".py")]
        if not sources:
            continue
        place = target / os.path.relpath(directory, root)
        place.mkdir(parents=True, exist_ok=True)
        for name in sources:
            os.link(os.path.join(directory, name), place / name, follow_symlinks=False)
            count += 1
            size += (place / name).stat().st_size
    return count, size


def _take_compiled(compiled: Path, root: Path, most: int) -> tuple[int, int]:
    """Take bytecode out of what a box left, and nothing else of it; its files and bytes."""
    count = size = 0
    with opened(compiled) as directory:
        for entry in walk(directory, max_entries=most):
            parts = entry.path.split("/")
            if not entry.is_file or parts[-2:-1] != ["__pycache__"] or not _COMPILED.match(parts[-1]):
                continue
            beside = root.joinpath(*parts[:-2])
            if not (beside / (parts[-1].partition(".cpython-")[0] + ".py")).is_file():
                continue
            place = beside / "__pycache__"
            place.mkdir(exist_ok=True)
            place.chmod(0o755)
            os.rename(entry.name, place / parts[-1], src_dir_fd=entry.directory)
            (place / parts[-1]).chmod(0o644)
            count += 1
            size += entry.status.st_size
    return count, size
