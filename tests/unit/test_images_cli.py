"""``tidebox image`` as a user types it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.unit.archives import file, tar
from tidebox.cli.image import app


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANDBOX_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def tidebox_image(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_import_list_remove(tmp_path: Path, data_dir: Path) -> None:
    source = tmp_path / "rootfs.tar"
    source.write_bytes(tar([file("etc/os-release", b"x" * 2000)]))
    imported = tidebox_image("import", "my/app:1", source)
    assert imported.exit_code == 0
    assert imported.stdout.startswith("my/app:1 sha256:")
    listed = tidebox_image("list")
    assert listed.exit_code == 0
    assert "my/app:1" in listed.stdout
    assert "2.0 kB" in listed.stdout
    assert tidebox_image("remove", "my/app:1").exit_code == 0
    assert "my/app:1" not in tidebox_image("list").stdout
    assert os.listdir(data_dir / "images" / "rootfs") == []


def test_an_empty_list_is_no_error() -> None:
    assert tidebox_image("list").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("import", "test", "/no/such/file"),
        ("import", "BAD NAME", "/dev/null"),
        ("import", "host", "/dev/null"),
        ("import", "test", "/dev/null"),
        ("import", "test", "/"),
        ("remove", "nothing"),
        ("build", "test", "--suite", "-x"),
        ("build", "test", "BAD", "--suite", "bookworm"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = tidebox_image(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    [line] = result.stderr.strip().splitlines()
    assert line.startswith("tidebox: ")


def test_a_data_dir_that_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SANDBOX_DATA_DIR", str(tmp_path / "file"))
    source = tmp_path / "rootfs.tar"
    source.write_bytes(tar([file("f")]))
    result = tidebox_image("import", "test", source)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
