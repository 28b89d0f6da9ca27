"""The parsers, given what no program should print: they stay within the files that were sent, and within their time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import fuzz_traces
from fuzz.harness import run_random
from tests.patience import patient
from tidebox.lsp.diagnostics.parsed import MAX_MESSAGE, MAX_PROBLEMS, TraceFrame, split_lines
from tidebox.lsp.diagnostics.parsing import LANGUAGES, find_problems
from tidebox.lsp.diagnostics.path_mapping import LocatedProblem, SentFiles, locate_problems

FILES = {"main.py": 10, "src/app.js": 3, "com/acme/Main.java": 5, "main.go": 4, "run.sh": 2, "a b.py": 1}

_TRACES = [
    json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "corpus" / "traces").glob("*.json"))
]
_LINES = sorted({line for trace in _TRACES for line in (trace["stdout"] + trace["stderr"]).split("\n")})


def marks_of(stdout: str, stderr: str = "") -> list[LocatedProblem]:
    return locate_problems(find_problems(stdout, stderr), SentFiles(FILES, FILES.__getitem__))


def check(marks: list[LocatedProblem]) -> None:
    assert len(marks) <= MAX_PROBLEMS
    for each in marks:
        for place in (each.place, *(place for place, _ in each.related)):
            assert place.path in FILES
            assert 1 <= place.line <= FILES[place.path]
        assert 0 < len(each.message) <= MAX_MESSAGE
        assert not any(ord(char) < 0x20 and char not in "\n\t" for char in each.message)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=2000), st.text(max_size=2000))
def test_any_text_is_survived(stdout: str, stderr: str) -> None:
    check(marks_of(stdout, stderr))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(_LINES), max_size=40), st.data())
def test_lines_of_real_traces_in_any_order_are_survived(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    if text and data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(text)))
        text = text[:cut] + data.draw(st.text(max_size=20)) + text[cut:]
    check(marks_of(text[: len(text) // 2], text))


def test_traces_with_random_damage_are_survived() -> None:
    assert run_random(fuzz_traces.check, fuzz_traces.mutate, seconds=1.0, seed=time.time_ns()) > 0


PATHS = [
    "/etc/passwd",
    "/workspace/../etc/passwd",
    "/workspace/src/../../etc/passwd",
    "../main.py",
    "../../../../../../etc/shadow",
    "/workspace//etc/passwd",
    "file:///etc/passwd",
    "file:///workspace/%2e%2e/etc/passwd",
    "file://host/etc/passwd",
    "C:\\Windows\\win.ini",
    "..\\..\\secret",
    "/workspace/not-sent.py",
    "/workspace/.git/config",
    "~/.ssh/id_rsa",
    "/proc/self/environ",
    "node:internal/main",
    "https://example.com/x.js",
    "\x00",
    "main.py\x00.txt",
    "/workspace/main.py/../../x",
    "/work\u202espace/main.py",
]
FORMATS = [
    'Traceback (most recent call last):\n  File "{path}", line 1, in f\nValueError: x\n',
    '  File "{path}", line 1\n    x\n    ^\nSyntaxError: x\n',
    "{path}:1: UserWarning: x\n",
    "Error: x\n    at f ({path}:1:1)\n",
    "{path}:1\nx\n^\n\nError: x\n\nNode.js v20\n",
    "{path}(1,1): error TS1: x\n",
    "{path}:1:1 - error TS1: x\n",
    "panic: x\n\ngoroutine 1 [running]:\nmain.main()\n\t{path}:1 +0x1\n",
    "{path}:1:1: undefined: x\n",
    'Exception in thread "main" x.Y: m\n\tat {path}.f({path}:1)\n',
    "{path}:1: error: x\n",
    "{path}: line 1: x: not found\n",
    "{path}: 1: x: not found\n",
    "=== FAILURES ===\n___ t ___\nE   x\n\n{path}:1: AssertionError\n",
    "not ok 1 - x\n  ---\n  location: '{path}:1:1'\n  ...\n",
]


@pytest.mark.parametrize("form", FORMATS)
def test_a_path_outside_marks_nothing(form: str) -> None:
    for path in PATHS:
        text = form.format(path=path)
        assert marks_of(text) == [], path
        assert marks_of("", text) == [], path


@pytest.mark.parametrize("number", ["0", "-1", "99999999999999999999", "4294967296", "1e9", "٣", "²"])
def test_a_line_that_is_none_is_not_marked_past_the_end(number: str) -> None:
    check(marks_of("", f'  File "/workspace/main.py", line {number}, in f\nValueError: x\n'))
    check(marks_of("", f"Error: x\n    at f (/workspace/src/app.js:{number}:{number})\n"))


_HOSTILE = [
    '  File "' * 3000,
    '  File "a", line 1, in ' + "x" * 100_000,
    "Traceback (most recent call last):\n" * 10_000,
    '  File "/workspace/main.py", line 1, in f\n' * 10_000,
    "  | " * 20_000 + "\n" + "  + Exception Group Traceback (most recent call last):\n" * 5000,
    "".join(f"{' ' * (index % 900)}+ Exception Group Traceback (most recent call last):\n" for index in range(5000)),
    "    at " + "(" * 200_000,
    "    at a (" * 20_000,
    "    at x (/a:1:1:1:1:1" + ":1" * 50_000 + "\n",
    ("    at x (/a" + ":1" * 400 + "\n") * 500,
    ("a" * 500 + ":1:1" * 100 + "\n") * 500,
    (":1: " * 240 + "\n") * 500,
    "\x1b[" * 200_000,
    ("\x1b[" + "1;" * 400 + "\n") * 500,
    "not ok 1 - x\n" * 10_000,
    "not ok 1 - x\n  error: |-\n" + "    y\n" * 20_000,
    "=== FAILURES ===\n" + "___ t ___\nE   x\nmain.py:1: X\n" * 5000,
    "= " * 100_000 + "\n=== FAILURES ===",
    "panic: x\n\tpanic: " * 10_000 + "main.go:1",
    ("\tat " + "a." * 400 + "(Main.java:1)\n") * 500,
    "Caused by: " * 40_000 + "(Main.java:1)",
    ("run.sh: line 1: " * 60 + "\n") * 500,
    "_" * 300_000 + "=== FAILURES ===",
    "failing tests:\n" + "test at main.go:1:1\nx\ny\n" * 5000,
    "é" * 300_000 + ".go:1:1: ",
    "/workspace/a.js:1\nx\n^\n\nError: x\n" + "\n" * 400_000 + "Node.js v20",
    ("thread '" + "' panicked at '" * 60 + ".rs:\n") * 500,
    ("at " + "a.ts:" * 190 + "\n") * 500,
    ("a.rb:1:in `" * 90 + "\n") * 500,
    ("** (A) a.exs:1: " * 60 + "\n") * 500,
    ("a.c:1:1: error: " * 60 + "\n") * 500,
    ("[ERROR] " * 120 + "\n a.ts:1:1:\n") * 400,
]


@pytest.mark.parametrize("index", range(len(_HOSTILE)))
def test_hostile_output_takes_no_longer_than_its_length(index: int) -> None:
    text = _HOSTILE[index][: 512 * 1024]
    # Every parser looks at it, whatever its hints say.
    lines = split_lines(text)
    began = time.thread_time()
    for language in LANGUAGES:
        for _ in language.parse(lines):
            pass
    check(marks_of(text, text))
    assert time.thread_time() - began < patient(5)


def test_a_file_is_looked_at_once_however_often_a_trace_names_it() -> None:
    frames = "".join(f'  File "/workspace/main.py", line {index % 9 + 1}, in f{index}\n' for index in range(50))
    linked = "\nThe above exception was the direct cause of the following exception:\n\n"
    chain = f"Traceback (most recent call last):\n{frames}ValueError: x\n{linked}" * 90
    leaf = "    | ValueError: {0}\n    +---------------- {0} ----------------\n"
    group = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/workspace/main.py", line 3, in g\n'
        "  | ExceptionGroup: x (60 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
    )
    looked_at: list[str] = []

    def count(path: str) -> int:
        looked_at.append(path)
        return 10

    problems = find_problems("", chain + group + "".join(map(leaf.format, range(2, 60))))
    assert len(locate_problems(problems, SentFiles(["main.py"], count))) == MAX_PROBLEMS
    assert looked_at == ["main.py"]


def test_output_of_any_length_is_read_from_its_end() -> None:
    began = time.thread_time()
    text = (
        "Traceback (most recent call last):\n" * 2_000_000 + 'File "/workspace/main.py", line 2, in f\nValueError: x\n'
    )
    assert [each.place.line for each in marks_of("", text)] == [2]
    assert time.thread_time() - began < patient(5)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("app/main.py", "app/main.py"),
        ("/workspace/app/main.py", "app/main.py"),
        ("file:///workspace/app/main.py", "app/main.py"),
        ("file:///workspace/app%2Fmain.py", "app/main.py"),
        # Relative to a directory in it.
        ("main.py", "app/main.py"),
        # Another file, that the program made, and one on another machine.
        ("/workspace/main.py", None),
        ("file:///workspace/main.py", None),
        ("file://app/main.py", None),
        ("file://localhost/workspace/app/main.py", None),
        ("FILE:///workspace/app/main.py", None),
        ("file:///workspace/app/main.py%00", None),
        ("file:///workspace/%2e%2e/app/main.py", None),
    ],
)
def test_a_name_means_one_file_or_none(named: str, found: str | None) -> None:
    place = SentFiles(["app/main.py"], lambda path: 5).find(TraceFrame(named, 1))
    assert (None if place is None else place.path) == found


# As rustc 1.95 and its programs print it.
RUST_ERRORS = """error[E0425]: cannot find value `nothing` in this scope
 --> main.rs:4:20
  |
4 |     println!("{}", nothing);
  |                    ^^^^^^^ not found in this scope

error[E0308]: mismatched types
 --> main.rs:3:18
  |
3 |     let x: i32 = "a";
  |            ---   ^^^ expected `i32`, found `&str`
  |            |
  |            expected due to this

error: aborting due to 2 previous errors

Some errors have detailed explanations: E0308, E0425.
For more information about an error, try `rustc --explain E0308`.
"""
RUST_PANIC = """
thread 'main' (31440) panicked at main.rs:4:21:
index out of bounds: the len is 1 but the index is 4
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
"""


def test_rust_is_marked() -> None:
    def marked(text: str) -> list[tuple[int, str]]:
        return [
            (m.place.line, m.message)
            for m in locate_problems(find_problems("", text), SentFiles(["main.rs"], lambda path: 5))
        ]

    assert marked(RUST_ERRORS) == [(4, "cannot find value `nothing` in this scope"), (3, "mismatched types")]
    assert marked(RUST_PANIC) == [(4, "index out of bounds: the len is 1 but the index is 4")]
    # As before 1.73.
    assert marked("thread 'main' panicked at 'boom', main.rs:2:5\n") == [(2, "boom")]
