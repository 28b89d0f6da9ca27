"""Runs classic BPF programs as the kernel would, for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def instructions(program: bytes) -> list[tuple[int, int, int, int]]:
    """Operation, distance if true, distance if false, value."""
    return list(struct.iter_unpack("=HBBI", program))


def seccomp_data(architecture: int, number: int, arguments: Sequence[int] = ()) -> bytes:
    """``struct seccomp_data`` of one system call."""
    padded = [value & (1 << 64) - 1 for value in arguments] + [0] * (6 - len(arguments))
    return struct.pack("=IIQ6Q", number, architecture, 0x7F0000001000, *padded)


def run(program: bytes, data: bytes) -> tuple[int, int]:
    """The value the program returns and how many instructions it took."""
    code = instructions(program)
    accumulator = place = steps = 0
    while True:
        operation, if_true, if_false, value = code[place]
        steps += 1
        place += 1
        if operation == 0x06:
            return value, steps
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x54:
            accumulator &= value
        else:
            truth = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            place += if_true if truth else if_false
