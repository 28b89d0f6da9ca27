"""Run targets of a file: commands for whole files, and code lenses over main blocks and tests. No I/O."""

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
    """A code lens over a line that counts from 0."""

    line: int
    title: str
    command: tuple[str, ...] = ()
    """Empty: the command of the whole file."""


class RunTarget(NamedTuple):
    """The command or the language that runs a file."""

    command: tuple[str, ...]
    """Where there is a language, what is tried if the server has none of that name; empty if there is nothing."""
    language: str = ""
    """Name of the language by which the server compiles and runs it; empty for a plain command."""


class _FileType(NamedTuple):
    command: Callable[[str], tuple[str, ...]] | None
    lenses: Callable[[str, Sequence[str]], Iterator[Lens]] | None = None
    language: str = ""


def find_target(path: str, text: str) -> RunTarget:
    """Return what runs a file, by its first line (``#!``) or its suffix; a file of tests is run by its test runner."""
    first = text[:256].partition("\n")[0]
    if first.startswith("#!"):
        words = first[2:].split()
        if words and posixpath.basename(words[0]) == "env":
            words = [word for word in words[1:] if word != "-S"]
        if words and not words[0].startswith("-") and "=" not in words[0]:
            return RunTarget((posixpath.basename(words[0]), *words[1:], path))
    kind = _KINDS.get(posixpath.splitext(path)[1].lower())
    if kind is None:
        raise InvalidRequest(f"{path}: its name does not tell what runs it; give a command", field="command")
    runner = _test_runner(path, text)
    if runner is not None:
        return RunTarget(runner(path))
    return RunTarget(() if kind.command is None else kind.command(path), kind.language)


def suffix_of(language: str) -> str:
    """Return the file suffix of an editor's language identifier; empty if it is unknown."""
    return _LANGUAGES.get(language, "")


def find_lenses(path: str, text: str) -> list[Lens]:
    """The lenses of a file; none for one that nothing is known to run."""
    try:
        find_target(path, text)
    except InvalidRequest:
        return []
    tests = _test_runner(path, text) is not None
    found = [Lens(0, "Run all tests in Sandbox" if tests else "Run in Sandbox")]
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


def _node_tests(path: str, *options: str) -> tuple[str, ...]:
    if posixpath.splitext(path)[1] in _TYPESCRIPT:
        return ("sh", "-c", _TYPESCRIPT_TESTS, "sh", path, *options)
    return ("node", "--enable-source-maps", "--test", *options, path)


_JAVASCRIPT, _TYPESCRIPT = (".js", ".mjs", ".cjs"), (".ts", ".mts", ".cts")
# As the language itself is run: by esbuild or, where there is none, by a Node that knows types (22.6).
_TYPESCRIPT_TESTS = """file=$1 made="/tmp/tests/${1%.*}.mjs"
shift
if command -v esbuild >/dev/null; then
  esbuild "$file" --bundle --platform=node --packages=external --format=esm --sourcemap=inline --log-level=warning \\
    --color=false --outfile="$made" && exec node --enable-source-maps --test "$@" "$made"
else
  exec node --enable-source-maps --experimental-strip-types --test "$@" "$file"
fi"""


def _node_types(path: str) -> tuple[str, ...]:
    return ("node", "--enable-source-maps", "--experimental-strip-types", path)


def _node_lenses(path: str, lines: Sequence[str]) -> Iterator[Lens]:
    if not any(_NODE_IMPORT.search(line) for line in lines):
        return
    for number, line in enumerate(lines):
        if found := _NODE_TEST.match(line):
            pattern = _SPECIAL.sub(lambda special: "\\" + special[0], found["name"])
            yield Lens(number, "Run test in Sandbox", _node_tests(path, f"--test-name-pattern={pattern}"))


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
            yield Lens(number, "Run in Sandbox")
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
    """Return the test runner of a file of tests, or None."""
    if _is_python_tests(path, text):
        if _is_unittest(text):
            return lambda each: (*_UNITTEST, _module(each))
        return lambda each: (*_PYTEST, each)
    if posixpath.splitext(path)[1] in (*_JAVASCRIPT, *_TYPESCRIPT) and _NODE_IMPORT.search(text[:_MAX_TEXT]):
        return _node_tests
    return _go_tests if path.endswith("_test.go") else None


def _with(*words: str) -> Callable[[str], tuple[str, ...]]:
    return lambda path: (*words, path)


_C_MAIN = re.compile(r"(?:int|void)\s+main\s*\(")
_RUST_MAIN = re.compile(r"(?:pub\s+)?fn\s+main\s*\(\s*\)")


def _over(pattern: re.Pattern[str]) -> Callable[[str, Sequence[str]], Iterator[Lens]]:
    """A lens over each line that matches, for the whole file."""
    return lambda path, lines: (Lens(at, "Run in Sandbox") for at, line in enumerate(lines) if pattern.match(line))


_KINDS = {
    ".py": _FileType(_with("python3"), _python_lenses),
    **dict.fromkeys(_JAVASCRIPT, _FileType(_node, _node_lenses)),
    **dict.fromkeys(_TYPESCRIPT, _FileType(_node_types, _node_lenses, "typescript")),
    ".tsx": _FileType(None, None, "typescript"),
    ".go": _FileType(_go, _go_lenses, "go"),
    ".java": _FileType(_java, _java_lenses),
    ".sh": _FileType(_with("sh")),
    ".bash": _FileType(_with("bash")),
    ".ex": _FileType(_with("elixir")),
    ".exs": _FileType(_with("elixir")),
    ".rb": _FileType(_with("ruby"), None, "ruby"),
    ".r": _FileType(_with("Rscript"), None, "r"),
    ".c": _FileType(None, _over(_C_MAIN), "c"),
    **dict.fromkeys((".cpp", ".cc", ".cxx"), _FileType(None, _over(_C_MAIN), "cpp")),
    ".rs": _FileType(None, _over(_RUST_MAIN), "rust"),
}
# As editors call languages -> how a file of one ends.
_LANGUAGES = {
    "python": ".py",
    "javascript": ".js",
    "typescript": ".ts",
    "typescriptreact": ".tsx",
    "go": ".go",
    "java": ".java",
    "shellscript": ".sh",
    "sh": ".sh",
    "bash": ".sh",
    "elixir": ".exs",
    "ruby": ".rb",
    "r": ".r",
    "c": ".c",
    "cpp": ".cpp",
    "rust": ".rs",
}
