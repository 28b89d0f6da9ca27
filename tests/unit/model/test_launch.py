"""What a command or a piece of code becomes, and that the box decodes exactly what the server encoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.errors import InvalidRequest, UnknownLanguage
from tidebox.model.languages import BUILT_IN
from tidebox.model.launch import Program, plan_code, plan_command
from tidebox.runtime.program import encode_program
from tidebox.spawner import program as box_side


@pytest.mark.parametrize(
    ("command", "cell", "mode"),
    [
        (["python", "-c", "print(1)"], "python", "code"),
        (["python3", "-c", "print(1)", "-x", "--y"], "python", "code"),
        (["python3", "file.py", "-v"], "python", "file"),
        (["node", "-e", "1"], "node", "code"),
        (["node", "--eval", "1", "a"], "node", "code"),
        (["node", "file.js", "--flag"], "node", "file"),
        (["elixir", "-e", "1"], "elixir", "code"),
        (["elixir", "file.exs"], "elixir", "file"),
        (["sh", "-c", "echo hi"], "any", "exec"),
        (["python3"], "any", "exec"),
        (["python3", "-u", "file.py"], "any", "exec"),
        (["python3", "-c"], "any", "exec"),
        (["python3", "-"], "any", "exec"),
        (["python3", ""], "any", "exec"),
        (["node", "-e", "1", "--trace-warnings"], "any", "exec"),
        (["/usr/bin/python3", "-c", "1"], "any", "exec"),
        (["python3", "file.py", ""], "any", "exec"),
        (["ls", "-l"], "any", "exec"),
    ],
)
def test_cell_and_mode_of_a_command(command: list[str], cell: str, mode: str) -> None:
    launch = plan_command(command)
    assert (launch.cell, launch.program.mode, launch.direct) == (cell, mode, False)
    assert launch.command == tuple(command)


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONPATH",
        "PYTHONHASHSEED",
        "NODE_OPTIONS",
        "LD_PRELOAD",
        "LANG",
        "LC_ALL",
        "GLIBC_TUNABLES",
        "MALLOC_ARENA_MAX",
        "ERL_FLAGS",
        "ELIXIR_ERL_OPTIONS",
        "HOME",
    ],
)
def test_variables_read_at_start_need_a_start(name: str) -> None:
    by_command = plan_command(["python3", "-c", "1"], env={name: "x"})
    assert (by_command.cell, by_command.program.mode) == ("any", "exec")
    by_code = plan_code("python", "print(1)", env={name: "x"})
    assert (by_code.cell, by_code.program.mode) == ("any", "exec")
    assert by_code.program.path == "/workspace/main.py"
    assert by_code.program.source == b"print(1)"
    assert by_code.program.arguments == ("python3", "/workspace/main.py")


def test_other_variables_do_not() -> None:
    launch = plan_command(["python3", "-c", "1"], env={"A": "1", "TZ": "UTC", "LANGUAGES": "2"})
    assert launch.cell == "python"
    assert launch.program.env == (("A", "1"), ("TZ", "UTC"), ("LANGUAGES", "2"))


@pytest.mark.parametrize(
    ("language", "cell", "mode", "path"),
    [
        ("python", "python", "script", "/workspace/main.py"),
        ("Py", "python", "script", "/workspace/main.py"),
        ("javascript", "node", "script", "/workspace/main.js"),
        ("node", "node", "script", "/workspace/main.js"),
        ("elixir", "elixir", "script", "/workspace/main.exs"),
        ("sh", "any", "exec", "/workspace/main.sh"),
        ("bash", "any", "exec", "/workspace/main.bash"),
    ],
)
def test_code_is_the_main_file_of_the_workspace(language: str, cell: str, mode: str, path: str) -> None:
    launch = plan_code(language, "1\n", arguments=["a", "-b"])
    assert (launch.cell, launch.program.mode, launch.program.path) == (cell, mode, path)
    assert launch.program.source == b"1\n"
    assert launch.program.cwd == "/workspace"
    assert launch.command[1:] == (path, "a", "-b")


@pytest.mark.parametrize("name", ["", "cobol", "python 2", "../python"])
def test_unknown_language(name: str) -> None:
    with pytest.raises(UnknownLanguage):
        BUILT_IN.named(name)


@pytest.mark.parametrize("command", [[], [""], ["a\0b"], ["ls", "\0"]])
def test_commands_that_cannot_be(command: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        plan_command(command)


@pytest.mark.parametrize("env", [{"": "1"}, {"A=B": "1"}, {"A\0": "1"}, {"A": "\0"}])
def test_variables_that_cannot_be(env: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        plan_code("python", "1", env=env)


@pytest.mark.parametrize("cwd", ["", "relative", "/a\0b"])
def test_working_directories_that_cannot_be(cwd: str) -> None:
    with pytest.raises(InvalidRequest):
        plan_command(["ls"], cwd=cwd)


def test_text_that_is_no_text() -> None:
    with pytest.raises(InvalidRequest):
        plan_code("python", "\ud800")


_words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
_names = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1)


@given(
    source=st.binary(),
    cpu=st.integers(0, 10**9 - 1),
    env=st.lists(st.tuples(_names, _words)),
    arguments=st.lists(_words, min_size=1).filter(lambda words: words != [""]),
)
def test_the_box_decodes_what_was_encoded(
    source: bytes, cpu: int, env: list[tuple[str, str]], arguments: list[str]
) -> None:
    program = Program("script", "/workspace", "/workspace/x", source, tuple(env), tuple(arguments))
    block = encode_program(program, cpu)
    assert int.from_bytes(block[:4], "big") == len(block) - 4
    decoded = box_side.decode(block[4:])
    assert decoded.mode == "script"
    assert (decoded.cwd, decoded.path, decoded.source) == (b"/workspace", b"/workspace/x", source)
    assert decoded.cpu_seconds == cpu
    assert decoded.environment == [(name.encode(), value.encode()) for name, value in env]
    assert decoded.arguments == [argument.encode() for argument in arguments]


@given(st.binary(max_size=200))
def test_garbage_is_refused_not_obeyed(garbage: bytes) -> None:
    with pytest.raises(box_side.BadProgram):
        box_side.decode(garbage)


def test_every_damage_to_a_block_is_noticed_or_harmless() -> None:
    block = encode_program(Program("exec", "/", "", b"", (("A", "1"),), ("ls", "-l")), 1)[4:]
    for cut in range(len(block)):
        with pytest.raises(box_side.BadProgram):
            box_side.decode(block[:cut])
    with pytest.raises(box_side.BadProgram):
        box_side.decode(block + b"\0")
    for position in range(len(block)):
        damaged = bytearray(block)
        damaged[position] ^= 0xFF
        try:
            box_side.decode(bytes(damaged))
        except box_side.BadProgram:
            pass


def test_names_of_our_own_are_no_programs() -> None:
    with pytest.raises(InvalidRequest):
        plan_command(["tidebox:python"])
