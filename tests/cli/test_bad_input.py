"""Bad input is one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.cli.command import error_line, tidebox


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "give FILE, -c CODE or -- COMMAND"),
        (["run", "--"], "give FILE, -c CODE or -- COMMAND"),
        (["run", "--language", "cobol", "-c", "x"], "unknown language 'cobol'"),
        (["run", "--language", "python", "--", "ls"], "a command names its own program"),
        (["run", "--image", "no/such:image", "-c", "x"], "no/such:image"),
        (["run", "--image", "../../etc", "-c", "x"], "../../etc"),
        (["run", "--timeout", "0", "-c", "x"], "'timeout'"),
        (["run", "--timeout", "nan", "-c", "x"], "'timeout'"),
        (["run", "--timeout", "soon", "-c", "x"], "--timeout"),
        (["run", "--memory", "1M", "-c", "x"], "between 8388608 and"),
        (["run", "--memory", "lots", "-c", "x"], "like 512M or 2G"),
        (["run", "--memory", "-5M", "-c", "x"], "like 512M or 2G"),
        (["run", "--memory", "999999T", "-c", "x"], "'memory'"),
        (["run", "--cpus", "0", "-c", "x"], "'cpus'"),
        (["run", "--pids", "1", "-c", "x"], "'pids'"),
        (["run", "--pids", "2.5", "-c", "x"], "--pids"),
        (["run", "--workspace", "1", "-c", "x"], "'workspace'"),
        (["run", "--output-limit", "x", "-c", "x"], "--output-limit"),
        (["run", "--env", "TIDEBOX_NO_SUCH_VARIABLE", "-c", "x"], "no such variable here"),
        (["run", "--env", "=x", "-c", "x"], "environment variable"),
        (["run", "--stdin", "/no/such/file", "-c", "x"], "/no/such/file: No such file"),
        (["run", "--stdin", "-", "-"], "both the program and its input"),
        (["run", "/no/such/file.py"], "/no/such/file.py: No such file"),
        (["run", "/etc"], "Is a directory"),
        (["run", "/etc/passwd"], "give --language"),
        (["run", "--file", "/no/such/file", "-c", "x"], "/no/such/file: No such file"),
        (["run", "--file", "/etc/passwd:../../etc/passwd", "-c", "x"], "not a file name inside /workspace"),
        (["run", "--file", "/etc/passwd:/etc/passwd", "-c", "x"], "not a file name inside /workspace"),
        (["run", "--file", "/etc/passwd:a", "--file", "/etc/group:a", "-c", "x"], "two files for /workspace/a"),
        (["run", "--artifact", "*", "--artifacts-dir", "/etc/passwd", "-c", "x"], "--artifacts-dir /etc/passwd"),
        (["run", "--no-such-option"], "No such option"),
        (["run", "--", "no-such-program"], "there is no 'no-such-program' in the image 'host'"),
        (["run", "--", "/etc/passwd"], "Permission denied"),
        (["sail"], "No such command 'sail'"),
        (["--sail"], "No such option"),
        (["doctor", "x"], "unexpected extra argument"),
        (["image", "remove", "no/such:image"], "no/such:image"),
    ],
)
def test_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = tidebox(*arguments)
    assert done.stdout == b""
    assert said in error_line(done)


def test_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("")
    (tmp_path / "loop.py").symlink_to("loop.py")
    assert "loop.py" in error_line(tidebox("run", tmp_path / "loop.py"))
    if os.geteuid() != 0:
        (tmp_path / "secret.py").chmod(0)
        assert "Permission denied" in error_line(tidebox("run", tmp_path / "secret.py"))


def test_files_larger_than_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(200_000))
    done = tidebox("run", "--workspace", "100K", "--file", tmp_path / "large", "-c", "x")
    assert "larger than the workspace" in error_line(done)
    assert "larger than the workspace" in error_line(tidebox("run", "/dev/zero", "--workspace", "1M"))


@pytest.mark.parametrize("language", ["javascript", "shell", "elixir", "python"])
def test_an_interpreter_that_the_image_has_not(tmp_path: Path, language: str) -> None:
    env = {"SANDBOX_DATA_DIR": str(tmp_path / "data")}
    with tarfile.open(tmp_path / "empty.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("etc/nothing"), io.BytesIO())
    assert tidebox("image", "import", "empty", tmp_path / "empty.tar", env=env).returncode == 0
    done = tidebox("run", "--image", "empty", "--language", language, "-c", "", env=env)
    assert "in the image 'empty'" in error_line(done)


@pytest.mark.parametrize("command", [["run", "-c", "x"], ["doctor"], ["image", "list"]])
def test_bad_settings(command: list[str]) -> None:
    done = tidebox(*command, env={"SANDBOX_POOL_PYTHON": "many"})
    assert "SANDBOX_POOL_PYTHON" in error_line(done)


def test_an_interpreter_setting_that_leads_nowhere() -> None:
    done = tidebox("run", "-c", "x", env={"SANDBOX_PYTHON": "/no/such/python"})
    assert "/no/such/python" in error_line(done)


def test_a_line_cannot_be_forged() -> None:
    name = "/no/such\n\x1b[2Jfile.py"
    line = error_line(tidebox("run", name))
    assert "\x1b" not in line
