"""Where compiled programs are executed: a directory of their box alone, and nowhere else than policy says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boxes import BoxRunner
from tests.patience import patient
from tests.runtimes import native_only
from tidebox.embedded import Collector
from tidebox.model.box import BoxSpec
from tidebox.model.events import Event, Started
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest
from tidebox.model.launch import plan_code
from tidebox.model.limits import GIB, MIB, Limits
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.result import Outcome

HEAD = """#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char block[1 << 20];

// Writes so many MiB to a file, or as many as there is room for; says whether there was.
static int fill(const char *name, int count) {
  memset(block, 1, sizeof block);
  FILE *out = fopen(name, "w");
  setvbuf(out, NULL, _IONBF, 0);
  while (count-- > 0)
    if (fwrite(block, 1, sizeof block, out) < sizeof block) return 0;
  return 1;
}
"""
# Copies itself to a place and executes the copy, which says so.
COPYING = (
    HEAD
    + r"""
int main(int count, char **words) {
  if (count > 1) { puts("executed"); return 0; }
  const char *place = "PLACE/copy";
  char line[1000];
  FILE *in = fopen("/proc/self/exe", "rb"), *out = fopen(place, "wb");
  if (!out) { printf("cannot write: %s\n", strerror(errno)); return 1; }
  for (size_t size; (size = fread(line, 1, sizeof line, in)) > 0;) fwrite(line, 1, size, out);
  fclose(out);
  chmod(place, 0755);
  execl(place, place, "again", NULL);
  printf("cannot execute: %s\n", strerror(errno));
  return 2;
}
"""
)


async def _run(runner: BoxRunner, launch, **spec: object) -> tuple[ExecutionOutcome, str]:  # type: ignore[no-untyped-def]
    output = Collector()
    limits = Limits(timeout=patient(30.0), memory=512 * MIB, compile_timeout=patient(60.0))
    order = ExecutionRequest(launch=launch, spec=BoxSpec(limits=limits, **spec))  # type: ignore[arg-type]
    ending = await runner.engine.runners.run(order, output)
    return ending, b"".join(output.parts["stdout"]).decode()


def run(runner: BoxRunner, launch, **spec: object) -> tuple[ExecutionOutcome, str]:  # type: ignore[no-untyped-def]
    """Run in a box as the interpreter service has them: nothing in the workspace can be executed."""
    done: tuple[ExecutionOutcome, str] = runner.submit(_run(runner, launch, **{"executable": False, **spec})).result(
        patient(100)
    )
    return done


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/scratch", "executed"),
        ("/workspace", "cannot execute: Permission denied"),
        ("/tmp", "cannot execute: Permission denied"),
        ("/dev/shm", "cannot execute: Permission denied"),
        ("/usr/bin", "cannot write: Read-only file system"),
    ],
)
def test_only_what_is_in_the_scratch_directory_is_executed(languages_runner: BoxRunner, place: str, said: str) -> None:
    _, output = run(languages_runner, plan_code("c", COPYING.replace("PLACE", place)))
    assert output == said + "\n"


def test_what_is_only_read_cannot_be_executed_either(languages_runner: BoxRunner) -> None:
    code = (
        'import { copyFileSync, chmodSync } from "node:fs";\nimport { spawnSync } from "node:child_process";\n'
        'copyFileSync("/bin/true", "/scratch/true");\nchmodSync("/scratch/true", 0o755);\n'
        'console.log((spawnSync("/scratch/true").error as { code?: string } | undefined)?.code);\n'
    )
    ending, output = run(languages_runner, plan_code("typescript", code))
    assert (ending.exit_code, output) == (0, "EACCES\n")


@native_only("containers of programs in other languages have the root of their image")
def test_other_boxes_have_no_such_directory(languages_runner: BoxRunner) -> None:
    code = "import os\nprint(os.path.exists('/scratch'))"
    assert run(languages_runner, plan_code("python", code))[1] == "False\n"


def test_nothing_of_it_is_there_for_the_next(languages_runner: BoxRunner) -> None:
    leaving = HEAD + '\nint main() { FILE *out = fopen("/scratch/left", "w"); fputs("left", out); fclose(out); }'
    looking = HEAD + '\nint main() { puts(access("/scratch/left", F_OK) == 0 ? "there" : "gone"); }'
    assert run(languages_runner, plan_code("c", leaving))[0].exit_code == 0
    assert run(languages_runner, plan_code("c", looking))[1] == "gone\n"


def test_what_is_written_there_counts_as_memory(languages_runner: BoxRunner) -> None:
    filling = HEAD + 'int main() { fill("/scratch/a", 200); fill("/tmp/b", 200); fill("/workspace/c", 200); }'
    ending, _ = run(languages_runner, plan_code("c", filling))
    assert ending.outcome is Outcome.OOM


def test_it_has_a_size(languages_runner: BoxRunner) -> None:
    filling = HEAD + 'int main() { puts(fill("/scratch/a", 300) ? "room" : strerror(errno)); }'
    sizes = {"memory": GIB, "workspace": 16 * MIB, "file_size": GIB}
    done = languages_runner(filling, "c", compile_timeout=patient(60.0), **sizes)
    assert done.text == "No space left on device\n"


def test_a_compiler_is_confined_as_programs_are(languages_runner: BoxRunner) -> None:
    """What it includes is the box's own: nothing of the machine can be read by way of its messages."""
    code = f'#include "{Path(__file__).resolve()}"\nint main() {{}}'
    done = languages_runner(code, "c", compile_timeout=patient(60.0))
    assert done.outcome is Outcome.COMPILE_FAILED
    assert b"No such file or directory" in done.stderr


def test_cancelling_ends_a_compiler(languages_runner: BoxRunner) -> None:
    async def cancelled() -> ExecutionOutcome:
        cancel = OneShotFlag()
        # Expanding it takes longer than anybody waits, and little memory for most of that.
        code = "#define A(x) x x\n#define B(x) A(A(A(A(A(x)))))\n#define C(x) B(B(B(B(x))))\nint main() { C(C(;)) }"
        limits = Limits(timeout=patient(30.0), memory=GIB, compile_timeout=patient(60.0))
        order = ExecutionRequest(launch=plan_code("c", code), spec=BoxSpec(limits=limits))

        async def sink(event: Event) -> None:
            if isinstance(event, Started):
                cancel.set()

        return await languages_runner.engine.runners.run(order, sink, cancel)

    ending: ExecutionOutcome = languages_runner.submit(cancelled()).result(patient(60))
    assert (ending.outcome, ending.exit_code) == (Outcome.CANCELLED, None)
