"""The content of ``/.tidebox`` in a box, so that its own interpreters can be parked, and the commands that park them.

Parked interpreters wait in the cells of the warm pool. Files of ``spawner`` are read here as data, for they run under
the box's interpreter; modules may import the same as all of ``runtime``.
"""

from __future__ import annotations

from pathlib import Path

DIRECTORY = "/.tidebox"

# The exec that waits for a program, by cell. A Python that is the spawner's own needs none: there the agent forks.
COMMANDS = {
    "python": ("python3", f"{DIRECTORY}/park.py"),
    "node": ("node", "--require", f"{DIRECTORY}/park.js", f"{DIRECTORY}/park.js"),
    "elixir": ("elixir", f"{DIRECTORY}/park.exs"),
}

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent.parent
# Files, not imports: they run under the box's interpreter, which may be older than this one.
_SHARED = ("frames.py", "fresh.py", "handover.py", "leaving.py", "preload.py", "program.py", "warm.py")


def files() -> dict[str, bytes]:
    """The content of ``/.tidebox``, by path below it."""
    launchers = {name: (_HERE / name).read_bytes() for name in ("park.exs", "park.js")}
    launchers["park.py"] = (_PACKAGE / "spawner" / "park.py").read_bytes()
    shared = {f"tidebox/spawner/{name}": (_PACKAGE / "spawner" / name).read_bytes() for name in _SHARED}
    return launchers | shared | {"tidebox/__init__.py": b"", "tidebox/spawner/__init__.py": b""}
