"""Every command that speaks to a server, where the key is wrong, there is no server, or no such thing."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer
from tests.cli.remote import Remote
from tidebox.cli.main import main

Typed = Callable[..., tuple[int, str, str]]

NAMING_NOTHING = {
    "runs list": ["runs", "list"],
    "runs list --everybody": ["runs", "list", "--everybody"],
    "sessions create": ["sessions", "create"],
    "sessions list": ["sessions", "list"],
    "sandbox create": ["sandbox", "create"],
    "sandbox list": ["sandbox", "list"],
    "top": ["top"],
    "doctor": ["doctor", "--server"],
    "run": ["run", "--server", "-c", "1"],
    "run --detach": ["run", "--server", "--detach", "-c", "1"],
}
NAMING_SOMETHING = {
    "run --session": ["run", "--server", "--session", "no-such", "-c", "1"],
    "runs list --session": ["runs", "list", "--session", "no-such"],
    "runs show": ["runs", "show", "no-such"],
    "runs logs": ["runs", "logs", "no-such"],
    "runs logs -f": ["runs", "logs", "-f", "no-such"],
    "runs cancel": ["runs", "cancel", "no-such"],
    "runs artifacts": ["runs", "artifacts", "no-such"],
    "runs artifacts --to": ["runs", "artifacts", "no-such", "--to", "."],
    "sessions show": ["sessions", "show", "no-such"],
    "sessions files": ["sessions", "files", "no-such"],
    "sessions upload": ["sessions", "upload", "no-such", __file__],
    "sessions download": ["sessions", "download", "no-such", "x"],
    "sessions rm": ["sessions", "rm", "no-such"],
    "sandbox exec": ["sandbox", "exec", "no-such", "true"],
    "sandbox exec -d": ["sandbox", "exec", "-d", "no-such", "true"],
    "sandbox attach": ["sandbox", "attach", "no-such", "proc-1"],
    "sandbox cp in": ["sandbox", "cp", __file__, "no-such:x"],
    "sandbox cp out": ["sandbox", "cp", "no-such:x", "."],
    "sandbox watch": ["sandbox", "watch", "no-such"],
    "sandbox rm": ["sandbox", "rm", "no-such"],
}
ALL = {**NAMING_NOTHING, **NAMING_SOMETHING}


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Typed]:
    """The command in this process, where it has started already: its exit code, and what it said."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.chdir(tmp_path)

    def call(words: list[str], url: str, key: str | None) -> tuple[int, str, str]:
        for name, value in Remote(url, key, tmp_path).env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["tidebox", *words])
        code = main()
        said = capfd.readouterr()
        return code, said.out, said.err

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)


def one_line(error: str) -> str:
    [line] = error.splitlines()
    assert line.startswith("tidebox: ")
    return line


@pytest.mark.parametrize("words", ALL.values(), ids=ALL.keys())
def test_a_wrong_key(running_server: RunningServer, typed: Typed, words: list[str]) -> None:
    code, out, err = typed(words, running_server.url, "wrong")
    assert (code, out) == (2, "")
    assert "tidebox login" in one_line(err)


@pytest.mark.parametrize("words", ALL.values(), ids=ALL.keys())
def test_no_server(typed: Typed, words: list[str]) -> None:
    code, out, err = typed(words, "http://127.0.0.1:1", "a-key")
    assert (code, out) == (2, "")
    assert "http://127.0.0.1:1" in one_line(err)
    assert "tidebox serve" in err


@pytest.mark.parametrize("words", NAMING_SOMETHING.values(), ids=NAMING_SOMETHING.keys())
def test_no_such_thing(running_server: RunningServer, typed: Typed, words: list[str]) -> None:
    code, out, err = typed(words, running_server.url, running_server.key)
    assert (code, out) == (2, "")
    assert "no such" in one_line(err) or "'no-such'" in err
    assert f"tidebox {'sessions' if '--session' in words else words[0]} list" in err


@pytest.mark.parametrize("words", [ALL["runs show"], ALL["sandbox exec"], ALL["top"]])
def test_an_error_as_json(typed: Typed, words: list[str]) -> None:
    code, out, err = typed([*words[:2], "--json", *words[2:]], "http://127.0.0.1:1", "a-key")
    assert (code, json.loads(out)["error"]["code"]) == (2, "server_unreachable")
    one_line(err)


def test_a_profile_that_is_not_there(typed: Typed) -> None:
    for words in ("runs list --profile no", "run --profile no -c 1", "profiles --use no"):
        code, out, err = typed(words.split(), "http://127.0.0.1:1", None)
        assert (code, out) == (2, "")
        assert "tidebox profiles" in one_line(err)
        assert "list" not in err


def test_a_part_that_is_not_there(running_server: RunningServer, typed: Typed, tmp_path: Path) -> None:
    """What is missing is named, and the advice is about that, not about what it would be a part of."""
    remote = Remote.of(running_server, tmp_path)
    run = remote.text("run", "--server", "--detach", "-c", "1")
    session = remote.text("sessions", "create")
    box = remote.text("sandbox", "create")
    expected = {
        ("runs", "artifacts", run, "no-such"): f"tidebox runs artifacts {run}",
        ("sessions", "download", session, "no-such"): f"tidebox sessions files {session}",
        ("sandbox", "cp", f"{box}:no-such", "."): f"{box} has no file 'no-such'",
        ("sandbox", "watch", box, "no-such"): f"{box} has no file 'no-such'",
        ("sandbox", "attach", box, "no-such"): "told when it was left",
    }
    for words, said in expected.items():
        code, out, err = typed([*words], running_server.url, running_server.key)
        assert (code, out) == (2, "")
        assert said in one_line(err)
        assert f"{words[0]} list" not in err
    remote("sandbox", "rm", box)
    remote("sessions", "rm", session)


def test_one_of_several_that_is_not_there(running_server: RunningServer, typed: Typed, tmp_path: Path) -> None:
    remote = Remote.of(running_server, tmp_path)
    run = remote.text("run", "--server", "--detach", "-c", "import time; time.sleep(60)")
    code, out, err = typed(["runs", "cancel", run, "no-such"], running_server.url, running_server.key)
    assert code == 2
    assert out.startswith(f"{run} "), "what was done before is told"
    assert "no-such" in one_line(err)


def test_what_is_no_address(typed: Typed) -> None:
    for words in (["runs", "list", "--server", "ftp://x"], ["run", "--server=boxes:80", "-c", "1"]):
        assert "not the address of a server" in one_line(typed(words, "http://127.0.0.1:1", None)[2])


def test_a_real_process_ends_the_same_way(running_server: RunningServer, tmp_path: Path) -> None:
    done = Remote(running_server.url, "wrong", tmp_path)("runs", "list")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"tidebox: ")
    assert done.stderr.count(b"\n") == 1
