"""Compiled languages in containers: a compiler, what it makes, and where that may be executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boxes import BoxRunner, start_runner, stop_runner
from tests.docker.daemon import ask, make_image
from tests.docker.images import GCC_IMAGE, NODE_IMAGE
from tests.languages.programs import PROGRAMS
from tests.languages.test_scratch import COPYING, run
from tests.patience import patient
from tests.runtimes import runtime_settings
from tidebox.errors import UnknownLanguage
from tidebox.model.launch import plan_code
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome

C = PROGRAMS["c"]
OWN = """
[languages.bundled]
file = "main.js"
compile = ["cp", "{file}", "{out}/main.js"]
run = ["node", "{out}/main.js"]
image = "%s"
"""

pytestmark = pytest.mark.timeout(patient(300))


@pytest.fixture(scope="module")
def runner(docker_host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxRunner]:
    """An engine whose containers have a compiler, as the operator has chosen."""
    socket = Path(docker_host.removeprefix("unix://"))
    if GCC_IMAGE.encode() not in ask(socket, "GET", "/images/json"):
        make_image(socket, GCC_IMAGE)
    directory = tmp_path_factory.mktemp("docker-compiled")
    (directory / "own.toml").write_text(OWN % NODE_IMAGE)
    runner = start_runner(
        directory / "data",
        language_images=(f"c={GCC_IMAGE}",),
        languages=directory / "own.toml",
        **runtime_settings("docker"),
    )
    yield runner
    stop_runner(runner)


def compiled(runner: BoxRunner, code: str, language: str = "c", **options: object):  # type: ignore[no-untyped-def]
    options = {"memory": 512 * MIB, "compile_timeout": patient(60.0), "timeout": patient(30.0), "pids": 64} | options
    return runner(code, language, **options)


def test_a_program_is_compiled_and_run(runner: BoxRunner) -> None:
    done = compiled(runner, C.greeting, stdin="one\n")
    assert (done.outcome, done.exit_code, done.text) == (Outcome.EXITED, 3, "hello\nONE\n"), done


def test_what_cannot_be_compiled_is_not_run(runner: BoxRunner) -> None:
    done = compiled(runner, C.broken, artifacts=["**"])
    assert (done.outcome, done.exit_code, done.stdout) == (Outcome.COMPILE_FAILED, 1, b"")
    assert re.search(C.complaint, done.stderr.decode())
    assert done.artifacts == {}


def test_compiling_has_a_time_limit_of_its_own(runner: BoxRunner) -> None:
    done = compiled(runner, C.greeting, compile_timeout=0.01)
    assert (done.outcome, done.exit_code) == (Outcome.COMPILE_TIMEOUT, None)
    done = compiled(runner, C.endless, timeout=1.0)
    assert (done.outcome, done.exit_code) == (Outcome.TIMEOUT, None)


def test_memory_is_bounded(runner: BoxRunner) -> None:
    assert compiled(runner, C.hungry, memory=256 * MIB).outcome is Outcome.OOM


def test_files_come_back(runner: BoxRunner) -> None:
    assert compiled(runner, C.writing, artifacts=["**"]).artifacts == {"out.txt": b"made"}


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/scratch", "executed"),
        ("/workspace", "cannot execute: Permission denied"),
        ("/tmp", "cannot execute: Permission denied"),
        ("/dev/shm", "cannot execute: Permission denied"),
    ],
)
def test_only_what_is_in_the_scratch_directory_is_executed(runner: BoxRunner, place: str, said: str) -> None:
    _, output = run(runner, plan_code("c", COPYING.replace("PLACE", place)))
    assert output == said + "\n"


def test_what_is_only_read_cannot_be_executed_either(runner: BoxRunner) -> None:
    code = (
        'const fs = require("fs");\nfs.copyFileSync("/bin/busybox", "/scratch/sh");\n'
        'fs.chmodSync("/scratch/sh", 0o755);\n'
        'console.log(require("child_process").spawnSync("/scratch/sh").error.code);\n'
    )
    assert compiled(runner, code, "bundled").text == "EACCES\n"


def test_a_language_without_an_image_is_told(runner: BoxRunner) -> None:
    with pytest.raises(UnknownLanguage, match="SANDBOX_LANGUAGE_IMAGES names one"):
        compiled(runner, "fn main() {}", "rust")
