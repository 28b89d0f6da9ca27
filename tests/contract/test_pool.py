"""The pool: which cell was there changes the time a program waits, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.boxes import is_root
from tidebox.config import load_settings
from tidebox.embedded import Collector, Engine, run_on
from tidebox.model.box import BoxSpec, Command
from tidebox.model.launch import plan_code, plan_command
from tidebox.model.limits import Limits
from tidebox.model.result import ExecError

Start = Callable[..., Coroutine[Any, Any, Engine]]
READY = {
    "parked": {"pool_python": 1, "pool_blank": 0},
    "blank": {"pool_python": 0, "pool_blank": 1},
    "nothing": {"pool_python": 0, "pool_blank": 0},
}


@pytest.fixture
async def start(runtime_name: str, tmp_path: Path) -> AsyncIterator[Start]:
    engines: list[Engine] = []

    async def make(**settings: Any) -> Engine:
        options = {"pool_node": 0, "pool_python": 0, "pool_blank": 0, "allow_weak_isolation": not is_root()} | settings
        engine = Engine(load_settings(data_dir=tmp_path, default_runtime=runtime_name, **options))
        engine.start()
        engines.append(engine)
        await engine.pool.filled()
        return engine

    yield make
    for engine in engines:
        await engine.close()


@pytest.mark.parametrize("ready", READY)
async def test_a_program_runs_the_same_whatever_was_ready(start: Start, ready: str) -> None:
    engine = await start(**READY[ready])
    result = await run_on(engine, "import os, sys; print(sys.argv, os.getpid() > 1); sys.exit(3)")
    assert (result.stdout, result.exit_code) == (b"['/workspace/main.py'] True\n", 3)


@pytest.mark.parametrize("ready", READY)
@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["sh", "-c", "echo $A; pwd; exit 4"], 4, b"b\n/workspace\n"),
        (["no-such-program"], 127, b"no-such-program: No such file or directory\n"),
        (["/etc/passwd"], 126, b"/etc/passwd: Permission denied\n"),
    ],
)
async def test_a_command_ends_the_same_whatever_was_ready(
    start: Start, ready: str, command: list[str], code: int, text: bytes
) -> None:
    result = await run_on(await start(**READY[ready]), command=command, env={"A": "b"})
    assert (result.exit_code, result.stdout + result.stderr) == (code, text)


@pytest.mark.parametrize("ready", READY)
async def test_a_failed_exec_is_a_fact_and_not_read_off_the_output(start: Start, ready: str) -> None:
    engine = await start(**READY[ready])
    for command, code, not_started in (
        (["no-such-program"], 127, ExecError("no-such-program", errno.ENOENT)),
        (["/etc/passwd"], 126, ExecError("/etc/passwd", errno.EACCES)),
        (["/etc/passwd/x"], 127, ExecError("/etc/passwd/x", errno.ENOTDIR)),
        (["sh", "-c", "echo 'sh: No such file or directory' >&2; exit 127"], 127, None),
    ):
        await engine.pool.filled()
        ending = await engine.run(plan_command(command), Collector(), limits=Limits())
        assert (ending.exit_code, ending.not_started) == (code, not_started)


@pytest.mark.parametrize("ready", READY)
@pytest.mark.parametrize(
    "command",
    [["true"], ["python3", "-c", "print(1)"], ["node", "-e", "1"], ["sh", "-c", "true"], ["no-such-program"]],
)
async def test_a_working_directory_that_is_not_there_is_a_fact_of_its_own(
    start: Start, ready: str, command: list[str]
) -> None:
    engine = await start(**READY[ready])
    for cwd, number in (("/no/such", errno.ENOENT), ("/etc/passwd", errno.ENOTDIR)):
        await engine.pool.filled()
        output = Collector()
        ending = await engine.run(plan_command(command, cwd=cwd), output, limits=Limits())
        assert (ending.exit_code, ending.not_started) == (126, ExecError(command[0], number, cwd))
        assert not output.parts["stdout"]


# Each prints the flags of its standard streams before it uses them, and then writes more than a pipe holds.
FLAGS = {
    "python": """
import os
found = [line for fd in "012" for line in open(f"/proc/self/fdinfo/{fd}") if line.startswith("flags")]
os.write(1, "".join(found).encode())
os.write(2, bytes(1 << 20))
""",
    "javascript": """
const fs = require("fs");
const flags = (fd) => fs.readFileSync("/proc/self/fdinfo/" + fd, "utf8").match(/flags.*\\n/)[0];
fs.writeSync(1, flags(0) + flags(1) + flags(2));
fs.writeSync(2, Buffer.alloc(1 << 20));
""",
    "shell": "for fd in 0 1 2; do grep flags /proc/$$/fdinfo/$fd; done; head -c 1048576 /dev/zero >&2",
    "elixir": """
for fd <- 0..2, do: IO.write(hd(Regex.run(~r/flags.*\\n/, File.read!("/proc/self/fdinfo/#{fd}"))))
IO.binwrite(:stderr, :binary.copy(<<0>>, 1_048_576))
""",
}


def outside(code: str, language: str, directory: Path) -> bytes:
    """What the flags are on plain pipes."""
    launch = plan_code(language, code)
    file = directory / Path(launch.command[1]).name
    file.write_text(code)
    done = subprocess.run([launch.command[0], file], input=b"", capture_output=True, timeout=60, check=True)
    assert len(done.stderr) == 1 << 20
    return done.stdout


@pytest.mark.parametrize("ready", READY)
async def test_standard_streams_are_plain_pipes(start: Start, ready: str, tmp_path: Path) -> None:
    engine = await start(**READY[ready], pool_node=READY[ready]["pool_python"])
    # Its cell is parked the same way whatever is ready, and takes its time.
    languages = [language for language in FLAGS if language != "elixir" or ready == "nothing"]
    for language in languages:
        result = await run_on(engine, FLAGS[language], language)
        assert (result.exit_code, len(result.stderr)) == (0, 1 << 20), language
        assert result.stdout == outside(FLAGS[language], language, tmp_path), language


async def test_standard_streams_in_a_sandbox_are_plain_pipes(start: Start, tmp_path: Path) -> None:
    engine = await start()
    box = await engine.runtime.open(BoxSpec(kind="sandbox"))
    try:
        for language, code in FLAGS.items():
            launch = plan_code(language, code)
            await box.files.write(launch.command[1], code.encode())
            collector = Collector()
            program = await box.exec(Command(argv=launch.command))
            await program.end_input()
            async for event in program.events():
                await collector(event)
            assert len(b"".join(collector.parts["stderr"])) == 1 << 20, language
            assert b"".join(collector.parts["stdout"]) == outside(code, language, tmp_path), language
    finally:
        await box.close()


async def test_a_cell_serves_once_and_is_replaced(start: Start) -> None:
    engine = await start(pool_python=1)
    (before,) = engine.pool.made()
    first = await run_on(engine, "open('/tmp/mark', 'w').close()")
    assert first.exit_code == 0
    await engine.pool.filled()
    (after,) = engine.pool.made()
    assert after > before
    assert (await run_on(engine, "import os; print(os.path.exists('/tmp/mark'))")).stdout == b"False\n"


async def test_more_at_once_than_are_ready(start: Start) -> None:
    engine = await start(pool_python=1, pool_blank=1)
    results = await asyncio.gather(*(run_on(engine, f"print({number})") for number in range(6)))
    assert [result.stdout for result in results] == [b"%d\n" % number for number in range(6)]


async def test_no_cell_grows_older_than_its_age(start: Start) -> None:
    engine = await start(pool_python=1, pool_max_age_sec=1.0)
    (before,) = engine.pool.made()
    deadline = time.monotonic() + 30
    while engine.pool.made() in ([], [before]):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert engine.pool.made()[0] - before >= 1.0


async def test_what_is_kept_once_used_is_not_kept_before(start: Start) -> None:
    engine = await start(pool_elixir=1)
    assert engine.pool.made() == []
    assert (await run_on(engine, "print('not for this')")).ok
    await engine.pool.filled()
    assert engine.pool.made() == []
    before: list[float] = []
    for _ in range(3):
        assert (await run_on(engine, 'IO.puts("hello")', "elixir")).stdout == b"hello\n"
        await engine.pool.filled()
        assert len(engine.pool.made()) == 1
        assert engine.pool.made() > before
        before = engine.pool.made()


async def test_a_cell_that_uses_more_than_is_allowed_is_not_used(start: Start) -> None:
    if not is_root():
        pytest.skip("needs a cgroup, which an ordinary user has only where one is delegated")
    engine = await start(pool_node=1)
    result = await run_on(engine, "console.log('fits')", "javascript", memory=32 << 20)
    assert result.stdout == b"fits\n"
