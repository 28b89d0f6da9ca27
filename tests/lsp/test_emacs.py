"""Debian's Emacs with eglot, headless, with the configuration that docs/lsp.md shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lsp.editor import COMMAND
from tests.patience import patient

SCRIPT = Path(__file__).with_name("emacs.el")
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "lsp.md"
_SECONDS = 60.0


def has_eglot() -> bool:
    """Whether there is an Emacs that has it: from 29 on each, before that by a package."""
    if shutil.which("emacs") is None:
        return False
    found = subprocess.run(["emacs", "--batch", "-q", "--eval", "(require 'eglot)"], capture_output=True, timeout=60)
    return found.returncode == 0


def test_emacs_runs_a_file_sees_the_mark_and_sees_it_vanish(tmp_path: Path) -> None:
    if not has_eglot():
        pytest.skip("there is no Emacs with eglot: `make test-vscode` installs it")
    folder = tmp_path / "folder"
    folder.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / "main.py").write_text("def f(x):\n    return 1 / x\nprint(f(0))\n")
    result = tmp_path / "result.json"
    env = {
        **os.environ,
        "TIDEBOX_LSP": "\n".join(COMMAND),
        "FOLDER": str(folder),
        "RESULT": str(result),
        "PATIENCE": str(patient(_SECONDS)),
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    ran = subprocess.run(
        ["emacs", "--batch", "-q", "-l", str(SCRIPT)], cwd=folder, env=env, capture_output=True, timeout=patient(200)
    )
    assert result.exists(), ran.stderr.decode("utf-8", "replace")
    assert json.loads(result.read_text()) == {
        "failing": [{"line": 2, "message": "tidebox [exit 1]: ZeroDivisionError: division by zero"}],
        "vanished": True,
    }


def test_the_documentation_shows_the_configuration_that_was_tested() -> None:
    configuration = SCRIPT.read_text().split(";; configuration\n")[1].split(";; end of the configuration")[0]
    assert configuration.replace("sh-mode) command)", 'sh-mode) \'("tidebox" "lsp"))') in DOCUMENTATION.read_text()
