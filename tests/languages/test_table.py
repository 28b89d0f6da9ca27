"""The table of languages, the operator's file, and the recipes: everything that is data."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tidebox.config import load_settings
from tidebox.errors import InvalidRequest, UnknownImage, UnknownLanguage
from tidebox.model.language_file import read_languages
from tidebox.model.languages import ALWAYS, BUILT_IN, PLACES, Language, filled, places_in
from tidebox.model.launch import SCRATCH, plan_code, plan_file
from tidebox.model.limits import MIB
from tidebox.model.recipes import RECIPES, recipe_named
from tidebox.runtime.diagnostics import Diagnostics
from tidebox.runtime.images import ImageStore

LUA = {"file": "main.lua", "run": ["lua", "{file}"]}


@pytest.mark.parametrize("language", list(BUILT_IN), ids=lambda language: language.name)
def test_what_is_built_in_holds_together(language: Language) -> None:
    assert BUILT_IN.named(language.name) is language
    for alias in language.aliases:
        assert BUILT_IN.named(alias.upper()) is language
    assert f".{language.file.rpartition('.')[2]}" in language.suffixes
    for word in (*language.run, *language.compile, *(value for _, value in language.env)):
        assert set(places_in(word)) <= set(PLACES)
    assert not language.executes or language.compile
    assert not language.recipe or language.recipe in RECIPES
    assert re.compile(language.diagnostic).groupindex.keys() >= ({"file", "line"} if language.diagnostic else set())


def test_the_languages_of_the_protocol_come_first() -> None:
    assert tuple(language.name for language in BUILT_IN)[: len(ALWAYS)] == ALWAYS


def test_what_a_program_is_told_is_not_filled_in() -> None:
    assert filled(("-o", "{out}/main", "{file}", "{other}"), {"out": "/o", "file": "{out}"}) == (
        "-o",
        "/o/main",
        "{out}",
        "{other}",
    )
    launch = plan_code("c", "", arguments=["{out}", "{file}"])
    assert launch.command == (f"{SCRATCH}/main", "{out}", "{file}")


def test_compiling_comes_before_the_program() -> None:
    launch = plan_file("java", "src/Hello.java", arguments=["a"], env={"A": "1"}, memory=512 * MIB)
    assert launch.compilation is not None
    assert "javac" in launch.compilation.command
    assert launch.compilation.command[-1] == "/workspace/src/Hello.java"
    assert not launch.compilation.executes
    assert launch.compilation.command[4:6] == (SCRATCH, "Hello")
    assert launch.command[-2:] == (f"@{SCRATCH}/.main", "a")
    assert "-XX:MaxRAM=512m" in launch.command
    assert dict(launch.program.env) == {"A": "1"}


def test_variables_of_the_caller_come_first() -> None:
    env = dict(plan_code("go", "", env={"GOCACHE": "/tmp/x"}).program.env)
    assert (env["GOCACHE"], env["GOPROXY"]) == ("/tmp/x", "off")


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("public class Foo {}", "Foo.java"),
        ("class Helper {}\npublic final class Foo {}", "Foo.java"),
        ("import a.b;\n\nclass Only { }", "Only.java"),
        ("  public record Point(int x) {}", "Point.java"),
        ("void main() {}", "Main.java"),
        ("// public class ../../etc/passwd", "Main.java"),
        ("class Main {\n  public static class Node {}\n}", "Main.java"),
        ("class Outer {\n  public record Point(int x) {}\n}", "Outer.java"),
        ("class Helper {}\nclass Main {}", "Main.java"),
        ("public class\n    Foo {}", "Foo.java"),
        ("public abstract sealed class Shape permits A {}", "Shape.java"),
        (f"public class {'Ä' * 300} {{}}", "Main.java"),
    ],
)
def test_java_code_is_in_the_file_that_its_compiler_wants(code: str, name: str) -> None:
    assert plan_code("java", code).program.path == f"/workspace/{name}"


@pytest.mark.parametrize(
    "code",
    [
        b"\n" * 500_000,
        b"public a\n" * 50_000,
        b"public " + b"a " * 200_000,
        b"public" + b" " * 500_000,
        b"class \n" * 50_000,
        b"public final " * 50_000,
        b"public class " + b"A" * 500_000,
    ],
    ids=lambda code: repr(code[:10]),
)
@pytest.mark.parametrize("language", [item for item in BUILT_IN if item.main], ids=lambda item: item.name)
def test_no_code_takes_long_to_name(language: Language, code: bytes) -> None:
    """A server does nothing else meanwhile."""
    began = time.process_time()
    name = language.file_for(code)
    assert time.process_time() - began < 2.0
    assert len(name.encode()) <= 255


def test_a_main_file_is_a_file_of_the_workspace_whatever_its_code_says() -> None:
    own = {**LUA, "suffixes": [".lua"], "main": ["name (.*)", "x(y)?z"]}
    lua = read_languages({"languages": {"lua": own}}).named("lua")
    assert lua.file_for(b"name good") == "good.lua"
    for code in (b"name ../../x", b"name /etc/passwd", b"name a\0b", b"name " + b"a" * 300, b"name", b"xz"):
        assert lua.file_for(code) == "main.lua"


def test_what_is_in_the_name_of_a_file_is_nothing_to_a_compiler() -> None:
    launch = plan_file("typescript", "it's $(x).ts")
    assert launch.compilation is not None
    assert [word for word in launch.compilation.command if "it's" in word] == ["/workspace/it's $(x).ts"]


@pytest.mark.parametrize("name", ["../a.c", "/etc/passwd", "a//b.c", "", "a\0b"])
def test_a_file_is_one_of_the_workspace(name: str) -> None:
    with pytest.raises(InvalidRequest):
        plan_file("c", name)


# The operator's file


def test_an_operator_adds_a_language() -> None:
    found = read_languages({"languages": {"lua": {**LUA, "aliases": ["luajit"], "suffixes": [".lua"]}}})
    lua = found.named("LuaJIT")
    assert (lua.name, lua.needs, lua.version, lua.cell) == ("lua", ("lua",), ("lua", "--version"), "any")
    assert found.named("python") is BUILT_IN["python"]
    assert plan_code("lua", "x", arguments=["a"], languages=found).command == ("lua", "/workspace/main.lua", "a")


def test_one_of_a_built_in_name_takes_its_place() -> None:
    found = read_languages({"languages": {"python": {"file": "main.py", "run": ["pypy3", "{file}"]}}})
    assert plan_code("python", "1", languages=found).command[0] == "pypy3"
    with pytest.raises(UnknownLanguage):
        found.named("py")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"language": {}}, r"language: there are only tables \[languages.NAME\]"),
        ({"languages": []}, "languages: must be tables"),
        ({"languages": {"lua": 1}}, "languages.lua: must be a table"),
        ({"languages": {"Lua": LUA}}, "languages.Lua: a language is called like"),
        ({"languages": {"lua": {}}}, "languages.lua.file: is missing"),
        ({"languages": {"lua": {"file": "main.lua"}}}, "languages.lua.run: is missing"),
        ({"languages": {"lua": {**LUA, "runs": ["x"]}}}, "languages.lua.runs: there is no such field"),
        ({"languages": {"lua": {**LUA, "cell": "python"}}}, "languages.lua.cell: there is no such field"),
        ({"languages": {"lua": {**LUA, "run": "lua"}}}, "languages.lua.run: must be a list of texts"),
        ({"languages": {"lua": {**LUA, "run": ["lua", "{path}"]}}}, r"languages.lua.run: there is no \{path\}"),
        ({"languages": {"lua": {**LUA, "run": ["lua\0"]}}}, "languages.lua.run: must be without NUL"),
        ({"languages": {"lua": {**LUA, "file": "../x"}}}, "languages.lua.file: must be a file name"),
        ({"languages": {"lua": {**LUA, "executes": "yes"}}}, "languages.lua.executes: must be true or false"),
        ({"languages": {"lua": {**LUA, "env": {"A=B": "1"}}}}, "languages.lua.env: must be a table of variables"),
        ({"languages": {"lua": {**LUA, "env": {"A": "{x}"}}}}, r"languages.lua.env: there is no \{x\}"),
        ({"languages": {"lua": {**LUA, "packages": "luarocks"}}}, "languages.lua.packages: must be python or node"),
        ({"languages": {"lua": {**LUA, "diagnostic": "("}}}, "languages.lua.diagnostic: not a pattern"),
        ({"languages": {"lua": {**LUA, "diagnostic": "x"}}}, "languages.lua.diagnostic: the pattern must have groups"),
        ({"languages": {"lua": {**LUA, "main": ["(x)"]}}}, "languages.lua.suffixes: is missing"),
        ({"languages": {"lua": {**LUA, "aliases": ["py"]}}}, "languages.lua: 'py' is a name of python"),
        ({"languages": {"lua": {**LUA, "aliases": ["a b"]}}}, "languages.lua.aliases: must be a list"),
        ({"languages": {"lua": {**LUA, "suffixes": ["lua"]}}}, "languages.lua.suffixes: must be a list"),
        ({"languages": {"lua": {**LUA, "image": 3}}}, "languages.lua.image: must be a text"),
        ({"languages": {"lua": {**LUA, "image": "a b"}}}, "languages.lua.image: must be the name of an image"),
        ({"languages": {"lua": {**LUA, "suffixes": [".py"]}}}, "languages.lua: '.py' is a suffix of python"),
        ({"languages": {"lua": {**LUA, "executes": True}}}, "languages.lua.executes: is of what a compiler makes"),
        ({"languages": {"lua": {**LUA, "run": ["{out}/main"]}}}, r"languages.lua.run: \{out\} is where a compiler"),
        ({"languages": {"lua": {**LUA, "env": {"A": "{out}"}}}}, r"languages.lua.env: \{out\} is where a compiler"),
        ({"languages": {"lua": {**LUA, "run": ["{file}"]}}}, "languages.lua.run: must begin with the name of a"),
        ({"languages": {"lua": {**LUA, "run": ["tidebox:x"]}}}, "languages.lua.run: must begin with the name"),
        ({"languages": {"lua": {**LUA, "version": ["lua", "{file}"]}}}, "languages.lua.version: must be without"),
        ({"languages": {"lua": {**LUA, "evaluate": "-e"}}}, "languages.lua.evaluate: there is no such field"),
        ({"languages": {"lua": {**LUA, "diagnostic": "x{99999999999}"}}}, "languages.lua.diagnostic: not a pattern"),
        ({"languages": {"lua": {**LUA, "diagnostic": "(" * 3000}}}, "languages.lua.diagnostic: not a pattern"),
        (
            {"languages": {"lua": {**LUA, "diagnostic": "(?P<file>(a+)+):(?P<line>x)"}}},
            "languages.lua.diagnostic: repeats what itself repeats",
        ),
        (
            {"languages": {"lua": {**LUA, "suffixes": [".lua"], "main": [r"^(?:\w+\s+)*?class (\w)"]}}},
            "languages.lua.main: repeats what itself repeats",
        ),
    ],
)
def test_a_mistake_is_named(document: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_languages(document)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[languages.lua]\nfile = 3\n", r"SANDBOX_LANGUAGES: .*own.toml: languages.lua.file: must be a text"),
        ("[languages", "SANDBOX_LANGUAGES: .*own.toml: not TOML"),
        (b"\xff\xfe", "SANDBOX_LANGUAGES: .*own.toml: not TOML"),
        (None, "SANDBOX_LANGUAGES: .*own.toml: No such file"),
        ("a = " + "[" * 100_000, "SANDBOX_LANGUAGES: .*own.toml: not TOML"),
        ("#" * 300_000, "SANDBOX_LANGUAGES: .*own.toml: longer than 262144 bytes"),
    ],
    ids=["field", "toml", "text", "none", "nested", "long"],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: str | bytes | None, message: str) -> None:
    path = tmp_path / "own.toml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidRequest, match=message):
        load_settings(languages=path).known_languages()


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = {"pipe": tmp_path / "pipe", "device": Path("/dev/zero"), "directory": tmp_path}[kind]
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(InvalidRequest, match=rf"SANDBOX_LANGUAGES: {path}: (not a file|Is a directory)"):
        load_settings(languages=path).known_languages()


def test_an_image_is_of_a_language_that_there_is() -> None:
    with pytest.raises(InvalidRequest, match="SANDBOX_LANGUAGE_IMAGES: unknown language 'cobol'"):
        load_settings(language_images=("cobol=host",)).known_languages()


# Recipes


def test_names_from_elsewhere_stand_for_recipes(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    for name, recipe in (("golang:1.22-alpine", "go"), ("eclipse-temurin:17-jre", "java"), ("tidebox/c", "c")):
        with pytest.raises(UnknownImage, match=f"`tidebox image build --recipe {recipe}` makes what stands for it"):
            store.resolve(name)
    with pytest.raises(UnknownImage, match="import it"):
        store.resolve("registry.example/dotnet/sdk:8.0")
    assert store.resolve("node:20-alpine").rootfs is None
    with pytest.raises(UnknownImage, match="tidebox image list"):
        store.resolve("something:else")


def test_a_recipe_takes_more_packages() -> None:
    assert recipe_named("go").with_packages(["golang-x-dev"]).apt == (*RECIPES["go"].apt, "golang-x-dev")
    rust = recipe_named("rust").with_packages(["librust-itoa-dev"])
    assert rust.apt == ("rustc", "cargo", "librust-itoa-dev")
    assert dict(rust.steps[-1].files)["libraries"] == b"librust-itoa-dev\n"
    assert recipe_named("rust").with_packages([]) is RECIPES["rust"]
    with pytest.raises(InvalidRequest, match="the recipe typescript makes its image without Debian packages"):
        recipe_named("typescript").with_packages(["x"])


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no recipe 'cobol'; there are c, cpp, go"):
        recipe_named("cobol")


# Diagnostics


def test_of_what_a_compiler_says_only_the_place_is_told() -> None:
    diagnostics = Diagnostics(BUILT_IN["c"].diagnostic)
    diagnostics.add(
        b"In file included:\n/workspace/a/main.c:12:5: error: 'secret' undeclared\nmain.c:99: error: more\n"
    )
    assert diagnostics.first_place() == "a/main.c:12"


@pytest.mark.parametrize("said", [b"", b"no place\n", b"\x1b[2Jmain.c:1:2: error: x\n", b"\xff" * 100_000])
def test_a_compiler_may_say_anything(said: bytes) -> None:
    diagnostics = Diagnostics(BUILT_IN["c"].diagnostic)
    for _ in range(3):
        diagnostics.add(said)
    assert diagnostics.first_place() is None


@pytest.mark.parametrize("language", [item for item in BUILT_IN if item.diagnostic], ids=lambda item: item.name)
def test_no_line_takes_long_to_look_at(language: Language) -> None:
    diagnostics = Diagnostics(language.diagnostic)
    for piece in (b" at " * 20_000, b"a:" * 20_000, b"thread panicked at " * 5_000, b"\t" * 40_000):
        diagnostics.add(piece + b"\n")
    began = time.process_time()
    diagnostics.first_place()
    assert time.process_time() - began < 5.0
