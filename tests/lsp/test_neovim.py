"""Debian's Neovim, headless, with the configuration that docs/lsp.md shows."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.lsp.editor import COMMAND
from tests.patience import patient

SCRIPT = Path(__file__).with_name("neovim.lua")
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "lsp.md"
_SECONDS = 30.0


def test_neovim_runs_a_file_sees_the_mark_and_sees_it_vanish(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "main.py").write_text("def f(x):\n    return 1 / x\nprint(f(0))\n")
    result = tmp_path / "result.json"
    env = {
        **os.environ,
        "TIDEBOX_LSP": "\n".join(COMMAND),
        "FOLDER": str(folder),
        "RESULT": str(result),
        "PATIENCE": str(patient(_SECONDS)),
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    ran = subprocess.run(
        ["nvim", "--headless", "--clean", "-n", "-c", f"luafile {SCRIPT}", "-c", "cquit"],
        env=env,
        capture_output=True,
        timeout=patient(110),
    )
    assert result.exists(), ran.stderr.decode("utf-8", "replace")
    seen = json.loads(result.read_text())
    assert seen == {
        "attached": True,
        "lens": True,
        "failing": [{"line": 2, "message": "ZeroDivisionError: division by zero"}],
        "vanished": True,
    }


def test_the_documentation_shows_the_configuration_that_was_tested() -> None:
    configuration = SCRIPT.read_text().split("-- configuration\n")[1].split("-- end of the configuration")[0]
    shown = configuration.replace("cmd = command", 'cmd = { "tidebox", "lsp" }').replace(
        "root_dir = folder", "root_dir = vim.fn.getcwd()"
    )
    assert shown in DOCUMENTATION.read_text()
