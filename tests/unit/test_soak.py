"""The soak sees what is left behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from benchmarks import soak
from tests.boxes import is_root
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on


async def test_a_leak_of_forty_descriptors_is_seen_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "SETTLING_SECONDS", 0.5)
    settings = load_settings(
        data_dir=tmp_path, pool_node=0, pool_python=1, pool_blank=1, allow_weak_isolation=not is_root()
    )
    engine = Engine(settings)
    leaked: list[int] = []
    try:
        engine.start()
        await run_on(engine, "print('hello')")
        before = await soak.settled(engine)
        await asyncio.gather(*(run_on(engine, "print('hello')") for _ in range(4)))
        again = await soak.settled(engine)
        assert not {"boxes", "descriptors"} & set(soak.grown(before, again))
        leaked = [os.dup(0) for _ in range(40)]
        after = await soak.settled(engine)
        assert "descriptors" in soak.grown(before, after)
    finally:
        for descriptor in leaked:
            os.close(descriptor)
        await engine.close()
