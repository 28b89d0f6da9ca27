"""Bytes become text without breaking a character, whatever they are and however they are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidebox.api.fathom.text_stream import TextStream

ALMOST_TEXT = st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))


def decoded(pieces: list[bytes]) -> list[str]:
    stream = TextStream()
    return [*(stream.feed(piece) for piece in pieces), stream.flush()]


@given(st.lists(ALMOST_TEXT))
def test_how_bytes_are_cut_changes_nothing(pieces: list[bytes]) -> None:
    assert "".join(decoded(pieces)) == b"".join(pieces).decode("utf-8", "replace")


def test_a_character_in_pieces_waits_until_it_is_whole() -> None:
    assert decoded([b"\xf0", b"\x9f\x98", b"\x80", b"x"]) == ["", "", "\N{GRINNING FACE}", "x", ""]


def test_text_around_a_cut_character_does_not_wait() -> None:
    assert decoded([b"caf\xc3", b"\xa9!"]) == ["caf", "\u00e9!", ""]


def test_a_character_that_never_ends_is_replaced_at_the_end() -> None:
    assert decoded([b"a\xe2\x82"]) == ["a", "\ufffd"]


def test_bytes_that_are_no_text_are_replaced_one_by_one() -> None:
    assert decoded([b"a\xff\xfeb"]) == ["a\ufffd\ufffdb", ""]
