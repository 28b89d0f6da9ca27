"""A program that wrecks its own interpreter ends as it would outside, and finds nothing of ours underneath.

User code runs in a process forked from a warm interpreter: whatever it breaks, no line of the spawner may run or show
in it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.boxes import BoxRunner

WRECKAGE = {
    "alias-of-a-module": "import os, sys; sys.modules['planted'] = os",
    "empty-os": "import os; os.__dict__.clear()",
    "empty-posix": "import posix; posix.__dict__.clear()",
    "empty-sys": "import sys; sys.__dict__.clear()",
    "empty-builtins": "import builtins; builtins.__dict__.clear()",
    "no-modules": "import sys; sys.modules.clear()",
    "modules-of-nothing": "import sys\nfor name in list(sys.modules):\n    sys.modules[name] = None",
    "exit-that-returns": "import os, posix; os._exit = posix._exit = lambda code: None",
    "exit-that-lies": "import sys; sys.exit = lambda *a: None; sys.exit(4)",
    "hook-that-raises": "import sys\ndef hook(*a): raise ValueError('again')\nsys.excepthook = hook\n1 / 0",
    "hook-that-exits": "import sys\ndef hook(*a): sys.exit(6)\nsys.excepthook = hook\n1 / 0",
    "handler-at-exit-raises": "import atexit\natexit.register(lambda: 1 / 0)",
    "handler-at-exit-exits": "import atexit, sys\natexit.register(lambda: sys.exit(5))",
    "finalizer-raises": "class C:\n    def __del__(self): raise ValueError\nkeep = C()",
    "streams-of-nothing": "import sys; sys.stdout = sys.stderr = sys.stdin = None; 1 / 0",
    "streams-that-raise": """
import sys
class S:
    def write(self, x): raise OSError
    def flush(self): raise OSError
sys.stdout = S()
""",
    "exception-that-raises": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "base-exception": "class E(BaseException): pass\nraise E('odd')",
    "exit-with-an-object": "class C:\n    def __str__(self): return 'odd'\nraise SystemExit(C())",
    "exit-with-a-number-too-large": "raise SystemExit(1 << 70)",
    "tiny-recursion-limit": "import sys\nsys.setrecursionlimit(20)",
    "tracer": "import sys\nsys.settrace(lambda *a: 1 / 0)",
    "profiler": "import sys\nsys.setprofile(lambda *a: None)",
    "threads-module-broken": "import threading\nthreading._shutdown = None",
    "main-removed": "import sys\ndel sys.modules['__main__']",
    "main-emptied": "globals().clear()",
    "frames-unwound": """
import sys
frame = sys._getframe()
while frame:
    frame.f_locals.clear()
    frame = frame.f_back
""",
    "generator-at-the-end": """
def g():
    try:
        yield
    finally:
        raise SystemExit(9)
keep = g()
next(keep)
""",
    "garbage-off": "import gc; gc.disable(); gc.freeze()",
    "import-broken": "import builtins\nbuiltins.__import__ = None",
}


@pytest.mark.parametrize("kind", sorted(WRECKAGE))
def test_a_wrecked_interpreter_ends_as_it_would_outside(box_run: BoxRunner, tmp_path: Path, kind: str) -> None:
    code = WRECKAGE[kind] + "\n"
    (tmp_path / "main.py").write_text(code)
    plain = subprocess.run(
        [box_run.engine.runtime.interpreters["python3"], "main.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    result = box_run(code)
    assert b"tidebox" not in result.stdout + result.stderr
    assert b"spawner" not in result.stdout + result.stderr
    ended = -result.signal if result.signal is not None else result.exit_code
    assert ended == plain.returncode, (result.stderr, plain.stderr)


def test_frames_below_the_program_hold_no_names_of_ours(box_run: BoxRunner) -> None:
    program = """
import sys
frame, names = sys._getframe(), []
while frame := frame.f_back:
    names += [frame.f_code.co_filename, *map(str, frame.f_locals), *map(repr, frame.f_locals.values())]
print("/spawner/" in " ".join(names), "socket" in " ".join(names))
"""
    assert box_run(program).stdout.split() == [b"False", b"False"]


def test_no_socket_or_order_of_the_spawner_is_left_in_memory(box_run: BoxRunner) -> None:
    program = """
import gc
kinds = {type(thing).__module__ + "." + type(thing).__qualname__ for thing in gc.get_objects()}
print(sorted(kind for kind in kinds if kind.startswith(("_socket.", "socket.", "select.")) or "Order" in kind))
"""
    assert box_run(program).stdout.strip() == b"[]"
