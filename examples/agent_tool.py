"""A tool for an AI agent: code in, a short report out that a model can act on."""

import json
from typing import Any

import tidebox

TOOL = {
    "name": "execute_python",
    "description": "Run a Python program in a fresh sandbox without network. Nothing is kept between calls.",
    "input_schema": {
        "type": "object",
        "properties": {"code": {"type": "string"}, "stdin": {"type": "string"}},
        "required": ["code"],
    },
}


def execute_python(code: str, stdin: str = "") -> dict[str, Any]:
    """What the agent calls."""
    result = tidebox.run(code, stdin=stdin, timeout=10, output=20_000)
    return {
        "outcome": result.outcome.value,
        "exit_code": result.exit_code,
        "stdout": result.text,
        "stderr": result.stderr.decode("utf-8", "replace"),
        "truncated": result.truncated,
    }


# What a model might send, and what it gets back.
for arguments in (
    {"code": "print(sum(map(int, input().split())))", "stdin": "20 22"},
    {"code": "print(1 / 0)"},
    {"code": "import socket; socket.create_connection(('1.1.1.1', 80), timeout=1)"},
):
    report = execute_python(**arguments)
    report["stderr"] = report["stderr"].strip().rpartition("\n")[2]
    print(json.dumps(report))
