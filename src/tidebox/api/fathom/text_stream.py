"""Incremental UTF-8 decoding of a program's output."""

from __future__ import annotations

import codecs

_UTF8 = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """One stream's bytes as text: a character that comes in pieces is kept until it is whole.

    What is not UTF-8 becomes U+FFFD, one for each part that cannot be the beginning of a character, as everywhere in
    Python; nothing raises.
    """

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, data: bytes) -> str:
        """Decode ``data``, and return the text that is complete with it."""
        if self._decoder is None:
            # Almost everything ends where a character does, and needs no state.
            try:
                return data.decode()
            except UnicodeDecodeError:
                self._decoder = _UTF8("replace")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return the replacement for a character that was cut off at the end."""
        return self._decoder.decode(b"", final=True) if self._decoder is not None else ""
