"""Containers that are kept ready: each serves one program, as a fresh one would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.docker.images import BUSYBOX_IMAGE, NODE_IMAGE, PYTHON_IMAGE
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome


@pytest.fixture
async def engine(docker_host: str, tmp_path: Path) -> AsyncIterator[Engine]:
    settings = load_settings(data_dir=tmp_path, default_runtime="docker", docker_host=docker_host, docker_warm=1)
    engine = Engine(settings)
    engine.start()
    yield engine
    await engine.close()


async def ready(engine: Engine) -> None:
    async with asyncio.timeout(60):
        await engine.pool.filled()
    assert engine.pool.parked_total() == 1


async def test_a_parked_interpreter_serves_one_program_and_another_takes_its_place(engine: Engine) -> None:
    code = "import os\nprint(__file__, os.listdir())\nopen('left', 'w').write('x')"
    said = [(await run_on(engine, code, image=PYTHON_IMAGE)).text]
    for _ in range(2):
        await ready(engine)
        said.append((await run_on(engine, code, image=PYTHON_IMAGE)).text)
    assert said == ["/workspace/main.py ['main.py']\n"] * 3


async def test_what_it_may_use_is_that_of_its_program(engine: Engine) -> None:
    assert (await run_on(engine, "print(1)", image=PYTHON_IMAGE)).ok
    await ready(engine)
    result = await run_on(engine, "x = bytearray(200 << 20)", image=PYTHON_IMAGE, memory=96 * MIB)
    assert result.outcome is Outcome.OOM
    await ready(engine)
    result = await run_on(engine, "import time; time.sleep(60)", image=PYTHON_IMAGE, timeout=0.5)
    assert result.outcome is Outcome.TIMEOUT


async def test_other_interpreters_and_plain_commands_have_ready_ones_too(engine: Engine) -> None:
    for _ in range(2):
        result = await run_on(
            engine, "console.log(require('fs').readdirSync('.').length)", "javascript", image=NODE_IMAGE
        )
        assert result.text == "1\n"
        await ready(engine)


async def test_a_command_runs_in_a_container_that_waits_without_an_interpreter(engine: Engine) -> None:
    for _ in range(2):
        result = await run_on(engine, command=["sh", "-c", "echo $0 hello; ls -A"], image=BUSYBOX_IMAGE)
        assert result.text == "sh hello\n"
        await ready(engine)
