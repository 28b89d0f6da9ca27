"""A warm Python: forked from a running interpreter, it becomes the program it is given as if it had just been started.

``capture`` notes what a bare interpreter looks like. ``park`` runs in a forked child whose descriptors 0, 1 and 2 are
the program's: it restores that look, does all that can be done before the program is known, and waits for the program
block on stdin. Where acting as the interpreter would is not worth the trouble (a source that is no text, a missing
file, a directory) the process executes the interpreter.

What remains different from a plain start: ``/proc/self/cmdline`` and ``/proc/self/environ``, the hash seed shared with
other children of the same interpreter, ``gc.get_freeze_count()``, classes of ours in ``object.__subclasses__()``, that
no trace or profile function is called for exit handlers, and that finalizers see ``sys.is_finalizing()`` false.
"""

from __future__ import annotations

import _io
import _signal  # type: ignore[import-not-found]
import errno
import gc
import os
import sys
import time
from posix import _exit

from tidebox.spawner import frames, leaving, program

try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType
    from typing import Any, Callable, NoReturn, Union

    from tidebox.spawner.handover import HandOver
    from tidebox.spawner.preload import Refused
    from tidebox.spawner.program import ProgramBlock

    Loader = Callable[[Iterable[str], Iterable[str]], Union[HandOver, Refused]]

# The argument of a process whose program is under way already: preparing for it would only make it wait.
AT_ONCE = "at-once"
# The interpreter rewrites a function during its first calls, and makes the compiler's types at the first compilation:
# once in the process that is forked, or again in every child.
_SETTLING_RUNS = 20
# Exit statuses every shell gives for a command that is not there, or is there and cannot be executed.
NOT_FOUND, NOT_EXECUTABLE = 127, 126
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_SIGINT, _SIGPIPE, _SIGXFSZ = 2, 13, 25
_USER_LIBRARY = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_GC_THRESHOLDS = gc.get_threshold()


class Baseline:
    """State of a bare interpreter of this kind right after its start: modules, search path, import hooks."""

    __slots__ = ("modules", "objects", "path", "main_names", "meta_path", "path_hooks")

    def __init__(self, modules: Iterable[str], path: Iterable[str]) -> None:
        self.modules = frozenset(modules)
        self.objects = {id(sys.modules[name]): sys.modules[name] for name in self.modules if name != "__main__"}
        self.path = list(path)
        self.main_names = frozenset(sys.modules["__main__"].__dict__)
        self.meta_path = list(sys.meta_path)
        self.path_hooks = list(sys.path_hooks)


_baseline: Baseline
_standing_by = False
_handover: HandOver | None = None


def capture(modules: Iterable[str], path: Iterable[str]) -> None:
    """Note the names of a bare interpreter's modules and its ``sys.path`` without the first entry."""
    global _baseline
    _baseline = Baseline(modules, path)


def park(args: list[str], control: int = -1) -> NoReturn:
    """Become a bare interpreter, wait for a program on descriptor 0, be that program, and end as it ends.

    A command that cannot be executed is reported through ``control``, a close-on-exec socket to the host, where given.
    """
    try:
        try:
            _get_ready()
            if AT_ONCE not in args:
                _rehearse()
                if _handover is not None:
                    _handover.rehearse()
                _open_the_stage()
            order = program.read(0)
        except (OSError, program.BadProgram) as error:
            _fail(f"no program: {error}", NOT_EXECUTABLE)
        if order is None:
            _exit(0)
        code, refused = _prepare(order, control)
        del order
        leaving.live(code, refused, _baseline.objects)
    finally:
        # The frames below are those of the code that forked this process.
        _exit(NOT_EXECUTABLE)


def _get_ready() -> None:
    """Become a bare interpreter."""
    _plain_signals()
    if not _standing_by:
        _standard_streams()
    if len(sys.modules) != len(_baseline.modules):
        _forget_ourselves()
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        # Where every interpreter has it at its start; a fork does not change the number that it noted.
        threading.main_thread()._set_native_id()
    _open_the_stage()


def _plain_signals() -> None:
    # All others are as the kernel has them: the process that forked this one put back what it had changed.
    _signal.signal(_SIGINT, _signal.default_int_handler)
    _signal.signal(_SIGPIPE, _signal.SIG_IGN)
    _signal.signal(_SIGXFSZ, _signal.SIG_IGN)


def stand_by() -> None:
    """Do for all children, before they are forked, what does not depend on the program."""
    global _standing_by
    kept = [os.dup(fd) for fd in (0, 1, 2)]
    read, write = os.pipe()
    # A stream asks its descriptor what it is when it is made; the children's are pipes.
    for fd, end in enumerate((read, write, write)):
        os.dup2(end, fd)
    _standard_streams()
    for fd, old in enumerate(kept):
        os.dup2(old, fd)
        os.close(old)
    os.close(read)
    os.close(write)
    _forget_ourselves()
    _standing_by = True
    for _ in range(_SETTLING_RUNS):
        _rehearse()


def load(names: Iterable[str], loader: Loader) -> dict[str, Any]:
    """Load modules ahead of the programs that import them, once nothing of ours is in sight any more.

    ``loader`` is ``handover.load``, which is left out of processes that load nothing: each program is a copy of one.

    Returns which were found, or which one was ``refused`` and why: then this process is of no use.
    """
    global _handover
    _forget_ourselves()
    found = loader(names, _baseline.path)
    if isinstance(found, Exception):
        return {"refused": found.module, "reason": found.reason}
    _handover = found
    record = found.record
    # They go with the process: to take apart what every child shares would only copy it.
    _baseline.objects.update((id(kept.module), kept.module) for kept in record.kept.values())
    return {"preloaded": record.asked, "modules": len(record.kept)}


def _standard_streams() -> None:
    """As the interpreter makes them under PYTHONUNBUFFERED=1 and LANG=C.UTF-8."""
    sys.stdin = sys.__stdin__ = _stream(0, "<stdin>", "r", "surrogateescape")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "<stdout>", "w", "surrogateescape")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "<stderr>", "w", "backslashreplace")  # type: ignore[misc]


def _stream(fd: int, name: str, mode: str, errors: str) -> Any:
    buffer: Any = _io.open(fd, mode + "b", -1 if mode == "r" else 0, closefd=False)
    (buffer.raw if mode == "r" else buffer).name = name
    text: Any = _io.TextIOWrapper(buffer, "utf-8", errors, "\n", False, True)
    text.mode = mode
    return text


def _forget_ourselves() -> None:
    """Leave no name of ours where a program could find it."""
    for name in [name for name in sys.modules if name not in _baseline.modules]:
        module = sys.modules.pop(name)
        parent, _, child = name.rpartition(".")
        if parent in _baseline.modules and vars(sys.modules[parent]).get(child) is module:
            delattr(sys.modules[parent], child)
    ours = tuple(entry for entry in sys.path if entry not in _baseline.path)
    for entry in [entry for entry in sys.path_importer_cache if entry.startswith(ours)]:
        del sys.path_importer_cache[entry]
    sys.path[:] = _baseline.path
    sys.meta_path[:] = _baseline.meta_path
    sys.path_hooks[:] = _baseline.path_hooks


def _rehearse() -> None:
    """Run a program that leaves no trace, so that the pages every program writes to are this process's own by then."""
    if _has_user_site():
        return
    path, argv, original = sys.path[:], sys.argv, getattr(sys, "orig_argv", None)
    _fresh_main()
    names = sys.modules["__main__"].__dict__
    code, _ = _prepare(program.decode(_SAMPLE_BLOCK))
    place = frames.Unrecognised()
    leaving.report(place, leaving.call(place, exec, code, names)[1])
    leaving.flush(place)
    leaving.rehearse(_baseline.objects)
    # A function and the names it sees hold each other.
    names.clear()
    sys.path[:] = path
    sys.argv = argv
    if original is not None:
        sys.orig_argv = original


def _open_the_stage() -> None:
    # What is here already is no garbage of the program's, and its collections need not look at it.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.enable()
    # After the freeze: the program's own names must be within reach of the collector when it ends.
    _fresh_main()


def _fresh_main() -> None:
    main = type(sys)("__main__")
    names = main.__dict__
    if "__annotations__" in _baseline.main_names:
        names.update(__annotations__={})
    names["__builtins__"] = sys.modules["builtins"]
    # Replaced in its place: the order of sys.modules is that of a bare interpreter too.
    sys.modules["__main__"] = main


_SAMPLE = b"""
def function(number, *rest, key=None):
    return [f"{number} {item!r}" for item in rest], {key: number}
with open("/dev/null", "w", 1) as out:
    print("hello", function(1, "a", 2.5, key="b"), file=out)
"""
_SAMPLE_FIELDS = (b"script", b"", b"/dev/null", _SAMPLE, b"0", b"", b"")
_SAMPLE_BLOCK = b"".join([len(field).to_bytes(4, "big") + field for field in _SAMPLE_FIELDS])


def _prepare(order: ProgramBlock, control: int = -1) -> tuple[CodeType | None, BaseException | None]:
    """Set up everything but the running of the code; the error says why there is none."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        if order.cpu_seconds:
            # One second to handle the signal in, and no way to lift the limit.
            hard = order.cpu_seconds + 1 if hard == resource.RLIM_INFINITY else min(order.cpu_seconds + 1, hard)
            soft = min(order.cpu_seconds, hard)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    for name, value in order.environment:
        os.environb[name] = value
    if any(name == b"TZ" for name, _ in order.environment):
        time.tzset()
    arguments = [os.fsdecode(argument) for argument in order.arguments]
    if order.cwd:
        try:
            os.chdir(order.cwd)
        except OSError as error:
            if control >= 0:
                _report(control, error.errno or errno.EIO, b"cwd")
            _fail(f"cannot change directory to {os.fsdecode(order.cwd)!r}: {error.strerror}", NOT_EXECUTABLE)
    if order.mode != "exec" and control >= 0:
        # Not for the program, which this process becomes without executing anything.
        os.close(control)
    path = os.fsdecode(order.path)
    if path and order.mode in ("exec", "script"):
        try:
            _write_file(path, order.source)
        except OSError as error:
            _fail(f"cannot write {path!r}: {error.strerror}", NOT_EXECUTABLE)
    if order.mode == "exec":
        _execute(arguments, control=control)
    command = ["-c", os.fsdecode(order.source)] if order.mode == "code" else [path]
    plain = ["python3", *command, *arguments]
    code, refused = None, None
    try:
        code = None if _has_user_site() or _is_unsuited(order) else _compiled(order, path)
    except (SyntaxError, RecursionError, MemoryError, OverflowError) as error:
        # Before 3.10 the message depends on whether a file or a text was read.
        if order.mode == "code" or sys.version_info >= (3, 10):
            refused = error
            refused.__traceback__ = None
    if code is None and refused is None:
        _execute(plain, sys.executable)
    sys.argv = [command[0], *arguments]
    if sys.version_info >= (3, 10):
        sys.orig_argv = plain
    main = sys.modules["__main__"].__dict__
    if order.mode == "code":
        main["__loader__"] = sys.modules["_frozen_importlib"].BuiltinImporter
        sys.path.insert(0, "")
    else:
        absolute = path if path.startswith("/") else os.getcwd() + "/" + path
        main["__loader__"] = sys.modules["_frozen_importlib_external"].SourceFileLoader("__main__", absolute)
        main["__file__"] = absolute
        if "__cached__" in _baseline.main_names:
            main["__cached__"] = None
        sys.path.insert(0, _directory_of(absolute))
    return code, refused


def _is_unsuited(order: ProgramBlock) -> bool:
    """Whether what was loaded has read what this program says otherwise, and some of it cannot be loaded twice."""
    return bool(order.environment) and _handover is not None and not _handover.suits(order.environment)


def _directory_of(file: str) -> str:
    """Return the directory in which a file really is, with links resolved."""
    directory = file.rpartition("/")[0]
    # The usual case, told apart at a fraction of the price: the working directory's name has no links in it.
    if directory == os.getcwd() and not os.path.islink(file):
        return directory
    return os.path.dirname(os.path.realpath(file))


def _compiled(order: ProgramBlock, path: str) -> CodeType | None:
    """The program's code, or None where the interpreter itself had better read it."""
    if order.mode == "code":
        # Since 3.13 the interpreter keeps the text of a command for its tracebacks, in ways of its own.
        if sys.version_info >= (3, 13):
            return None
        source, name = order.source, "<string>"
    else:
        name = path if path.startswith("/") else os.getcwd() + "/" + path
        if order.mode == "script":
            source = order.source
        else:
            try:
                source = _read_file(path)
            except OSError:
                return None
    if b"\0" in source or (order.mode != "code" and _names_an_encoding(source)):
        # Archives, compiled files, and texts in another encoding.
        return None
    try:
        text = source.decode()
    except UnicodeDecodeError:
        return None
    return compile(text if order.mode == "code" else source, name, "exec", 0, True)


def _names_an_encoding(source: bytes) -> bool:
    first, _, rest = source.partition(b"\n")
    second = rest.partition(b"\n")[0]
    return any(b"#" in line and b"coding" in line and b"utf-8" not in line for line in (first, second))


def _execute(argv: list[str], executable: str = "", control: int = -1) -> NoReturn:
    for number in (_SIGPIPE, _SIGXFSZ):
        # What the interpreter ignores for itself a program it starts would inherit.
        _signal.signal(number, _signal.SIG_DFL)
    name = executable or argv[0]
    # Not os.execvpe: it imports modules to look for PATH.
    directories = [""] if "/" in name else [d or "." for d in os.environ.get("PATH", os.defpath).split(":")]
    failure = OSError(2, os.strerror(2))
    for directory in directories:
        try:
            os.execve(os.path.join(directory, name), argv, os.environ)
        except OSError as error:
            # A file that cannot be executed says more than the absence of one in a later directory.
            if error.errno not in _ABSENT or failure.errno in _ABSENT:
                failure = error
    if control >= 0:
        _report(control, failure.errno or errno.EIO, b"exec")
    _fail(f"{name}: {failure.strerror}", NOT_FOUND if failure.errno in _ABSENT else NOT_EXECUTABLE)


def _report(control: int, number: int, step: bytes) -> NoReturn:
    """Tell the host that the program could not be started: errno, then the step that failed."""
    try:
        os.write(control, number.to_bytes(4, sys.byteorder) + step)
    except OSError:
        pass  # nobody waits for it any more
    _exit(NOT_EXECUTABLE)


def _has_user_site() -> bool:
    """Whether the home has packages of its own, which only a starting interpreter puts on its path."""
    home = os.environ.get("HOME", "")
    return bool(home) and os.path.isdir(f"{home}/.local/lib/{_USER_LIBRARY}/site-packages")


def _read_file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with _io.open(fd, "rb", 0) as file:
        return file.readall()


def _write_file(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def _fail(text: str, status: int) -> NoReturn:
    try:
        os.write(2, (text + "\n").encode("utf-8", "surrogateescape"))
    except OSError:
        pass
    _exit(status)
