"""Tracks what programs change about a terminal, to change it back where they do not do so themselves.

A user who leaves an editor running, or loses it, would otherwise go on in its screen: with the mouse reported as keys,
and without a cursor.
"""

from __future__ import annotations

import re

_CHANGE = re.compile(
    rb"\x1b(?:"
    rb"\[(?P<private>\??)(?P<modes>[0-9;]{1,64})(?P<set>[hl])"  # modes, several at once
    rb"|\[(?P<margins>[0-9;]{0,16})r"
    rb"|\[(?P<style>[0-9;:]{0,64})m"
    rb"|\[>4(?:;(?P<keys>[0-9]*))?m"
    rb"|\[(?P<shape>[0-9]{0,4}) q"
    rb"|(?P<keypad>[=>])"
    rb"|\((?P<letters>[0-9A-Za-z])"
    rb"|(?P<reset>c|\[!p)"
    rb")"
)
# What may be the beginning of one of these, at the end of a piece.
_BEGUN = re.compile(rb"\x1b(?:\[[>?!]?[0-9;:]{0,64} ?|\()?\Z")

_SCREENS = (b"?1049", b"?1047", b"?47")
_OFF = (
    *(b"4", b"?1", b"?5", b"?6", b"?9", b"?2004"),
    *(b"?1000", b"?1001", b"?1002", b"?1003", b"?1004", b"?1005", b"?1006", b"?1015", b"?1016"),
)
_ON = (b"?7", b"?25")
_MARGINS = b"\x1b7\x1b[r\x1b8"  # which moves the cursor, so its place is kept
_BACK = {
    "margins": _MARGINS,
    "style": b"\x1b[m",
    "keys": b"\x1b[>4m",
    "shape": b"\x1b[0 q",
    "keypad": b"\x1b>",
    "letters": b"\x1b(B",
}
_AS_USUAL = {"style": (b"", b"0"), "keys": (b"", b"0"), "shape": (b"", b"0"), "keypad": (b">",), "letters": (b"B",)}


class Modes:
    """Follows the output of a program, and knows how to undo what of it is still in force."""

    def __init__(self) -> None:
        self._changed: dict[bytes | str, None] = {}
        self._begun = b""

    def see(self, data: bytes) -> None:
        """Take note of a piece of output, however it is cut."""
        data = self._begun + data
        for found in _CHANGE.finditer(data):
            self._take(found)
        begun = _BEGUN.search(data)
        self._begun = begun[0] if begun else b""

    def undo(self) -> bytes:
        """Return the escape sequences that make the terminal as it was; nothing where it is so already."""
        order: tuple[bytes | str, ...] = (*_SCREENS, *_OFF, *_ON, *_BACK)
        back = b"".join(self._back(each) for each in order if each in self._changed)
        self._changed.clear()
        return back

    def _back(self, change: bytes | str) -> bytes:
        if isinstance(change, str):
            return _BACK[change]
        return b"\x1b[" + change + (b"h" if change in _ON else b"l")

    def _take(self, found: re.Match[bytes]) -> None:
        if found["modes"]:
            for mode in found["modes"].split(b";"):
                name = found["private"] + mode
                if name in _ON or name in _OFF or name in _SCREENS:
                    self._note(name, (found["set"] == b"h") != (name in _ON))
        elif found["reset"]:
            # Also of the screens: a terminal that begins anew shows its own.
            self._changed.clear()
        elif found["margins"] is not None:
            self._note("margins", found["margins"] != b"")
        else:
            for kind, usual in _AS_USUAL.items():
                if found[kind] is not None:
                    self._note(kind, found[kind] not in usual)
            if found["keys"] is None and found[0].startswith(b"\x1b[>4"):
                self._note("keys", False)

    def _note(self, change: bytes | str, in_force: bool) -> None:
        if in_force:
            self._changed[change] = None
        else:
            self._changed.pop(change, None)
