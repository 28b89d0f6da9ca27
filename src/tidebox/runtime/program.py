"""The program block: what a parked interpreter reads from its stdin before what the program itself will read there.

Its other end, and the format, is ``tidebox.spawner.program``.
"""

from __future__ import annotations

from tidebox.model.launch import Program, encode_text


def encode_program(program: Program, cpu_seconds: int) -> bytes:
    """The block of a program that may use so much cpu time; 0 for as much as it wants."""
    fields = (
        program.mode.encode(),
        encode_text("cwd", program.cwd),
        encode_text("path", program.path),
        program.source,
        b"%d" % cpu_seconds,
        b"\0".join(encode_text("env", f"{name}={value}") for name, value in program.env),
        b"\0".join(encode_text("arguments", argument) for argument in program.arguments),
    )
    body = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return len(body).to_bytes(4, "big") + body
