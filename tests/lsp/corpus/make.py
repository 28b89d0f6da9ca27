"""Makes the corpus of traces: runs every program of ``programs`` in a box, and writes down what it printed.

    python -m tests.lsp.corpus.make [NAME...]

Needs what the programs need (Debian: nodejs golang-go default-jdk-headless junit4 junit5 busybox-static) and an index
for the packages pytest and typescript; the tests need only what this writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tidebox
from tests.lsp.corpus.programs import CASES, Case

TRACES = Path(__file__).with_name("traces")
_MEMORY, _SECONDS = 1 << 30, 120


def make(case: Case) -> dict[str, Any]:
    """Run one program."""
    options = {"memory": _MEMORY, "timeout": _SECONDS, **case.options}
    files = {path: text.encode() for path, text in case.files.items()}
    result = tidebox.run(command=case.command, files=files, **options)
    return {
        "name": case.name,
        "command": case.command,
        "files": case.files,
        "exit_code": result.exit_code,
        "stdout": result.stdout.decode("utf-8", "replace"),
        "stderr": result.stderr.decode("utf-8", "replace"),
        "expected": expected(case),
    }


def expected(case: Case) -> list[dict[str, Any]]:
    """Return the expected marks: the arrows in the source."""
    places = {}
    for path, text in case.files.items():
        for number, line in enumerate(text.split("\n"), 1):
            before, arrow, after = line.partition("<-")
            while arrow and after[:1] not in ("", " "):
                before, arrow, after = after.partition("<-")
            if arrow and ("#" in before or "//" in before):
                places[after.strip() or "1"] = (path, number)
    found = [places[str(index)] for index, _ in enumerate(case.messages, 1)] if len(places) > 1 else []
    found = found or [place for place in places.values() for _ in case.messages]
    assert len(found) == len(case.messages), case.name
    return [
        {"path": path, "line": line, "message": message, "warning": case.warnings}
        for (path, line), message in zip(found, case.messages, strict=True)
    ]


def main() -> None:
    """Make all, or those that are named."""
    TRACES.mkdir(exist_ok=True)
    wanted = sys.argv[1:]
    assert len({case.name for case in CASES}) == len(CASES), "two programs of one name"
    for case in CASES:
        if not wanted or any(case.name.startswith(name) for name in wanted):
            made = json.dumps(make(case), indent=1, ensure_ascii=False) + "\n"
            (TRACES / f"{case.name}.json").write_text(made)
            sys.stderr.write(f"{case.name}\n")


if __name__ == "__main__":
    main()
