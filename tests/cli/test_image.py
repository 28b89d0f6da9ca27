"""``tidebox image`` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import error_line, tidebox
from tests.unit.untrusted_files.archives import file, tar


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def tidebox_image(data_dir: Path, *arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return tidebox("image", *arguments, stdin=stdin, env={"SANDBOX_DATA_DIR": str(data_dir)})


def test_import_list_remove(tmp_path: Path, data_dir: Path) -> None:
    source = tmp_path / "rootfs.tar"
    source.write_bytes(tar([file("etc/os-release", b"x" * 2000)]))
    imported = tidebox_image(data_dir, "import", "my/app:1", source)
    assert imported.returncode == 0
    assert imported.stdout.startswith(b"my/app:1 sha256:")
    listed = tidebox_image(data_dir, "list")
    assert listed.returncode == 0
    header, line = listed.stdout.decode().splitlines()
    assert header.split() == ["NAME", "DIGEST", "SIZE", "IMPORTED", "BASE", "PACKAGES"]
    assert line.split()[:4] == ["my/app:1", imported.stdout.decode().split()[1], "2.0", "kB"]
    assert tidebox_image(data_dir, "remove", "my/app:1").returncode == 0
    assert b"my/app:1" not in tidebox_image(data_dir, "list").stdout
    assert os.listdir(data_dir / "images" / "rootfs") == []


def test_answers_and_errors_as_json(data_dir: Path) -> None:
    tidebox_image(data_dir, "import", "app", "-", stdin=tar([file("f")]))
    assert json.loads(tidebox_image(data_dir, "remove", "--json", "app").stdout) == {"removed": ["app"]}
    assert json.loads(tidebox_image(data_dir, "prune", "--json").stdout) == {"removed": [], "size": 0}
    for words in (("remove", "app"), ("show", "app")):
        done = tidebox_image(data_dir, words[0], "--json", *words[1:])
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "unknown_image")
        assert "app" in error_line(done)


def test_import_from_standard_input(data_dir: Path) -> None:
    assert tidebox_image(data_dir, "import", "app", "-", stdin=tar([file("f")])).stdout.startswith(b"app sha256:")


def test_an_empty_list_is_no_error(data_dir: Path) -> None:
    listed = tidebox_image(data_dir, "list")
    header = ["NAME", "DIGEST", "SIZE", "IMPORTED", "BASE", "PACKAGES"]
    assert (listed.returncode, listed.stdout.decode().split()) == (0, header)


def test_without_a_command_it_shows_its_help(data_dir: Path) -> None:
    done = tidebox_image(data_dir)
    assert (done.returncode, done.stdout) == (2, b"")
    for command in ("import", "build", "list", "remove"):
        assert f"  {command} " in done.stderr.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ("import", "test"),
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
def test_bad_input_is_one_line_and_exit_code_2(data_dir: Path, arguments: tuple[str, ...]) -> None:
    done = tidebox_image(data_dir, *arguments)
    assert done.stdout == b""
    assert error_line(done)


def test_a_data_dir_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    source = tmp_path / "rootfs.tar"
    source.write_bytes(tar([file("f")]))
    assert str(tmp_path / "file") in error_line(tidebox_image(tmp_path / "file", "import", "test", source))
