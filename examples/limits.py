"""What a program may use, and how it ends when it wants more."""

from typing import Any

import tidebox
from tidebox.errors import LimitOutOfRange
from tidebox.model.limits import MIB

GREEDY: list[tuple[str, dict[str, Any]]] = [
    ("while True: pass", {"timeout": 0.5}),
    ("x = bytearray(b'x') * (1 << 30)", {"memory": 64 * MIB}),
    ("while True: print('tide')", {"output": 1000}),
]

for program, limits in GREEDY:
    result = tidebox.run(program, **limits)
    print(f"{program:32} {result.outcome.value}, {len(result.stdout)} bytes of output")

try:
    tidebox.run("print('hello')", memory=-1)
except LimitOutOfRange as error:
    print("refused:", error.details["field"])
