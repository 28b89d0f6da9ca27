"""Preloads: sets of Python modules imported in a template ahead of time, and the sets that a program would use.

The choice is a hint taken from its text. A wrong one costs time and nothing else: what is loaded and not imported is
not there for the program, and what is imported and not loaded is loaded then.
"""

from __future__ import annotations

import re

STANDARD = "standard"
# Loaded in this order: first what is not written in Python alone, whose imports cannot be seen when they are there.
_PACKAGES = {
    "numpy": ("numpy",),
    "pandas": ("numpy", "pandas"),
    "matplotlib": (
        *("numpy", "pandas", "matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.dates"),
        *(
            "PIL.BmpImagePlugin",
            "PIL.GifImagePlugin",
            "PIL.JpegImagePlugin",
            "PIL.PngImagePlugin",
            "PIL.PpmImagePlugin",
        ),
    ),
}
SETS = (STANDARD, *_PACKAGES)
_STANDARD_LIBRARY = (
    *("argparse", "ast", "asyncio", "base64", "bisect", "calendar", "collections", "concurrent.futures"),
    *("configparser", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "email", "enum"),
    *("fnmatch", "fractions", "functools", "getpass", "glob", "gzip", "hashlib", "heapq", "html", "http.client"),
    *("http.server", "inspect", "io", "itertools", "json", "locale", "logging", "math", "multiprocessing", "operator"),
    *("pathlib", "pickle", "platform", "pprint", "queue", "random", "re", "secrets", "select", "selectors", "shutil"),
    *("signal", "socket", "socketserver", "sqlite3", "ssl", "statistics", "string", "struct", "subprocess", "tempfile"),
    *("textwrap", "threading", "timeit", "traceback", "types", "typing", "unittest", "unittest.mock", "urllib.request"),
    *("uuid", "warnings", "weakref", "xml.etree.ElementTree", "zipfile", "zlib"),
)
# What a program gets at once anywhere: loaded by every interpreter at its start, or part of it.
_CHEAP = frozenset(
    (
        *("__future__", "_thread", "abc", "atexit", "builtins", "codecs", "errno", "faulthandler", "gc", "io"),
        *("itertools", "marshal", "math", "os", "posix", "stat", "sys", "time"),
    )
)
_STATEMENT = re.compile(rb"(?:^|[;:])[ \t]*(import|from)[ \t]+([A-Za-z_][\w., \t]*)", re.MULTILINE)
_MOST_TEXT = 64 * 1024
_MOST_STATEMENTS = 256


def modules_of(name: str) -> tuple[str, ...]:
    """The modules of a set, in the order in which they are loaded."""
    return (*_PACKAGES.get(name, ()), *_STANDARD_LIBRARY)


def package_of(name: str) -> str | None:
    """The package that a set is for; None for the standard library."""
    return name if name in _PACKAGES else None


def sets_for(source: bytes) -> tuple[str, ...]:
    """The sets that a program of this text would like, the best first; none for one that imports next to nothing."""
    if source.find(b"import", 0, _MOST_TEXT) < 0:
        return ()
    names = imported(source)
    wanted = [name for name in reversed(_PACKAGES) if name in names]
    return (*wanted, STANDARD) if names - _CHEAP else ()


def imported(source: bytes) -> frozenset[str]:
    """The top-level modules that a text seems to import: a glance, not a parse."""
    found: set[str] = set()
    for number, match in enumerate(_STATEMENT.finditer(source, 0, _MOST_TEXT)):
        if number == _MOST_STATEMENTS:
            break
        listed = match[2].split(b",") if match[1] == b"import" else [match[2]]
        # "a.b as c", or what follows "from".
        names = (name.split() for name in listed)
        found.update(name[0].partition(b".")[0].decode("ascii", "replace") for name in names if name)
    return frozenset(found)
