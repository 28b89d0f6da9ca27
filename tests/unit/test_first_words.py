"""Whether a command was ever executed is read off what it wrote."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.broker.first_words import FirstWords
from tidebox.model.launch import plan_command

MISSING = f"nosuch: {os.strerror(errno.ENOENT)}\n".encode()


def words(command: list[str], *output: bytes) -> FirstWords:
    found = FirstWords(plan_command(command))
    for data in output:
        found.note(data)
    return found


@pytest.mark.parametrize("cut", range(len(MISSING)))
def test_however_it_is_cut(cut: int) -> None:
    failure = words(["nosuch"], MISSING[:cut], MISSING[cut:]).failure(127)
    assert failure == "the command could not be executed: No such file or directory"


@pytest.mark.parametrize(
    ("command", "output", "exit_code"),
    [
        (["nosuch"], MISSING, 1),
        (["nosuch"], MISSING, None),
        (["nosuch"], MISSING + b"x", 127),
        (["nosuch"], b"x" + MISSING, 127),
        (["nosuch"], b"", 127),
        (["nosuch"], b"nosuch: something else\n", 127),
        (["other"], MISSING, 127),
        (["python", "-c", "print(1)"], b"python: No such file or directory\n", 127),
    ],
)
def test_what_is_the_commands_own(command: list[str], output: bytes, exit_code: int | None) -> None:
    assert words(command, output).failure(exit_code) is None


def test_what_cannot_be_executed() -> None:
    output = f"./a: {os.strerror(errno.EACCES)}\n".encode()
    assert words(["./a"], output).failure(126) == "the command could not be executed: Permission denied"


@given(st.text(min_size=1).filter(lambda name: "\0" not in name), st.lists(st.binary(max_size=100), max_size=50))
def test_only_the_beginning_is_kept(name: str, output: list[bytes]) -> None:
    if name in ("python", "python3", "node", "elixir"):
        return
    found = words([name], *output)
    assert len(found._words) <= len(name.encode()) + 200
    found.failure(127)
