"""Tables, on terminals of any width and without one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidebox.cli.output import print_table

ROWS = [("a", "some words that can be broken into lines", "/one/long/path/that/cannot"), ("b", "", "x")]


def printed(
    capsys: pytest.CaptureFixture[str], rows: Sequence[tuple[str, str, str]], columns: int | None = None
) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        if columns is not None:
            patch.setenv("COLUMNS", str(columns))
        print_table(("NAME", "TEXT", "PATH"), rows)
    return capsys.readouterr().out.splitlines()


def test_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, ROWS) == [
        "NAME  TEXT                                      PATH",
        "a     some words that can be broken into lines  /one/long/path/that/cannot",
        "b                                               x",
    ]


def test_a_narrow_terminal_breaks_text_but_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, ROWS, 50)
    assert all(len(line) <= 50 for line in lines)
    assert len(lines) > 3
    assert any("/one/long/path/that/cannot" in line for line in lines)
    assert any("/one/long/path/that/cannot" in line for line in printed(capsys, ROWS, 10))


def test_a_table_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, []) == ["NAME  TEXT  PATH"]


def test_nothing_in_a_cell_is_obeyed_by_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in "".join(printed(capsys, [("\x1b[2Jx", "two\nlines", "")]))


def test_columns_that_can_be_spared(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, shown in ((80, "NAME  TEXT  PATH"), (14, "NAME  PATH"), (6, "NAME"), (1, "NAME")):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table(("NAME", "TEXT", "PATH"), [("aaaa", "bbbb", "cccc")], spare=("TEXT", "PATH"))
        assert capsys.readouterr().out.splitlines()[0] == shown
