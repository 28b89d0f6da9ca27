"""What can be run in a file, and how: commands for whole files, and lenses over main blocks and tests. No I/O."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidebox.errors import InvalidRequest
from tidebox.model.limits import MIB

_MAX_LENSES = 200
_MAX_TEXT = MIB
_MAX_LINE = 500

_PYTEST = ("python3", "-m", "pytest", "-p", "no:cacheprovider")
_UNITTEST = ("python3", "-m", "unittest")


@dataclass(frozen=True, slots=True)
class Lens:
    """Something to run, over a line that counts from 0."""

    line: int
    title: str
    command: tuple[str, ...]


class _Kind(NamedTuple):
    suffix: str
    """Of a document that has no name yet."""
    command: Callable[[str], tuple[str, ...]]
    lenses: Callable[[str, Sequence[str]], Iterator[Lens]] | None = None


def command_of(path: str, text: str) -> tuple[str, ...]:
    """What runs a file: the program of its first line, or of its name; a file of tests is tested."""
    first = text[:256].partition("\n")[0]
    if first.startswith("#!"):
        words = first[2:].split()
        if words and posixpath.basename(words[0]) == "env":
            words = [word for word in words[1:] if word != "-S"]
        if words and not words[0].startswith("-") and "=" not in words[0]:
            return (posixpath.basename(words[0]), *words[1:], path)
    kind = _KINDS.get(posixpath.splitext(path)[1].lower())
    if kind is None:
        raise InvalidRequest(f"{path}: its name does not tell what runs it; give a command", field="command")
    runner = _test_runner(path, text)
    return runner(path) if runner is not None else kind.command(path)


def suffix_of(language: str) -> str:
    """How the name of a file of that language, as editors call it, ends."""
    for kind in _KINDS.values():
        if kind.suffix == _LANGUAGES.get(language):
            return kind.suffix
    raise InvalidRequest(f"nothing is known that runs {language!r}; give a command", field="command")


def find_lenses(path: str, text: str) -> list[Lens]:
    """The lenses of a file; none for one that nothing is known to run."""
    try:
        whole = command_of(path, text)
    except InvalidRequest:
        return []
    tests = _test_runner(path, text) is not None
    found = [Lens(0, "Run all tests in Sandbox" if tests else "Run in Sandbox", whole)]
    kind = _KINDS.get(posixpath.splitext(path)[1].lower())
    if kind is not None and kind.lenses is not None:
        lines = [line[:_MAX_LINE] for line in text[:_MAX_TEXT].split("\n")]
        for lens in kind.lenses(path, lines):
            found.append(lens)
            if len(found) == _MAX_LENSES:
                break
    return found


# Python

_MAIN_BLOCK = re.compile(r"if\s+__name__\s*==\s*['\"]__main__['\"]\s*:")
_CLASS = re.compile(r"class\s+(?P<name>\w+)(?:\((?P<bases>[^)]*)\))?\s*:")
_DEF = re.compile(r"(?P<indent>\s*)(?:async\s+)?def\s+(?P<name>test\w*)\s*\(")


def _is_unittest(text: str) -> bool:
    return "unittest" in text and "TestCase" in text and "import pytest" not in text


def _is_python_tests(path: str, text: str) -> bool:
    name = posixpath.basename(path)
    named = name.startswith("test_") or name.endswith("_test.py")
    return name.endswith(".py") and named and "def test" in text and not _MAIN_BLOCK.search(text)


def _module(path: str) -> str:
    return posixpath.splitext(path)[0].replace("/", ".")


def _python_lenses(path: str, lines: Sequence[str]) -> Iterator[Lens]:
    text = "\n".join(lines)
    unittest = _is_unittest(text)
    tests = unittest or _is_python_tests(path, text) or "import pytest" in text
    inside: str | None = None
    for number, line in enumerate(lines):
        if _MAIN_BLOCK.match(line):
            yield Lens(number, "Run in Sandbox", ("python3", path))
        elif not tests:
            continue
        elif found := _CLASS.match(line):
            is_case = "TestCase" in (found["bases"] or "") if unittest else found["name"].startswith("Test")
            inside = found["name"] if is_case else None
            if is_case:
                yield Lens(number, "Run tests in Sandbox", _python_test(path, unittest, found["name"]))
        elif found := _DEF.match(line):
            if found["indent"] and inside is not None:
                yield Lens(number, "Run test in Sandbox", _python_test(path, unittest, inside, found["name"]))
            elif not found["indent"] and not unittest:
                yield Lens(number, "Run test in Sandbox", _python_test(path, unittest, found["name"]))
        elif line and not line[0].isspace() and line[0] not in "#@)]}":
            inside = None


def _python_test(path: str, unittest: bool, *names: str) -> tuple[str, ...]:
    if unittest:
        return (*_UNITTEST, ".".join([_module(path), *names]))
    return (*_PYTEST, "::".join([path, *names]))


# JavaScript

_NODE_TEST = re.compile(
    r"\s*(?:test|it|describe|suite)(?:\.only)?\(\s*(?P<quote>['\"`])(?P<name>[^'\"`\\]{1,200})(?P=quote)"
)
_NODE_IMPORT = re.compile(r"""(?:from|require\()\s*['"]node:test['"]""")
_SPECIAL = re.compile(r"[\\^$.*+?()\[\]{}|/]")


def _node(path: str) -> tuple[str, ...]:
    return ("node", "--enable-source-maps", path)


def _node_tests(path: str) -> tuple[str, ...]:
    return ("node", "--enable-source-maps", "--test", path)


def _node_lenses(path: str, lines: Sequence[str]) -> Iterator[Lens]:
    if not any(_NODE_IMPORT.search(line) for line in lines):
        return
    for number, line in enumerate(lines):
        if found := _NODE_TEST.match(line):
            pattern = _SPECIAL.sub(lambda special: "\\" + special[0], found["name"])
            command = ("node", "--enable-source-maps", "--test", f"--test-name-pattern={pattern}", path)
            yield Lens(number, "Run test in Sandbox", command)


# Go

_GO_MAIN = re.compile(r"func\s+main\(\s*\)")
_GO_TEST = re.compile(r"func\s+(?P<name>Test\w*)\(\s*\w+\s+\*testing\.T\s*\)")


def _go(path: str) -> tuple[str, ...]:
    return ("go", "run", _go_file(path))


def _go_file(path: str) -> str:
    return path if "/" in path else "./" + path


def _go_package(path: str) -> str:
    directory = posixpath.dirname(path)
    return f"./{directory}" if directory else "."


def _go_tests(path: str) -> tuple[str, ...]:
    return ("go", "test", _go_package(path))


def _go_lenses(path: str, lines: Sequence[str]) -> Iterator[Lens]:
    for number, line in enumerate(lines):
        if _GO_MAIN.match(line):
            yield Lens(number, "Run in Sandbox", _go(path))
        elif path.endswith("_test.go") and (found := _GO_TEST.match(line)):
            command = ("go", "test", "-run", f"^{found['name']}$", _go_package(path))
            yield Lens(number, "Run test in Sandbox", command)


# Java

_JAVA_MAIN = re.compile(r"\s*(?:public\s+)?static\s+void\s+main\s*\(")


def _java(path: str) -> tuple[str, ...]:
    return ("java", path)


def _java_lenses(path: str, lines: Sequence[str]) -> Iterator[Lens]:
    for number, line in enumerate(lines):
        if _JAVA_MAIN.match(line):
            yield Lens(number, "Run in Sandbox", _java(path))


def _test_runner(path: str, text: str) -> Callable[[str], tuple[str, ...]] | None:
    """What runs a file of tests as such."""
    if _is_python_tests(path, text):
        if _is_unittest(text):
            return lambda each: (*_UNITTEST, _module(each))
        return lambda each: (*_PYTEST, each)
    if posixpath.splitext(path)[1] in (".js", ".mjs", ".cjs") and _NODE_IMPORT.search(text[:_MAX_TEXT]):
        return _node_tests
    return _go_tests if path.endswith("_test.go") else None


def _with(*words: str) -> Callable[[str], tuple[str, ...]]:
    return lambda path: (*words, path)


_KINDS = {
    ".py": _Kind(".py", _with("python3"), _python_lenses),
    ".js": _Kind(".js", _node, _node_lenses),
    ".mjs": _Kind(".js", _node, _node_lenses),
    ".cjs": _Kind(".js", _node, _node_lenses),
    ".ts": _Kind(".ts", _with("node", "--enable-source-maps", "--experimental-strip-types")),
    ".go": _Kind(".go", _go, _go_lenses),
    ".java": _Kind(".java", _java, _java_lenses),
    ".sh": _Kind(".sh", _with("sh")),
    ".bash": _Kind(".sh", _with("bash")),
    ".ex": _Kind(".exs", _with("elixir")),
    ".exs": _Kind(".exs", _with("elixir")),
}
# As editors call languages -> how a file of one ends.
_LANGUAGES = {
    "python": ".py",
    "javascript": ".js",
    "typescript": ".ts",
    "go": ".go",
    "java": ".java",
    "shellscript": ".sh",
    "sh": ".sh",
    "bash": ".sh",
    "elixir": ".exs",
}
