"""Unpacks wheels where the Python of an image finds them, and writes the commands they come with."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from tidebox.errors import InvalidPackage
from tidebox.model.packages import python_name
from tidebox.runtime.layers import Lock, Locked
from tidebox.runtime.packaging.target import PythonTarget
from tidebox.runtime.packaging.tree import Tree, check_commands, hide, hide_below

COMMANDS = "usr/local/bin"
_DATA = "usr/local"
_MAX_ENTRY_POINTS = 1 << 20
# What is longer is no script that anybody wrote; its first line stays.
_MAX_SCRIPT = 1 << 20
_ANY_PYTHON = b"#!python"
_COMMAND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,100}\Z")
_ENTRY_POINT = re.compile(
    r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*:\s*(?P<object>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*(?:\[.*\])?\Z",
    re.ASCII,
)
_SCRIPT = """\
#!{python}
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.exit({object}())
"""


def add_wheel(tree: Tree, archive: Path, package: Locked, target: PythonTarget) -> None:
    """Unpack a wheel."""
    site = target.site.strip("/")

    def place(name: bytes) -> bytes | None:
        top, _, rest = name.partition(b"/")
        if not top.endswith(b".data") or not rest:
            return site.encode() + b"/" + name
        scheme, _, path = rest.partition(b"/")
        where = {b"purelib": site, b"platlib": site, b"scripts": COMMANDS, b"data": _DATA}.get(scheme)
        # What is left are headers, for programs that are compiled.
        return where.encode() + b"/" + path if where is not None and path else None

    def finish(root: Path) -> None:
        _set_interpreter(root / COMMANDS, target)
        _write_commands(tree, root, root / site, package, target)

    tree.add(archive, "zip", package, place, finish)


def _set_interpreter(commands: Path, target: PythonTarget) -> None:
    """Scripts of a wheel begin with ``#!python``, whichever that will be."""
    for script in commands.iterdir() if commands.is_dir() else ():
        if not script.is_file():
            continue
        if script.stat().st_size <= _MAX_SCRIPT and _begins_with(script, _ANY_PYTHON):
            _, newline, rest = script.read_bytes().partition(b"\n")
            script.write_bytes(f"#!{target.executable}".encode() + newline + rest)
        script.chmod(0o755)


def _begins_with(path: Path, beginning: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(beginning)) == beginning


def _write_commands(tree: Tree, root: Path, site: Path, package: Locked, target: PythonTarget) -> None:
    for name, found in _entry_points(site, package).items():
        command = root / COMMANDS / name
        script = _SCRIPT.format(
            python=target.executable,
            module=found["module"],
            first=found["object"].partition(".")[0],
            object=found["object"],
        )
        tree.count(1, len(script), package.shown)
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(script)
        command.chmod(0o755)


def _entry_points(site: Path, package: Locked) -> dict[str, re.Match[str]]:
    """The commands that a wheel names in the description of itself, of which it has one."""
    own = [path for path in site.glob("*.dist-info") if python_name(path.name.partition("-")[0]) == package.name]
    if len(own) > 1:
        raise InvalidPackage(f"{package.shown} describes itself twice", field="packages", package=package.name)
    path = next((directory / "entry_points.txt" for directory in own), None)
    if path is None or not path.is_file() or path.stat().st_size > _MAX_ENTRY_POINTS:
        return {}
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(path.read_text("utf-8", "replace"))
    except configparser.Error:
        return {}
    commands = {}
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser[section].items() if parser.has_section(section) else ():
            found = _ENTRY_POINT.match(value.strip())
            # A name or a place that is none of Python's could be code in the script, or a path out of here.
            if found is not None and _COMMAND.match(name):
                commands[name] = found
    check_commands(commands, package)
    return commands


def hide_others(tree: Tree, lock: Lock, target: PythonTarget) -> None:
    """Let the packages hide those of the same names that the image has, in whichever directory, or all of them."""
    site = tree.root / target.site.strip("/")
    others = [tree.root / place.strip("/") for place in target.others.split(":") if place]
    if target.alone:
        hide_below(site)
        for other in others:
            hide(other)
        return
    for package in sorted(site.iterdir()):
        if not package.is_dir() or not package.name.isidentifier() or package.name == "__pycache__":
            continue
        # One without this file is a part of a package that others add to: an image's part may stay, but not as a whole.
        whole = (package / "__init__.py").is_file()
        if whole:
            hide_below(package)
        for other in others:
            hide(other / package.name if whole else other / package.name / "__init__.py")
    names = {package.name for package in lock.packages}
    for path in filter(None, target.namespaces.split(":")):
        if python_name(path.rpartition("/")[2].partition("-")[0]) in names:
            hide(tree.root / path.strip("/"))
