"""A small assembler for classic BPF, the language of seccomp filters (linux/filter.h, linux/seccomp.h).

A jump target is either the name of a label further down or a number: the value to return. Each distinct value becomes
one shared return instruction at the end of the program.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    Target = Union[int, str]

EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_INSTRUCTION = struct.Struct("=HBBI")
# A conditional jump has one byte for each of its two distances.
_FARTHEST = 255


class Assembler:
    """Collects instructions, then places labels and returns."""

    __slots__ = ("_code", "_labels")

    def __init__(self) -> None:
        self._code: list[tuple[int, int, Target | None, Target | None]] = []
        self._labels: dict[Target, int] = {}

    def label(self, name: str) -> None:
        """Let ``name`` stand for the next instruction."""
        if name in self._labels:
            raise ValueError(f"label {name} is placed twice")
        self._labels[name] = len(self._code)

    def load(self, offset: int) -> None:
        """Load the 32-bit word at ``offset`` of the data the filter looks at."""
        self._code.append((_LOAD, offset, None, None))

    def mask(self, bits: int) -> None:
        """Keep only ``bits`` of the loaded word."""
        self._code.append((_AND, bits, None, None))

    def jump(self, test: int, value: int, then: Target | None = None, otherwise: Target | None = None) -> None:
        """Compare the loaded word with ``value``; no target means the next instruction."""
        self._code.append((test, value, then, otherwise))

    def assemble(self) -> bytes:
        """The program as an array of ``struct sock_filter``."""
        places = dict(self._labels)
        returns: list[int] = []
        for _, _, then, otherwise in self._code:
            for target in (then, otherwise):
                if isinstance(target, int) and target not in places:
                    places[target] = len(self._code) + len(returns)
                    returns.append(target)
        program = bytearray()
        for index, (operation, value, then, otherwise) in enumerate(self._code):
            distances = [_distance(places, index, target) for target in (then, otherwise)]
            program += _INSTRUCTION.pack(operation, distances[0], distances[1], value)
        for value in returns:
            program += _INSTRUCTION.pack(_RETURN, 0, 0, value)
        return bytes(program)


def _distance(places: dict[Target, int], index: int, target: Target | None) -> int:
    if target is None:
        return 0
    if target not in places:
        raise ValueError(f"label {target} is not placed")
    distance = places[target] - index - 1
    if not 0 <= distance <= _FARTHEST:
        raise ValueError(f"jump of {distance} instructions to {target}")
    return distance
