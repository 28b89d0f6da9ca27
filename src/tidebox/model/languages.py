"""Languages as data: what code in each is called, where it goes, what compiles and what runs it.

Nothing here knows of a box. The words of a command may have these places in them:

    {file}       the main file, as a path in the box
    {stem}       its name without directory and suffix
    {out}        a directory of the box's own for what a compiler makes
    {memory_mb}  the memory that the program may use
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tidebox.errors import UnknownLanguage

Cell = Literal["python", "node", "elixir", "any"]

PLACES = ("file", "stem", "out", "memory_mb")

_PLACE = re.compile(r"\{([a-z_]*)\}")
# What a code may have its own file called.
_FILE_NAME = re.compile(r"[\w$][\w$.-]*")
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """One language."""

    name: str
    file: str
    """The name of its main file, for code that comes without one."""
    run: tuple[str, ...]
    """The command that runs it; the program's own arguments come after."""
    compile: tuple[str, ...] = ()
    """The compile command, with a time limit of its own; where it fails, nothing is run."""
    executes: bool = False
    """Whether what the compiler makes is executed itself: its box then needs a place where that is allowed."""
    aliases: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    """Of files that are in this language."""
    needs: tuple[str, ...]
    """Commands that an image must have."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables of compiler and program; those that a caller gives come before them."""
    version: tuple[str, ...] = ()
    """The command that prints which one it is."""
    cell: Cell = "any"
    """The interpreter that can be parked for it."""
    evaluate: str = ""
    """The option by which its interpreter takes code as an argument."""
    packages: Literal["", "python", "node"] = ""
    """Which kind of packages its programs can have."""
    recipe: str = ""
    """Of the image that has it, where the machine's own system has not."""
    image: str = ""
    """The image that has it, in place of a recipe's."""
    main: tuple[str, ...] = ()
    """Patterns whose first group is the name that the main file of a code must have; the first that is found counts.

    The code is hostile and the search blocks: a pattern must not backtrack over the same text again and again."""
    diagnostic: str = ""
    """A line of a compiler, or of a trace, that tells of a place: groups file, line, and where there is one message."""

    def file_for(self, code: bytes) -> str:
        """Return the name of the main file for this code."""
        if not self.main:
            return self.file
        text = code.decode("utf-8", "replace")
        for pattern in self.main:
            if found := re.search(pattern, text, re.MULTILINE):
                name = (found[1] or "") + self.suffixes[0]
                return name if _FILE_NAME.fullmatch(name) and len(name.encode()) <= _LONGEST_NAME else self.file
        return self.file


class Languages:
    """The languages of an installation, by every name that they go by."""

    def __init__(self, languages: Iterable[Language]) -> None:
        self._by_name = {language.name: language for language in languages}
        names = {alias: language for language in self for alias in language.aliases}
        self._by_any_name = names | self._by_name
        self._by_suffix = {suffix: language for language in self for suffix in language.suffixes}
        self._by_command: dict[str, Language] = {}
        for language in self:
            for command in language.needs:
                self._by_command.setdefault(command, language)

    def __iter__(self) -> Iterator[Language]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Language:
        """The language of this very name."""
        return self._by_name[name]

    def named(self, name: str) -> Language:
        """The language of a name; raises ``UnknownLanguage``."""
        found = self._by_any_name.get(name) or self._by_any_name.get(name.strip().lower())
        if found is None:
            known = ", ".join(sorted(self._by_name))
            raise UnknownLanguage(f"unknown language {name[:64]!r}; known are {known}", language=name[:64])
        return found

    def by_suffix(self, suffix: str) -> Language | None:
        """The language of files that end like this."""
        return self._by_suffix.get(suffix)

    def of_command(self, command: str) -> str:
        """The language of the program that a command starts; ``shell`` for one of none."""
        name = command.rpartition("/")[2]
        if name.startswith("python"):
            return "python"
        found = self._by_command.get(name)
        return found.name if found is not None else "shell"


_PYTHON = Language(
    name="python",
    aliases=("py", "python3"),
    suffixes=(".py",),
    file="main.py",
    run=("python3", "{file}"),
    needs=("python3",),
    version=("python3", "--version"),
    cell="python",
    evaluate="-c",
    packages="python",
    diagnostic=r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)',
)
_JAVASCRIPT = Language(
    name="javascript",
    aliases=("js", "node", "nodejs"),
    suffixes=(".js", ".mjs", ".cjs"),
    file="main.js",
    run=("node", "{file}"),
    needs=("node",),
    version=("node", "--version"),
    cell="node",
    evaluate="-e",
    packages="node",
    diagnostic=r"^\s*(?:at .*?\(?)?(?P<file>/[^():]+):(?P<line>\d+)(?::\d+)?\)?$",
)
_SHELL = Language(
    name="shell",
    aliases=("sh",),
    suffixes=(".sh",),
    file="main.sh",
    run=("sh", "{file}"),
    needs=("sh",),
    evaluate="-c",
    diagnostic=r"^(?P<file>[^:]+): (?P<line>\d+): (?P<message>.*)$",
)
_BASH = Language(
    name="bash",
    suffixes=(".bash",),
    file="main.bash",
    run=("bash", "{file}"),
    needs=("bash",),
    version=("bash", "--version"),
    evaluate="-c",
    diagnostic=r"^(?P<file>[^:]+): line (?P<line>\d+): (?P<message>.*)$",
)
_ELIXIR = Language(
    name="elixir",
    aliases=("ex", "exs"),
    suffixes=(".ex", ".exs"),
    file="main.exs",
    run=("elixir", "{file}"),
    needs=("elixir",),
    version=("elixir", "--short-version"),
    cell="elixir",
    evaluate="-e",
    diagnostic=r"^\s*(?P<file>[^\s:]+\.exs?):(?P<line>\d+):(?P<message>.*)$",
)
# What is run is looked for packages from where it lies.
_TYPESCRIPT_STEPS = """[ ! -d node_modules ] || ln -s "$PWD/node_modules" "$1/node_modules"
shift
exec "$@"
"""
_TYPESCRIPT = Language(
    name="typescript",
    aliases=("ts",),
    suffixes=(".ts", ".mts", ".cts", ".tsx"),
    file="main.ts",
    # Types are taken away and not checked, as every runner of it does; packages stay where they are.
    compile=(
        *("sh", "-c", _TYPESCRIPT_STEPS, "sh", "{out}"),
        *("esbuild", "{file}", "--bundle", "--platform=node", "--packages=external", "--format=esm"),
        *("--sourcemap=inline", "--log-level=warning", "--color=false", "--outfile={out}/main.mjs"),
        # What was written for the older kind of modules finds what it calls.
        "--banner:js=import{createRequire as __tidebox}from'node:module';"
        "globalThis.require??=__tidebox(process.cwd()+'/');",
    ),
    run=("node", "--enable-source-maps", "{out}/main.mjs"),
    needs=("esbuild", "node"),
    version=("esbuild", "--version"),
    packages="node",
    recipe="typescript",
    diagnostic=r"^\s*(?:at .*?\(?)?(?P<file>[^\s():]+\.[cm]?tsx?):(?P<line>\d+)(?::\d+)?\)?:?$",
)
GO_CACHE, GO_BUILD = "/opt/tidebox/go/cache", "/opt/tidebox/go/build"
"""In images that have them: the compiled library, and how a program that needs nothing else is compiled and linked with
it, which ends the shell where that succeeds."""
# What else fails, by mistakes or for want of modules, is for the go command to say. The cache is used where it lies:
# what is added is this program's.
_GO_STEPS = f"""[ -r {GO_BUILD} ] && . {GO_BUILD}
cp -Rs {GO_CACHE} "$GOCACHE" 2>/dev/null
go build -ldflags='-s -w' -o "$1/main" "$2" || exit
[ -x "$1/main" ] || {{ echo "$2: package main is what can be run, and this is another" >&2; exit 1; }}
"""
_GO = Language(
    name="go",
    aliases=("golang",),
    suffixes=(".go",),
    file="main.go",
    compile=("sh", "-c", _GO_STEPS, "sh", "{out}", "{file}"),
    run=("{out}/main",),
    executes=True,
    needs=("go",),
    version=("go", "version"),
    env=(
        ("GOCACHE", "{out}/.cache"),
        # What has no go.mod finds the libraries of Debian's packages.
        ("GO111MODULE", "auto"),
        ("GOPATH", "{out}/.go:/usr/share/gocode"),
        ("GOPROXY", "off"),
        ("GOTOOLCHAIN", "local"),
        ("GOTELEMETRY", "off"),
    ),
    recipe="go",
    diagnostic=r"^\s*(?P<file>[^\s:]+\.go):(?P<line>\d+)(?::\d+)?(?:: (?P<message>.*)| \+0x\w+)?$",
)
# Of its memory a virtual machine takes a part for its heap. What compiles and ends needs no second compiler.
_HEAP = ("-XX:MaxRAM={memory_mb}m", "-XX:MaxRAMPercentage=60", "-XX:InitialRAMPercentage=10")
_SHORT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
JAVAC_ARCHIVE = "/opt/tidebox/java/javac.jsa"
"""The compiler's classes as the virtual machine maps them, in images that have it; elsewhere nobody looks for it."""
JARS = "/usr/share/java/*"
"""Where Debian's packages have libraries."""
_JAVA_NAME = r"\s++([A-Za-z_$][\w$]{0,199}+)"
_JAVA_MODIFIERS = r"(?:(?:abstract|final|sealed|non-sealed|strictfp)\s++){0,3}"
_JAVA_TYPE = rf"{_JAVA_MODIFIERS}(?:class|record|enum|interface){_JAVA_NAME}"
_JAVA_CLASS = rf"{_JAVA_MODIFIERS}class{_JAVA_NAME}"
# What is run is the class that the file is named after, in whatever package it says that it is; where that one has
# nothing to run, another that has.
_JAVA_STEPS = r"""out=$1 stem=$2
shift 2
"$@" || exit
cd "$out" || exit
main=$stem.class
[ -e "$main" ] || main=$(find . -name "$stem.class" | head -n 1)
if [ -z "$main" ] || ! grep -qF '([Ljava/lang/String;)V' "$main"; then
    other=$(grep -rlF '([Ljava/lang/String;)V' . | sort | tr '\n' '\0' | xargs -0 -r grep -lwF main | head -n 1)
    main=${other:-${main:-$stem}}
fi
main=$(printf %s "${main#./}" | sed 's/\.class$//' | tr / .)
printf '"%s"\n' "$main" >.main
"""
_JAVA = Language(
    name="java",
    suffixes=(".java",),
    file="Main.java",
    # What is indented is rather a member of another class.
    main=(
        rf"^public\s++{_JAVA_TYPE}",
        rf"^{_JAVA_MODIFIERS}class\s++(Main)\b",
        rf"^{_JAVA_CLASS}",
        rf"^[ \t]++public\s++{_JAVA_TYPE}",
        rf"^[ \t]++{_JAVA_CLASS}",
    ),
    compile=(
        *("sh", "-c", _JAVA_STEPS, "sh", "{out}", "{stem}", "javac"),
        *(f"-J{option}" for option in (*_HEAP, *_SHORT, f"-XX:SharedArchiveFile={JAVAC_ARCHIVE}")),
        *("-g", "-proc:none", "-cp", f"{{out}}:{JARS}", "-d", "{out}", "{file}"),
    ),
    run=("java", *_HEAP, "-XX:+UseSerialGC", "-XX:-UsePerfData", "-cp", f"{{out}}:{JARS}", "@{out}/.main"),
    needs=("javac", "java"),
    version=("java", "--version"),
    recipe="java",
    diagnostic=r"^\s*(?:at .*\()?(?P<file>[^\s():]+\.java):(?P<line>\d+)(?:\)|: (?P<message>.*))$",
)
_RUBY = Language(
    name="ruby",
    aliases=("rb",),
    suffixes=(".rb",),
    file="main.rb",
    run=("ruby", "{file}"),
    needs=("ruby",),
    version=("ruby", "--version"),
    evaluate="-e",
    recipe="ruby",
    diagnostic=r"^\s*(?:from )?(?P<file>[^\s:]+\.rb):(?P<line>\d+):(?P<message>.*)$",
)
_R = Language(
    name="r",
    aliases=("rscript",),
    suffixes=(".r", ".R"),
    file="main.R",
    run=("Rscript", "{file}"),
    needs=("Rscript",),
    version=("Rscript", "--version"),
    evaluate="-e",
    recipe="r",
)
_COMPILED_DIAGNOSTIC = r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?P<message>.*)$"
_C = Language(
    name="c",
    suffixes=(".c",),
    file="main.c",
    compile=("gcc", "-O1", "-g", "-o", "{out}/main", "{file}", "-lm"),
    run=("{out}/main",),
    executes=True,
    needs=("gcc",),
    version=("gcc", "--version"),
    env=(("TMPDIR", "{out}"),),
    recipe="c",
    diagnostic=_COMPILED_DIAGNOSTIC,
)
_CPP = Language(
    name="cpp",
    aliases=("c++", "cxx"),
    suffixes=(".cpp", ".cc", ".cxx"),
    file="main.cpp",
    compile=("g++", "-std=c++17", "-O1", "-g", "-o", "{out}/main", "{file}"),
    run=("{out}/main",),
    executes=True,
    needs=("g++",),
    version=("g++", "--version"),
    env=(("TMPDIR", "{out}"),),
    recipe="cpp",
    diagnostic=_COMPILED_DIAGNOSTIC,
)
RUST_LIBRARIES = "/opt/tidebox/rust"
"""In images that have some: compiled crates, and what the compiler is told of them."""
_RUST_STEPS = f'[ ! -r {RUST_LIBRARIES}/arguments ] || set -- "$@" @{RUST_LIBRARIES}/arguments; exec "$@"'
_RUST = Language(
    name="rust",
    aliases=("rs",),
    suffixes=(".rs",),
    file="main.rs",
    compile=(
        *("sh", "-c", _RUST_STEPS, "sh"),
        *("rustc", "--edition=2021", "--crate-name=main", "-Copt-level=1", "-Cdebuginfo=1"),
        *("-o", "{out}/main", "{file}"),
    ),
    run=("{out}/main",),
    executes=True,
    needs=("rustc",),
    version=("rustc", "--version"),
    env=(("TMPDIR", "{out}"),),
    recipe="rust",
    diagnostic=r"^(?:\s*--> |thread .* panicked at (?:'.*', )?)(?P<file>[^\s:]+\.rs):(?P<line>\d+)(?::\d+)?:?$",
)

BUILT_IN = Languages(
    (_PYTHON, _JAVASCRIPT, _SHELL, _ELIXIR, _TYPESCRIPT, _GO, _JAVA, _RUBY, _R, _C, _CPP, _RUST, _BASH)
)
ALWAYS = ("python", "javascript", "shell", "elixir")
"""Languages that Fathom's document names."""


def places_in(word: str) -> list[str]:
    """The places that a word has in it."""
    return _PLACE.findall(word)


def filled(words: Iterable[str], places: Mapping[str, str]) -> tuple[str, ...]:
    """Words with what is at the places in them; what a place holds is not looked at again."""
    return tuple(_PLACE.sub(lambda found: places.get(found[1], found[0]), word) for word in words)
