"""What is particular to sandboxes of gVisor: images, memory, and what holds without root."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.boxes import as_user
from tests.images import import_shell
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.errors import ExecFailed
from tidebox.model.result import Outcome

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="control groups and other users are root's")
RUN = (
    "import sys; from tidebox.cli.main import main\n"
    "sys.argv = ['tidebox', 'run', '--runtime', 'gvisor', '-c', 'import os; print(os.getuid())']\n"
    "sys.exit(main())"
)


async def test_an_imported_image_needs_no_interpreter(tmp_path: Path, runsc_path: str) -> None:
    image = import_shell(tmp_path, "shell")
    engine = Engine(load_settings(data_dir=tmp_path, default_runtime="gvisor", gvisor_runsc=runsc_path), pool=False)
    try:
        result = await run_on(engine, command=["sh", "-c", "echo $HOME; echo kept > file"], image="shell")
        assert (result.exit_code, result.stdout) == (0, b"/workspace\n")
        assert engine.runtime.resolve("shell").digest == image.digest
        with pytest.raises(ExecFailed, match="python3"):
            await run_on(engine, command=["python3", "-c", "pass"], image="shell")
    finally:
        await engine.close()


@as_root
async def test_a_program_without_end_of_memory_ends_with_its_box(tmp_path: Path, runsc_path: str) -> None:
    # Most of its memory is seen in processes that the sentry has for it, and the kernel may take one of those.
    hungry = "const b = []; for (;;) b.push(Buffer.alloc(1 << 20, 1))"
    engine = Engine(load_settings(data_dir=tmp_path, default_runtime="gvisor", gvisor_runsc=runsc_path), pool=False)
    try:
        result = await run_on(engine, hungry, "javascript", memory=128 << 20, timeout=60.0)
        assert result.outcome is Outcome.OOM
    finally:
        await engine.close()


@as_root
def test_without_root_what_is_missing_is_refused_or_accepted(runsc_path: str) -> None:
    refused = as_user([sys.executable, "-c", RUN], allow_weak_isolation=False, timeout=90)
    assert refused.returncode != 0
    assert "memory: nothing bounds it: control groups need root here" in refused.stderr
    accepted = as_user([sys.executable, "-c", RUN], allow_weak_isolation=True, timeout=90)
    assert (accepted.returncode, accepted.stdout) == (0, "1000\n"), accepted.stderr
    assert "not enforced here: memory, cpu" in accepted.stderr
