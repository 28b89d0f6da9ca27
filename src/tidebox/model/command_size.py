"""How long commands and environments may be: no longer than what the kernel takes when a program is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidebox.errors import InvalidRequest
from tidebox.model.limits import KIB, MIB

MAX_WORD_BYTES = 128 * KIB - 1
"""Of one argument, or of one variable with its name: MAX_ARG_STRLEN, in which the end of the text counts."""
MAX_WORDS_BYTES = MIB
"""Of all together. The kernel takes a quarter of the stack, 2 MiB, in which every word costs a pointer besides."""


def check_command_size(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise ``InvalidRequest`` for a command or environment that ``execve`` would refuse as too long."""
    sizes = [_size(word) for word in command]
    if sizes and max(sizes) > MAX_WORD_BYTES:
        raise InvalidRequest(f"command: a word of more than {MAX_WORD_BYTES} bytes", field="command")
    variables = [_size(name) + 1 + _size(value) for name, value in env.items()]
    if variables and max(variables) > MAX_WORD_BYTES:
        raise InvalidRequest(f"env: a variable of more than {MAX_WORD_BYTES} bytes", field="env")
    if sum(sizes) + sum(variables) > MAX_WORDS_BYTES:
        raise InvalidRequest(f"command and env: more than {MAX_WORDS_BYTES} bytes in all", field="command")


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
