"""Which modules a program seems to import: a hint, taken at a glance."""

from __future__ import annotations

import time

import pytest

from tidebox.model.preloads import imported, sets_for


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (b"print('hello')", ""),
        (b"import json", "json"),
        (b"import json, csv as c , os.path\nfrom http.server import *", "json csv os http"),
        (b"def f():\n    import numpy as np\n\tfrom pandas import DataFrame", "numpy pandas"),
        (b"a = 1; import re; from x.y import z", "re x"),
        (b"if True: import abc", "abc"),
        (b"from . import beside\nfrom .beside import x", ""),
        (b"important = 1\nfromage = 2\nimporting = 3", ""),
        (b"\xff\xfe\x00 import", ""),
        (b"import (", ""),
    ],
)
def test_what_a_text_imports(source: bytes, names: str) -> None:
    assert imported(source) == frozenset(names.split())


@pytest.mark.parametrize(
    ("source", "sets"),
    [
        (b"print('hello')", ()),
        (b"import sys, os, time, math", ()),
        (b"import json", ("standard",)),
        (b"import something_else", ("standard",)),
        (b"import numpy", ("numpy", "standard")),
        (b"import pandas, numpy", ("pandas", "numpy", "standard")),
        (b"import matplotlib.pyplot as plt\nimport pandas", ("matplotlib", "pandas", "standard")),
    ],
)
def test_what_it_would_like(source: bytes, sets: tuple[str, ...]) -> None:
    assert sets_for(source) == sets


@pytest.mark.parametrize("source", [b"import a\n" * 10**6, b"import " + b"a," * 10**6, b";" * 10**7, b"\n \t" * 10**6])
def test_a_hostile_text_costs_next_to_nothing(source: bytes) -> None:
    start = time.process_time()
    sets_for(source)
    assert time.process_time() - start < 0.2
