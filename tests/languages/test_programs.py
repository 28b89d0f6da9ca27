"""What each language does: output, input, arguments, exit codes, failures with their place, limits, files."""

from __future__ import annotations

import re

import pytest

from tests.boxes import BoxRunner
from tests.languages.conftest import LANGUAGES
from tests.languages.programs import PROGRAMS
from tests.patience import patient
from tidebox.embedded import Collector
from tidebox.model.execution_request import ExecutionOutcome
from tidebox.model.languages import BUILT_IN
from tidebox.model.launch import plan_code
from tidebox.model.limits import GIB, MIB, Limits
from tidebox.model.result import Outcome
from tidebox.runtime.diagnostics import Diagnostics

COMPILED = [name for name in LANGUAGES if PROGRAMS[name].broken]

each = pytest.mark.parametrize("language", LANGUAGES, indirect=True)
each_compiled = pytest.mark.parametrize("language", COMPILED, indirect=True)
pytestmark = pytest.mark.timeout(1500 if len(LANGUAGES) > 3 else 120)


def run(runner: BoxRunner, language: str, code: str, **options: object):  # type: ignore[no-untyped-def]
    options = {"memory": GIB, "compile_timeout": patient(100.0), "timeout": patient(60.0), "pids": 512} | options
    return runner(code, language, **options)


@each
def test_a_program_has_its_input_and_its_exit_code(languages_runner: BoxRunner, language: str) -> None:
    done = run(languages_runner, language, PROGRAMS[language].greeting, stdin="one\ntwo\n")
    assert (done.outcome, done.exit_code) == (Outcome.EXITED, 3), done
    assert done.text == "hello\nONE\nTWO\n" or done.text == "hello \nONE\nTWO\n"


@each
def test_a_program_has_its_arguments(languages_runner: BoxRunner, language: str) -> None:
    output = Collector()
    launch = plan_code(language, PROGRAMS[language].greeting, arguments=["a b", "{file}"])
    limits = Limits(memory=GIB, compile_timeout=patient(100.0), timeout=patient(60.0), pids=512)
    ending: ExecutionOutcome = languages_runner.submit(
        languages_runner.engine.run(launch, output, limits=limits)
    ).result()
    assert ending.exit_code == 3
    assert b"".join(output.parts["stdout"]).decode() == "hello a b {file}\n"


@each
def test_an_exception_tells_its_place(languages_runner: BoxRunner, language: str) -> None:
    done = run(languages_runner, language, PROGRAMS[language].failing)
    assert done.outcome in (Outcome.EXITED, Outcome.SIGNALED)
    assert not done.ok
    assert re.search(PROGRAMS[language].failure, done.stderr.decode()), done.stderr


@each_compiled
def test_what_cannot_be_compiled_is_not_run(languages_runner: BoxRunner, language: str) -> None:
    programs = PROGRAMS[language]
    done = run(languages_runner, language, programs.broken, artifacts=["**"])
    assert done.outcome is Outcome.COMPILE_FAILED
    assert done.exit_code
    assert done.stdout == b""
    assert re.search(programs.complaint, done.stderr.decode()), done.stderr
    assert done.artifacts == {}
    diagnostics = Diagnostics(BUILT_IN[language].diagnostic)
    diagnostics.add(done.stderr)
    place = diagnostics.first_place()
    assert place is not None
    assert place.endswith(f":{2 if language != 'go' else 4}")


@each_compiled
def test_compiling_has_a_time_limit_of_its_own(languages_runner: BoxRunner, language: str) -> None:
    # So much that no compiler is done before the time is over.
    more = {"typescript": "const a{0} = {0};\n", "go": "var a{0} = {0}\n", "c": "int a{0};\n", "cpp": "int a{0};\n"}
    filler = "".join(more.get(language, "").format(number) for number in range(30_000))
    done = run(languages_runner, language, PROGRAMS[language].greeting + filler, compile_timeout=0.01)
    assert (done.outcome, done.exit_code) == (Outcome.COMPILE_TIMEOUT, None)


@each
def test_a_program_that_does_not_end_is_ended(languages_runner: BoxRunner, language: str) -> None:
    done = run(languages_runner, language, PROGRAMS[language].endless, timeout=1.0)
    assert (done.outcome, done.exit_code) == (Outcome.TIMEOUT, None)


@each
def test_memory_is_bounded(languages_runner: BoxRunner, language: str) -> None:
    # Less would not do for every compiler.
    done = run(languages_runner, language, PROGRAMS[language].hungry, memory=400 * MIB)
    assert done.outcome is Outcome.OOM, done


@each
def test_files_come_back(languages_runner: BoxRunner, language: str) -> None:
    done = run(languages_runner, language, PROGRAMS[language].writing, artifacts=["**"])
    assert done.ok, done
    # The compiler leaves nothing in the workspace.
    assert done.artifacts == {"out.txt": b"made"}
