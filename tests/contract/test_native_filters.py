"""Filters that the kernel holds for native boxes: few, and freed in waves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.boxes import is_root, native
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import OutputEvent
from tidebox.runtime.native import spawner
from tidebox.runtime.native.box import NativeBox
from tidebox.runtime.native.runtime import NativeRuntime


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[NativeRuntime]:
    engine = Engine(load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root()), pool=False)
    yield native(engine)
    await engine.close()


async def test_all_programs_of_a_box_share_one_filter(runtime: NativeRuntime) -> None:
    """The kernel has room for so many, and some kernels hang when thousands are freed at once."""
    box = await runtime.open(BoxSpec(kind="sandbox"))
    command = Command(argv=["grep", "-h", "Seccomp_filters", "/proc/self/status"])
    for _ in range(2):
        program = await box.exec(command)
        output = b"".join([event.data async for event in program.events() if isinstance(event, OutputEvent)])
        assert output.split() == [b"Seccomp_filters:", b"1"]


async def test_boxes_close_in_waves(runtime: NativeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    closing = most = 0
    kill = NativeBox._kill

    async def count(box: NativeBox) -> None:
        nonlocal closing, most
        closing += 1
        most = max(most, closing)
        await kill(box)
        closing -= 1

    monkeypatch.setattr(spawner, "MOST_CLOSING", 3)
    monkeypatch.setattr(NativeBox, "_kill", count)
    boxes = [await runtime.open(BoxSpec()) for _ in range(8)]
    await asyncio.gather(*(box.close() for box in boxes))
    assert 1 <= most <= 3
