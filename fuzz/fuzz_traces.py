"""Fuzz target of the language server's parsers: any output marks lines of files that were sent, and in good time.

With atheris installed: ``python -m fuzz.fuzz_traces corpus/ -max_total_time=600``. Without it, traces of the corpus are
mutated at random for ``--seconds``.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from fuzz.harness import main
from tidebox.lsp.diagnostics.parsing import find_problems
from tidebox.lsp.diagnostics.path_mapping import SentFiles, locate_problems

TRACES = Path(__file__).parent.parent / "tests" / "lsp" / "corpus" / "traces"
SEEDS = [
    trace["stdout"] + trace["stderr"] for trace in (json.loads(path.read_text()) for path in sorted(TRACES.glob("*")))
]
FILES = dict.fromkeys(
    [
        *("main.py", "main.js", "main.go", "main.sh", "Main.java", "test_it.py", "src/app.ts", "app.ts"),
        *("main.c", "main.cpp", "main.rb", "main.exs", "main.rs"),
    ],
    3,
)
_DAMAGE = ['File "', "line ", "Traceback (most recent call last):", "  | ", "  +-+---- 1 ----", "    at ", "\x1b[", ":"]
_SECONDS_OF_ONE = 5.0
_MOST_OF_A_LINE, _MOST = 100_000, 600_000
"""Characters: some more than the parsers look at, so that they have something to leave out."""


def check(data: bytes) -> None:
    """Read one output; it is both streams."""
    text = data.decode("utf-8", "replace")
    began = time.thread_time()
    for found in locate_problems(find_problems(text, text), SentFiles(FILES, FILES.__getitem__)):
        for place in (found.place, *(place for place, _ in found.related)):
            assert 1 <= place.line <= FILES[place.path]
    assert time.thread_time() - began < _SECONDS_OF_ONE


def mutate(source: random.Random) -> bytes:
    """Lines of a few traces, with random damage."""
    lines = [line for text in source.choices(SEEDS, k=source.randint(1, 3)) for line in text.split("\n")]
    for _ in range(source.randint(0, 10)):
        at = source.randrange(len(lines) + 1)
        match source.randrange(5):
            case 0:
                lines[at : at + 1] = []
            case 1:
                lines[at:at] = source.choices(lines or [""], k=source.randint(1, 5))
            case 2:
                lines[at:at] = ["".join(source.choices(_DAMAGE, k=source.randint(1, 500)))]
            case 3 if at < len(lines):
                cut = source.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:cut] + source.choice(_DAMAGE) + lines[at][cut:]
            case _ if at < len(lines):
                # Damage adds up: what was made longer before is not made so long again.
                lines[at] = (lines[at] * source.randint(2, 200))[:_MOST_OF_A_LINE]
    return "\n".join(lines)[:_MOST].encode("utf-8", "replace")


if __name__ == "__main__":
    main(check, mutate, "fuzz the parsers of traces at random")
