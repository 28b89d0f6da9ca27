"""Command line and random fallback shared by the fuzz targets.

A target is ``check``, which raises for an input that breaks a promise, and ``mutate``, which makes an input. With
atheris installed it explores inputs by coverage; without it, ``mutate`` makes them for ``--seconds``, the same ones
for the same ``--seed``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable

Check = Callable[[bytes], None]
Mutate = Callable[[random.Random], bytes]

_SHOWN = 20_000


def run_random(check: Check, mutate: Mutate, *, seconds: float, seed: int) -> int:
    """Check random inputs and return their number; an input that fails is printed as Python writes bytes."""
    source = random.Random(seed)
    end = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < end:
        data = mutate(source)
        try:
            check(data)
        except Exception:
            sys.stderr.write(f"failing input of {len(data)} bytes, seed {seed}: {data[:_SHOWN]!r}\n")
            raise
        tried += 1
    return tried


def main(check: Check, mutate: Mutate, description: str) -> None:
    """Fuzz with atheris where it is installed, else at random."""
    try:
        import atheris  # type: ignore[import-untyped]
    except ImportError:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--seconds", type=float, default=10)
        parser.add_argument("--seed", type=int, default=time.time_ns())
        options = parser.parse_args()
        tried = run_random(check, mutate, seconds=options.seconds, seed=options.seed)
        sys.stdout.write(f"{tried} inputs, seed {options.seed}\n")
    else:
        atheris.instrument_all()
        atheris.Setup(sys.argv, check)
        atheris.Fuzz()
