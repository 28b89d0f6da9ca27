"""``python -m tidebox.wire.schema``: print the current generation's surface; ``--bless`` writes its file only."""

from __future__ import annotations

import argparse
import sys

from tidebox.wire.generations import GENERATION
from tidebox.wire.schema import render, snapshot_path


def main() -> int:
    """Print or bless."""
    parser = argparse.ArgumentParser(prog="python -m tidebox.wire.schema", description="the protocol's surface as JSON")
    parser.add_argument("--bless", action="store_true", help=f"write the snapshot of generation {GENERATION}")
    if parser.parse_args().bless:
        snapshot_path(GENERATION).write_text(render(GENERATION))
    else:
        sys.stdout.write(render(GENERATION))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
