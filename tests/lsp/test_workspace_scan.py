"""Selection of the files to send: the rules of .gitignore, compared with git itself."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import patient
from tidebox.errors import InvalidRequest
from tidebox.lsp import workspace_scan
from tidebox.lsp.workspace_scan import WorkspaceScanner
from tidebox.untrusted_files.gitignore import Gitignore, ignores
from tidebox.untrusted_files.globs import MatchBudget

FILES = [
    "a.log",
    "b.txt",
    "keep.log",
    "#note",
    "!bang",
    "with space",
    "trail ",
    "star*",
    "out/x",
    "deep/out/x",
    "build/a",
    "build/sub/b",
    "sub/a.log",
    "sub/keep.log",
    "sub/deep/x.tmp",
    "sub/deep/y.txt",
    "docs/api/index.html",
    "docs/index.html",
    "f1",
    "f2",
    "fa",
    "foo/bar/baz",
    "foo/x/baz",
    "foo/baz",
    ".env",
    "dir/.env",
    "nested/inner/file.c",
    "nested/file.c",
    "nested/file.h",
]
RULES = [
    ["*.log", "!keep.log"],
    ["/out"],
    ["out/"],
    ["build/*", "!build/sub"],
    ["build/", "!build/a"],
    ["\\#note", "\\!bang"],
    ["# a comment", "", "   ", "trail\\ ", "with space   "],
    ["star\\*"],
    ["docs/*.html"],
    ["docs/**/*.html"],
    ["**/deep"],
    ["foo/**/baz"],
    ["foo/**"],
    ["f[12]"],
    ["f[!1]"],
    ["f[^1]"],
    ["f?"],
    ["*", "!*/", "!*.txt"],
    [".env"],
    ["/*.log"],
    ["sub/deep/"],
    ["!b.txt"],
    ["a.log\r"],
    ["nested/*.c"],
    ["**/*.c", "!nested/inner/*.c"],
]


@pytest.mark.parametrize("rules", RULES, ids=[" ".join(rules)[:30].strip() for rules in RULES])
def test_git_agrees_on_what_is_ignored(rules: list[str], tmp_path: Path) -> None:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    (tmp_path / ".gitignore").write_text("\n".join(rules) + "\n")
    (tmp_path / "nested" / ".gitignore").write_text("*.h\n!inner/\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, env=env, check=True)
    command = ["git", "ls-files", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True).stdout
    assert set(WorkspaceScanner(str(tmp_path)).scan({}).files) == set(listed.decode().split("\0")) - {""}


def test_hostile_patterns_are_given_up() -> None:
    rules = Gitignore("", ["*a" * 200 + "b", "**/*" * 100 + "x"] * 500)
    began = time.thread_time()
    with pytest.raises(InvalidRequest, match="too long"):
        ignores([rules], "/".join(["a" * 200] * 5), MatchBudget(0.05), directory=False)
    assert time.thread_time() - began < patient(5)


def test_rules_that_change_count_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / ".gitignore").write_text("b.txt\n")
    scanner = WorkspaceScanner(str(tmp_path))
    assert set(scanner.scan({}).files) == {"a.txt", ".gitignore"}
    (tmp_path / ".gitignore").write_text("a.txt and more\na.txt\n")
    assert set(scanner.scan({}).files) == {".gitignore"}
    (tmp_path / ".gitignore").unlink()
    assert set(scanner.scan({}).files) == {"a.txt"}


def test_caps_are_respected_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_scan, "MAX_FILES", 5)
    monkeypatch.setattr(workspace_scan, "MAX_BYTES", 100)
    (tmp_path / "big.txt").write_text("x" * 90)
    (tmp_path / "big2.txt").write_text("x" * 90)
    for index in range(8):
        (tmp_path / f"deep{index}").mkdir()
        (tmp_path / f"deep{index}" / "small.txt").write_text("x")
    deep = tmp_path.joinpath(*"abcdefghijkl")
    deep.mkdir(parents=True)
    (deep / "far.txt").write_text("x")
    scanned = WorkspaceScanner(str(tmp_path)).scan({"main.py": b"x"})
    assert len(scanned.files) + len(scanned.texts) == 5
    assert scanned.bytes <= 100
    said = "\n".join(scanned.notices())
    assert "big2.txt" in said
    assert "more than 5 files: deep3/small.txt, deep4/small.txt, deep5/small.txt and 2 more" in said
    assert "directories deep" in said
    with pytest.raises(InvalidRequest):
        WorkspaceScanner(str(tmp_path)).scan({"main.py": b"x" * 101})


def test_a_link_is_not_followed_wherever_it_is(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (folder / "file.txt").symlink_to(outside / "secret.txt")
    (folder / "directory").symlink_to(outside)
    (folder / ".gitignore").symlink_to(outside / "secret.txt")
    scanner = WorkspaceScanner(str(folder))
    assert scanner.scan({}).files == {}
    for name in ("file.txt", "directory/secret.txt"):
        with pytest.raises(OSError, match=r".*"):
            scanner.read(name, 10)
        with pytest.raises(InvalidRequest):
            scanner.scan({}, [name])


def test_a_directory_of_any_size_is_looked_at_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(300):
        (tmp_path / f"{index}.txt").touch()
    monkeypatch.setattr(workspace_scan, "_MAX_LOOKED_AT", 20)
    listed = 0
    scandir = os.scandir

    @contextmanager
    def counting(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        def each(entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
            nonlocal listed
            for entry in entries:
                listed += 1
                yield entry

        with scandir(path) as entries:
            yield each(entries)

    monkeypatch.setattr(os, "scandir", counting)
    scanned = WorkspaceScanner(str(tmp_path)).scan({})
    assert len(scanned.files) == 20
    assert listed == 21
    assert any("files and directories to look at" in notice for notice in scanned.notices())


def test_many_documents_have_as_much_patience_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_scan, "_PATTERN_SECONDS", 0.2)
    (tmp_path / ".gitignore").write_text("\n".join(["*a" * 100 + "b"] * 300))
    scanner = WorkspaceScanner(str(tmp_path))
    patience = workspace_scan.new_patience()
    began = time.thread_time()
    with pytest.raises(InvalidRequest, match="too long"):
        any(scanner.ignored("a" * 200 + str(index), patience) for index in range(1000))
    assert time.thread_time() - began < patient(5)


def test_what_lies_behind_a_link_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path)
    (folder / "sub" / "file").symlink_to("/etc/passwd")
    (tmp_path / "linked").symlink_to(folder)
    for root in (folder, tmp_path / "linked"):
        scanner = WorkspaceScanner(str(root))
        assert [name for name in ("link", "link/x", "sub/file", "sub", "sub/none") if scanner.behind_link(name)] == [
            "link",
            "link/x",
            "sub/file",
        ]


def test_patterns_in_many_directories_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_scan, "_MAX_RULE_BYTES", 10_000)
    for index in range(9):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / ".gitignore").write_text("*.log\n" * 180)
    scanner = WorkspaceScanner(str(tmp_path))
    assert len(scanner.scan({}).files) == 9
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / ".gitignore").write_text("*.log\n" * 180)
    with pytest.raises(InvalidRequest, match="KiB"):
        scanner.scan({})
