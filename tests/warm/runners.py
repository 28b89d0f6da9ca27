"""Two ways to run a program, to be compared by outcome: started plainly, and handed to a parked interpreter."""

from __future__ import annotations

import atexit
import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.pipes import exchanging
from tidebox.model.launch import Launch, Program
from tidebox.runtime import launchers
from tidebox.runtime.program import encode_program

_SOURCES = Path(__file__).parents[2] / "src"
_PARKED_MAIN = Path(__file__).with_name("parked_main.py")
# As deep as the fork happens inside a box's init, and more.
_FRAMES_BELOW = 25
_MAIN_FILES = {"python": "main.py", "node": "main.js", "elixir": "main.exs"}
_ADDRESS = re.compile(rb"0x[0-9a-f]+")
_EVALUATE = {"python": "-c", "node": "-e", "elixir": "-e"}


@dataclass(frozen=True)
class Case:
    """One program and how it is started; ``how`` is a mode of the program block."""

    name: str
    source: str
    cell: str = "python"
    how: str = "script"
    arguments: tuple[str, ...] = ()
    stdin: bytes = b""
    env: tuple[tuple[str, str], ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    # The file or argv that `file` and `exec` start; the source is not used then.
    start: tuple[str, ...] = ()
    oldest: tuple[int, int] = (3, 9)


@dataclass(frozen=True)
class Outcome:
    """All of a run that anybody can see from outside."""

    stdout: bytes
    stderr: bytes
    exit_code: int | None
    signal: int | None
    files: dict[str, bytes]


class Runner(Protocol):
    """Runs a case in an empty workspace."""

    def run(self, case: Case) -> Outcome:
        """Start it, feed it, and wait for its end."""


class _Local:
    def __init__(self, workspace: Path, interpreter: str) -> None:
        self.workspace = workspace
        self.interpreter = interpreter
        directory = os.path.dirname(interpreter)
        self.env = {
            "PATH": f"{directory}:/usr/bin:/bin",
            "HOME": str(workspace),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
        }

    def _fill(self, case: Case) -> None:
        for path in sorted(self.workspace.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        for name, content in case.files.items():
            target = self.workspace / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)

    def _finish(self, command: list[str], stdin: bytes, env: dict[str, str]) -> Outcome:
        done = subprocess.run(command, input=stdin, capture_output=True, env=env, cwd=self.workspace, timeout=40)
        return self._outcome(done)

    def _outcome(self, done: subprocess.CompletedProcess[bytes]) -> Outcome:
        files = {
            str(path.relative_to(self.workspace)): path.read_bytes()
            for path in self.workspace.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        stdout, stderr = (_ADDRESS.sub(b"0x", stream) for stream in (done.stdout, done.stderr))
        code, signal = (done.returncode, None) if done.returncode >= 0 else (None, -done.returncode)
        return Outcome(stdout, stderr, code, signal, files)

    def _main(self, case: Case) -> str:
        return str(self.workspace / _MAIN_FILES[case.cell])


class Bare(_Local):
    """The interpreter itself."""

    def run(self, case: Case) -> Outcome:
        """As a person would start it."""
        self._fill(case)
        # By name, as a parked one is called too; the PATH begins where this one is.
        interpreter = os.path.basename(self.interpreter)
        if case.how == "exec":
            command = list(case.start)
        elif case.how == "code":
            command = [interpreter, _EVALUATE[case.cell], case.source]
        elif case.how == "file":
            command = [interpreter, *case.start]
        else:
            (self.workspace / _MAIN_FILES[case.cell]).write_text(case.source)
            command = [interpreter, self._main(case)]
        return self._finish([*command, *case.arguments], case.stdin, {**self.env, **dict(case.env)})


class Parked(_Local):
    """A parked interpreter that reads the program from its stdin; it may have loaded modules before."""

    def __init__(self, workspace: Path, interpreter: str, preload: tuple[str, ...] = ()) -> None:
        super().__init__(workspace, interpreter)
        self.preload = preload

    def run(self, case: Case) -> Outcome:
        """Park it elsewhere with the same environment, then hand it the program."""
        self._fill(case)
        launch = self._launch(case)
        stdin = encode_program(launch.program, 30) + case.stdin
        return self._finish(list(launch.command), stdin, self.env)

    def _launch(self, case: Case) -> Launch:
        path, source, arguments = "", b"", case.arguments
        if case.how == "exec":
            arguments = (*case.start, *case.arguments)
        elif case.how == "file":
            path, arguments = case.start[0], (*case.start[1:], *case.arguments)
        else:
            source = case.source.encode()
            path = "" if case.how == "code" else self._main(case)
        program = Program(case.how, str(self.workspace), path, source, case.env, arguments)  # type: ignore[arg-type]
        return Launch("any", program, self._parking(case))

    def _parking(self, case: Case) -> tuple[str, ...]:
        if case.cell == "python":
            return parked_main(self.interpreter, self.preload, "once")
        directory = os.path.dirname(launchers.__file__)
        return tuple(word.replace(launchers.DIRECTORY, directory) for word in launchers.COMMANDS[case.cell])


def parked_main(interpreter: str, preload: tuple[str, ...], how_often: str) -> tuple[str, ...]:
    """The command of an interpreter that forks parked ones."""
    return (interpreter, str(_PARKED_MAIN), str(_SOURCES), str(_FRAMES_BELOW), ",".join(preload), how_often)


class Forked(Parked):
    """A parked interpreter forked from one that is there already, as in a box: for many programs."""

    def _finish(self, command: list[str], stdin: bytes, env: dict[str, str]) -> Outcome:
        # Each has a home of its own, in the same place among the variables.
        template = _template(self.interpreter, self.preload, tuple({**env, "HOME": "/"}.items()))
        return self._outcome(template.run(self.workspace, stdin))


class _Template:
    """An interpreter that forks parked ones until its standard input ends."""

    def __init__(self, command: tuple[str, ...], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        atexit.register(self._end)

    def run(self, home: Path, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        """Fork one that parks at ``home`` and is given ``stdin``; wait for its end."""
        assert self._process.stdin is not None
        pipes = [os.pipe() for _ in range(3)]
        (theirs, feed), (out, _), (err, _) = pipes
        given = (theirs, pipes[1][1], pipes[2][1])
        request = [str(home), *(f"/proc/{os.getpid()}/fd/{end}" for end in given)]
        self._process.stdin.write("\0".join(request).encode())
        assert self._answer() == b"opened\n"
        for end in given:
            os.close(end)
        with exchanging(stdin, feed, out, err) as reading:
            pass
        code = os.waitstatus_to_exitcode(int(self._answer()))
        return subprocess.CompletedProcess([], code, *(each.result() for each in reading))

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _end(self) -> None:
        with self._process:
            pass


@functools.cache
def _template(interpreter: str, preload: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> _Template:
    return _Template(parked_main(interpreter, preload, "often"), dict(env))


def python_interpreters() -> list[str]:
    """Every Python of a supported version that is on the PATH, the real files behind any shims."""
    found: dict[str, None] = {}
    names = ["/usr/bin/python3", *(f"python3.{minor}" for minor in range(9, 14))]
    for name in names:
        try:
            probe = subprocess.run(
                [name, "-c", "import sys; print(sys.executable, sys.version_info[:2] >= (3, 9))"],
                capture_output=True,
                text=True,
                timeout=20,
                env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
            )
        except OSError:
            continue
        path, _, new_enough = probe.stdout.strip().partition(" ")
        if probe.returncode == 0 and new_enough == "True":
            found[os.path.join(os.path.dirname(path), "python3")] = None
    return list(found) or [sys.executable]
