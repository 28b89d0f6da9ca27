"""Codes that are hard on their compiler, and compilers that leave things behind: their box bounds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.boxes import BoxRunner, start_runner, stop_runner
from tests.patience import patient
from tests.runtimes import native_only
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome

pytestmark = [native_only("containers have the languages of their images"), pytest.mark.timeout(patient(120))]

# Compilers that do what their code says, and those that make nothing that can be executed.
OWN = """
[languages.obeying]
file = "main.sh"
compile = ["sh", "{file}"]
run = ["sh", "-c", "echo ran"]

[languages.obeying-exec]
file = "main.sh"
compile = ["sh", "{file}"]
run = ["{out}/main"]
executes = true
"""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxRunner]:
    """An engine with these compilers."""
    directory = tmp_path_factory.mktemp("hostile-languages")
    (directory / "own.toml").write_text(OWN)
    cells = {"pool_node": 0, "pool_python": 0, "pool_blank": 0, "pool_elixir": 0}
    runner = start_runner(directory / "data", languages=directory / "own.toml", **cells)
    yield runner
    stop_runner(runner)


def run(runner: BoxRunner, code: str, language: str = "c", **options: object):  # type: ignore[no-untyped-def]
    limits = {"compile_timeout": patient(20.0), "timeout": patient(20.0), "memory": 256 * MIB, "pids": 64}
    return runner(code, language, **{**limits, **options})


@pytest.mark.parametrize(
    "code",
    [
        '#include "/dev/zero"\nint main() {}',
        "#define A(x) x x\n#define B(x) A(A(A(A(A(x)))))\n#define C(x) B(B(B(B(x))))\nint main() { C(C(;)) }",
        '__asm__(".rept 100000000\\n.quad 1\\n.endr");\nint main() {}',
    ],
    ids=["endless", "macros", "assembler"],
)
def test_a_code_that_needs_more_memory_than_there_is_to_compile(runner: BoxRunner, code: str) -> None:
    done = run(runner, code)
    assert done.outcome is Outcome.OOM
    assert done.stdout == b""


def test_a_compiler_that_says_too_much(runner: BoxRunner) -> None:
    code = "".join(f'#warning "{"x" * 4000} {number}"\n' for number in range(100)) + "int main() {}"
    done = run(runner, code, output=64 * 1024)
    assert done.outcome is Outcome.OUTPUT_LIMIT
    assert len(done.stderr) == 64 * 1024


def test_a_compiler_that_forks_without_end(runner: BoxRunner) -> None:
    done = run(runner, "b() { b | b & }\nb\nwait\nexit 3", "obeying")
    assert (done.outcome, done.exit_code, done.stdout) == (Outcome.COMPILE_FAILED, 3, b"") or (
        # The shell itself may be the one that cannot fork.
        done.outcome is Outcome.COMPILE_FAILED and b"Cannot fork" in done.stderr
    )


def test_a_compiler_that_does_not_end(runner: BoxRunner) -> None:
    done = run(runner, "while :; do :; done", "obeying", compile_timeout=1.0)
    assert (done.outcome, done.exit_code, done.stdout) == (Outcome.COMPILE_TIMEOUT, None, b"")


def test_the_time_of_a_program_begins_when_it_is_compiled(runner: BoxRunner) -> None:
    done = run(runner, "sleep 2", "obeying", timeout=1.5)
    assert (done.outcome, done.text) == (Outcome.EXITED, "ran\n")


def test_a_compiler_that_leaves_processes_behind(runner: BoxRunner) -> None:
    done = run(runner, "sleep 1000 >/dev/null 2>&1 & exit 0", "obeying")
    assert (done.outcome, done.text) == (Outcome.EXITED, "ran\n")
    assert done.usage.wall_seconds < patient(15)


@pytest.mark.parametrize(
    ("filling", "said"),
    [
        ("dd if=/dev/zero of=/scratch/a bs=1M count=64 2>&1 || exit 5", b"No space left on device"),
        ("at=0; while [ $at -lt 100000 ]; do : >/scratch/$at || exit 5; at=$((at + 1)); done", b"No space left"),
    ],
    ids=["bytes", "files"],
)
def test_a_compiler_that_fills_its_directory(runner: BoxRunner, filling: str, said: bytes) -> None:
    done = run(runner, filling, "obeying", workspace=16 * MIB, file_size=128 * MIB)
    assert done.outcome is Outcome.COMPILE_FAILED
    assert said in done.stderr


@pytest.mark.parametrize(
    ("compiling", "code"),
    [
        (":", 127),
        ("echo text >/scratch/main", 126),
        (r"printf '\177ELF\0nothing' >/scratch/main; chmod 755 /scratch/main", 126),
        ("mkdir /scratch/main", 126),
        ("ln -s /nowhere /scratch/main", 127),
        ("cp /bin/true /workspace/main; chmod 755 /workspace/main; rm -rf /scratch/*; chmod 0 /scratch", 126),
    ],
    ids=["nothing", "not executable", "no program", "directory", "link", "unreachable"],
)
def test_a_compiler_that_makes_nothing_to_execute(runner: BoxRunner, compiling: str, code: int) -> None:
    done = run(runner, compiling, "obeying-exec")
    assert (done.outcome, done.exit_code) == (Outcome.EXITED, code), done


def test_a_program_may_replace_itself(runner: BoxRunner) -> None:
    code = (
        "#include <stdio.h>\n#include <sys/stat.h>\n#include <unistd.h>\nint main() {\n"
        '  unlink("/scratch/main");\n  FILE *out = fopen("/scratch/main", "w");\n'
        '  fputs("#!/bin/sh\\necho another\\n", out);\n  fclose(out);\n  chmod("/scratch/main", 0755);\n'
        '  puts("first");\n  fflush(stdout);\n  execl("/scratch/main", "main", NULL);\n}\n'
    )
    assert run(runner, code).text == "first\nanother\n"
    assert run(runner, '#include <stdio.h>\nint main() { puts("next"); }').text == "next\n"


def test_what_the_compiler_is_given_is_not_the_program_s_input(runner: BoxRunner) -> None:
    done = run(runner, '#include "/dev/stdin"\n#include <stdio.h>\nint main() { putchar(getchar()); }', stdin="x")
    assert (done.outcome, done.text) == (Outcome.EXITED, "x")
