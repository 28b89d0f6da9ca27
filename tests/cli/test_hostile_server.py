"""Commands against a server that lies: nothing here is harmed, and every failure is one line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import TIDEBOX, error_line
from tests.cli.hostile import answering, file
from tests.cli.remote import Remote
from tests.cli.test_files import tree

# Names of files


@pytest.mark.parametrize("source", ["notes.txt", "/deep/notes.txt"])
def test_a_file_has_the_name_that_was_typed(tmp_path: Path, source: str) -> None:
    def answer(method: str, path: str) -> Any:
        if path.endswith("/files/stat"):
            return file("/workspace/.bashrc")
        return b"PWN" if path.endswith("/files/download") else None

    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ".bashrc").write_text("mine")
    with answering(answer) as server:
        done = Remote(server.url, "key", tmp_path)("sandbox", "cp", f"box:{source}", "here/")
    assert (done.returncode, done.stderr) == (0, b"")
    assert tree(tmp_path / "here") == {".bashrc": b"mine", "notes.txt": b"PWN"}


@pytest.mark.parametrize(("source", "name"), [("proj", "proj"), ("a/proj/", "proj"), ("", "box")])
def test_a_directory_has_the_name_that_was_typed_and_nothing_hidden(tmp_path: Path, source: str, name: str) -> None:
    def answer(method: str, path: str) -> Any:
        if path.endswith("/files/stat"):
            return file("/x/.ssh", "directory")
        if path.endswith("/files/list"):
            names = ("authorized_keys", ".profile", "../up", "../../here/.bashrc", "/abs", "..")
            return {"path": "/x", "entries": [file(f"/x/{each}") | {"name": each} for each in names]}
        return b"PWN" if path.endswith("/files/download") else None

    (tmp_path / "here").mkdir()
    with answering(answer) as server:
        done = Remote(server.url, "key", tmp_path)("sandbox", "cp", f"box:{source}", "here")
    assert tree(tmp_path) == {f"here/{name}/authorized_keys": b"PWN"}
    assert b"hidden files were not copied" in done.stderr
    assert done.returncode == 2  # /abs was refused


# Texts and times

ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e"
RUN = {"run_id": f"run-{ESCAPE}", "phase": "completed", "created_at": "2026-01-01T00:00:00Z", "base_image": ESCAPE}


def hostile_texts(method: str, path: str) -> Any:
    if path.endswith("/health"):
        return {"status": "ok", "version": ESCAPE, "active_runs": 0, "queued_runs": 0}
    if "/runs" in path:
        return {"items": [RUN], "limit": 20, "offset": 0} if path.endswith("/runs") and method == "GET" else RUN
    if "/api/v1/sandbox/sessions" in path:
        session = {"session_id": ESCAPE, "state": ESCAPE, "created_at": "2026-01-01T00:00:00Z"}
        return {"items": [session], "limit": 20, "offset": 0} if method == "GET" else session
    return None


@pytest.mark.parametrize(
    "words",
    [
        "sessions create",
        "sessions list",
        "runs cancel x",
        "runs show x",
        "runs list",
        "login",
        "run --server --detach -c 1",
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_nothing_that_a_terminal_obeys_is_printed(tmp_path: Path, words: str, form: list[str]) -> None:
    first, *rest = words.split()
    split = [first, *rest[:1], *form, *rest[1:]] if rest else [first, *form]
    with answering(hostile_texts) as server:
        remote = Remote(server.url, "key", tmp_path)
        command = shlex.join([TIDEBOX, *split])
        done = subprocess.run(
            ["script", "-qec", command, os.devnull],
            env={**remote.env, "NO_COLOR": "1"},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=50,
            check=False,
        )
    shown = done.stdout.decode()
    assert "owned" in shown
    assert not {"\x1b]", "\x07", "\x9b", "\u202e"} & set(re.findall("\x1b.|[^ -~\r\n]", shown)), shown


@pytest.mark.parametrize("words", [["runs", "list"], ["runs", "show", "x"], ["sessions", "list"]])
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-01-01T00:00:00"])
def test_times_that_no_clock_shows(tmp_path: Path, words: list[str], zone: str, time: str) -> None:
    times = {"created_at": time, "started_at": time, "expires_at": time}

    def answer(method: str, path: str) -> Any:
        item = {"session_id": "s", "run_id": "r", "phase": "completed"} | times
        return {"items": [item], "limit": 20, "offset": 0} if path.endswith("s") else item

    with answering(answer) as server:
        done = Remote(server.url, "key", tmp_path)(*words, TZ=zone)
    if time.endswith("Z"):
        assert (done.returncode, done.stderr) == (0, b"")
        assert {b"0001-01-01", b"9999-12-31"} & set(re.findall(rb"\d{4}-\d\d-\d\d", done.stdout)), done
    else:
        assert "not one of this protocol" in error_line(done)


# Lists


def test_pages_that_never_end(tmp_path: Path) -> None:
    with answering(lambda method, path: {"items": [], "limit": 1, "offset": 0, "has_more": True}) as server:
        done = Remote(server.url, "key", tmp_path)("sandbox", "exec", "box", "true", seconds=20)
    assert "no sandbox 'box'" in error_line(done)
    assert len(server.asked) == 1


def test_a_list_has_no_more_rows_than_were_asked_for(tmp_path: Path) -> None:
    runs = [{"run_id": f"r{number}", "phase": "completed"} for number in range(50_000)]
    with answering(lambda method, path: {"items": runs, "limit": 20, "offset": 0}) as server:
        shown = Remote(server.url, "key", tmp_path).text("runs", "list", "--limit", "5")
    assert len(shown.splitlines()) == 6


# Sizes


def test_a_file_is_no_longer_than_was_said(tmp_path: Path) -> None:
    def answer(method: str, path: str) -> Any:
        if path.endswith("/files/stat"):
            return file("/workspace/x")
        return (b"x" * 1_000_000 for _ in range(300)) if path.endswith("/files/download") else None

    with answering(answer) as server:
        done = Remote(server.url, "key", tmp_path)("sandbox", "cp", "box:x", "x")
    assert "more comes than the server said" in error_line(done)
    assert tree(tmp_path) == {}


def test_artifacts_are_bounded_by_what_comes(tmp_path: Path) -> None:
    def answer(method: str, path: str) -> Any:
        if path.endswith("/artifacts"):
            return {"items": [{"path": name, "size": 3} for name in ("a", "b")]}
        return b"PWN" if path.endswith("/a") else (b"x" * 1_000_000 for _ in range(70))

    with answering(answer) as server:
        done = Remote(server.url, "key", tmp_path)("runs", "artifacts", "run-1", "--to", "out")
    assert error_line(done) == "b was not saved: more comes than the server said"
    assert tree(tmp_path) == {"out/a": b"PWN"}


@pytest.mark.parametrize(
    ("sizes", "copied"), [([1] * 1001, 1000), ([64 * 2**20 + 1, 1], 1), ([64 * 2**20] * 4 + [1], 4)]
)
def test_artifacts_are_as_many_as_a_box_may_leave(tmp_path: Path, sizes: list[int], copied: int) -> None:
    def answer(method: str, path: str) -> Any:
        if path.endswith("/artifacts"):
            return {"items": [{"path": f"{number}", "size": size} for number, size in enumerate(sizes)]}
        return b"x"

    with answering(answer) as server:
        done = Remote(server.url, "key", tmp_path)("runs", "artifacts", "run-1", "--to", "out")
    assert done.stderr == b"tidebox: 1 files were not copied: too many, or too large\n"
    assert len(tree(tmp_path / "out")) == copied


# Files of the user's own that are broken


@pytest.mark.parametrize("address", ["http://[", "http://[::1", "http://x:y"])
def test_an_address_that_is_none(tmp_path: Path, address: str) -> None:
    remote = Remote(address, None, tmp_path)
    for words in (["runs", "list"], ["runs", "list", "--server", address], ["login", address]):
        assert "not the address of a server" in error_line(remote(*words))


@pytest.mark.parametrize(
    "content", ['{"current": {}}', "[" * 100_000, '{"profiles": {"\\u001b": {"url": "http://x"}}}', "5", "\xff"]
)
def test_a_file_of_profiles_that_is_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / ".config" / "tidebox" / "profiles.json"
    file.parent.mkdir(parents=True)
    file.write_text(content, "latin-1")
    file.chmod(0o600)
    remote = Remote("", None, tmp_path)
    for words in (["profiles"], ["runs", "list"], ["logout"]):
        assert "cannot be understood" in error_line(remote(*words))
