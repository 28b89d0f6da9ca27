"""The private copy of the interpreter: where it lies."""

from __future__ import annotations

import pytest

from tidebox.runtime.native.interpreter import directories_of


@pytest.mark.parametrize(
    ("name", "directories"),
    [("usr/bin/python3", ["usr", "usr/bin"]), ("opt/a b/python3", ["opt", "opt/a b"]), ("python3", [])],
)
def test_every_directory_of_the_copy_is_made(name: str, directories: list[str]) -> None:
    assert directories_of(name) == directories
