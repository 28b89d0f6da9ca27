"""Files into a box and out of it again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.command import error_line, tidebox


@pytest.fixture
def here(tmp_path: Path) -> Path:
    directory = tmp_path / "here"
    directory.mkdir()
    return directory


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


LIST = "import os\nfor d, _, names in sorted(os.walk('.')):\n    for n in sorted(names): print(os.path.join(d, n))"


def test_files_and_directories_are_copied_in(here: Path) -> None:
    (here / "data.csv").write_bytes(b"1,2\n")
    (here / "package" / "deep").mkdir(parents=True)
    (here / "package" / "__init__.py").write_text("")
    (here / "package" / "deep" / "x.bin").write_bytes(bytes(range(256)))
    done = tidebox(
        "run", "--file", "data.csv", "--file", "data.csv:in/copy.csv", "--file", "data.csv:/workspace/dir/",
        "--file", "package", "-c", LIST, cwd=here,
    )  # fmt: skip
    assert done.stdout.decode().split() == [
        "./data.csv",
        "./main.py",
        "./dir/data.csv",
        "./in/copy.csv",
        "./package/__init__.py",
        "./package/deep/x.bin",
    ]


def test_links_in_a_directory_lead_nowhere(here: Path) -> None:
    (here / "project").mkdir()
    (here / "secret").write_text("secret")
    (here / "project" / "file").symlink_to(here / "secret")
    (here / "project" / "directory").symlink_to(here)
    os.mkfifo(here / "project" / "fifo")
    (here / "project" / "real").write_text("")
    done = tidebox("run", "--file", here / "project", "-c", LIST)
    assert done.stdout.decode().split() == ["./main.py", "./project/real"]
    assert done.stderr == b"tidebox: 3 links or special files were not copied in\n"


def test_a_name_with_a_colon(here: Path) -> None:
    (here / "a:b").write_text("x")
    assert b"./a:b\n" in tidebox("run", "--file", "a:b", "-c", LIST, cwd=here).stdout


def test_artifacts_are_copied_out(here: Path) -> None:
    code = (
        "import os\n"
        "os.makedirs('plots/a')\n"
        "open('plots/a/one.png', 'wb').write(b'\\x00\\xff')\n"
        "open('two.png', 'w').write('2'); open('three.txt', 'w').write('3')\n"
    )
    done = tidebox("run", "--json", "--artifact", "**/*.png", "-c", code, cwd=here)
    assert tree(here) == {"plots/a/one.png": b"\x00\xff", "two.png": b"2"}
    assert json.loads(done.stdout)["artifacts"] == [
        {"path": "plots/a/one.png", "size": 2, "refused": None},
        {"path": "two.png", "size": 1, "refused": None},
    ]


def test_into_a_directory_of_its_own(here: Path) -> None:
    done = tidebox("run", "--artifact", "f", "--artifacts-dir", "new/out", "-c", "open('f', 'w').write('x')", cwd=here)
    assert done.returncode == 0
    assert tree(here) == {"new/out/f": b"x"}


def test_artifacts_of_a_failed_program_are_copied_too(here: Path) -> None:
    done = tidebox(
        "run", "--artifact", "f", "--timeout", "1", "-c", "open('f', 'w').write('x')\nwhile 1: pass", cwd=here
    )
    assert done.returncode == 124
    assert tree(here) == {"f": b"x"}


def test_what_was_copied_in_and_not_changed_does_not_come_back(here: Path) -> None:
    (here / "same").write_text("same")
    (here / "script.sh").write_text("echo more >> changed")
    (here / "changed").write_text("old\n")
    done = tidebox(
        "run", "--file", "same", "--file", "changed", "--artifact", "*", "--artifacts-dir", "out", "script.sh", cwd=here
    )
    assert done.returncode == 0
    assert tree(here / "out") == {"changed": b"old\nmore\n"}


def test_nothing_is_replaced_unasked(here: Path) -> None:
    (here / "f").write_text("mine")
    arguments = ["run", "--artifact", "f", "-c", "open('f', 'w').write('theirs')"]
    done = tidebox(*arguments, cwd=here)
    assert error_line(done) == "f was not saved: there is one already; --force replaces it"
    assert tree(here) == {"f": b"mine"}
    assert tidebox(arguments[0], "--force", *arguments[1:], cwd=here).returncode == 0
    assert tree(here) == {"f": b"theirs"}


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_links_in_the_target_are_not_followed(here: Path, tmp_path: Path, force: list[str]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    (here / "directory").symlink_to(outside)
    (here / "file").symlink_to(outside / "file")
    (here / "new").symlink_to(outside / "new")
    code = "import os\nos.mkdir('directory')\nfor n in ('directory/f', 'file', 'new'): open(n, 'w').write('theirs')"
    done = tidebox("run", *force, "--artifact", "**", "-c", code, cwd=here)
    assert done.returncode == 2
    assert b"directory/f was not saved: a link or a file is where its directory should be" in done.stderr
    assert tree(outside) == {"file": b"mine"}


def test_hostile_names_and_files_stay_out(here: Path, tmp_path: Path) -> None:
    code = (
        "import os, socket\n"
        "os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'dir'); os.mkfifo('fifo')\n"
        "socket.socket(socket.AF_UNIX).bind('socket')\n"
        "os.mkdir('.git'); open('.git/config', 'w').write('x'); open('.bashrc', 'w').write('x')\n"
        "open('..a', 'w').write('x'); open(b'not\\xffutf8', 'w').write('x')\n"
        "open('new\\nline\\x1b[2J', 'w').write('x'); open('-rf', 'w').write('x')\n"
        "open('n' * 255, 'w').write('x')\n"
    )
    done = tidebox("run", "--artifact", "**", "-c", code, cwd=here)
    assert done.returncode == 0
    assert tree(here) == {"new\nline\x1b[2J": b"x", "-rf": b"x", "n" * 255: b"x"}
    assert done.stderr == b"tidebox: 5 matching files were not copied: links, special files, or too large\n"
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_hidden_files_are_copied_when_they_are_named(here: Path) -> None:
    code = "import os; os.mkdir('.cache')\nfor n in ('.cache/a', '.b', '.c'): open(n, 'w').write('x')"
    tidebox("run", "--artifact", ".cache/*", "--artifact", ".b", "--artifact", "*", "-c", code, cwd=here)
    assert tree(here) == {".cache/a": b"x", ".b": b"x"}
