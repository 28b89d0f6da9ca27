"""Ends the process as the interpreter would, without the price of tearing the interpreter down.

The order is that of ``Py_FinalizeEx``: the program's threads, its exit handlers, its streams, then its modules, so that
files left open are written and ``__del__`` runs; only what the bare interpreter had before is left to the kernel.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import _weakref
import gc
import os
import sys

from tidebox.spawner import frames

try:
    import _ctypes
except ImportError:
    _finalize = None
else:

    class _Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_PYTHONAPI | _ctypes.FUNCFLAG_CDECL

    _finalize = _Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "Py_Exit"))  # type: ignore[arg-type]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn

FLUSH_FAILED = 120
_SIGINT = 2


def report(error: BaseException | None) -> int:
    """Tell stderr how the program's module ended, through its own hook, and return the exit status of that."""
    while error is not None:
        if isinstance(error, SystemExit):
            return _exit_status(error)
        hook = getattr(sys, "excepthook", None)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        if hook is None:
            _write_stderr("sys.excepthook is missing\n")
            hook = sys.__excepthook__
        second = _call(hook, type(error), error, error.__traceback__)
        if second is None:
            return 1
        if isinstance(second, SystemExit):
            error = second
            continue
        _write_stderr("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        _write_stderr("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
        return 1
    return 0


def leave(status: int, bare_modules: frozenset[str], interrupted: bool) -> NoReturn:
    """End the process with ``status``, or as interrupted from the keyboard."""
    threading = sys.modules.get("threading")
    if threading is not None:
        _call(threading._shutdown)
    # Looked up now: an interpreter of 3.9 has a set of exit handlers per instance of this module.
    atexit = sys.modules.get("atexit")
    if atexit is not None:
        _call(atexit._run_exitfuncs)
    flushed = flush()
    if _thread._count() == 0:
        drop_modules(bare_modules)
        flushed = flush() and flushed
    elif _finalize is not None and not interrupted:
        # Other threads still use the modules; only the interpreter itself can stop them first.
        _finalize(status)
    if interrupted:
        # The way a program tells its parent that it did not handle the interrupt.
        _signal.signal(_SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _SIGINT)
    os._exit(status & 0xFF if flushed else FLUSH_FAILED)


def _call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> BaseException | None:
    """Call what is the program's from an empty stack, and return what it raises, without a trace of this frame."""
    place = frames.current_frame()
    if place.value != frames.record_of(sys._getframe()):
        place = frames.Unrecognised()
    try:
        place.value = None
        function(*arguments, **keywords)
    except BaseException as error:
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next
        return error
    return None


def _exit_status(error: SystemExit) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        # What does not fit a C long becomes -1, and then only the low byte counts.
        return int(code) if -(1 << 63) <= code < 1 << 63 else -1
    stream = getattr(sys, "stderr", None)
    if stream is not None:
        _call(print, code, file=stream, end="")
        _write_stderr("\n")
    return 1


def _write_stderr(text: str) -> None:
    stream = getattr(sys, "stderr", None)
    if stream is not None:
        _call(stream.write, text)


def flush() -> bool:
    """Write out what the program left in its streams; False when that failed."""
    whole = True
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        if stream is None or getattr(stream, "closed", False):
            continue
        error = _call(stream.flush)
        if error is not None:
            whole = False
            if stream is sys.stdout:
                where = "on flushing sys.stdout:" if sys.version_info >= (3, 13) else f"in: {stream!r}"
                _write_stderr(f"Exception ignored {where}\n")
                sys.__excepthook__(type(error), error, error.__traceback__)
    return whole


def drop_modules(bare_modules: frozenset[str]) -> None:
    """Let go of everything the program imported or made, in the interpreter's order."""
    place = frames.current_frame()
    if place.value != frames.record_of(sys._getframe()):
        place = frames.Unrecognised()
    # For all that follows: no call of a Python function of ours may stand below, it would bring this frame back.
    place.value = None
    gc.collect()
    for name in ("last_type", "last_value", "last_traceback", "last_exc", "path", "argv", "path_hooks", "meta_path"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    sys.path_importer_cache.clear()
    # The program's own streams die with its other objects; what is printed by then goes to the first ones.
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    alive: list[tuple[str, Any]] = []
    module: Any = None
    for name, module in list(sys.modules.items()):
        if name in bare_modules and name != "__main__":
            continue
        if isinstance(module, type(sys)):
            alive.append((name, _weakref.ref(module)))
        sys.modules[name] = None  # type: ignore[assignment]
    module = None
    for name, _ in alive:
        sys.modules.pop(name, None)
    gc.collect()
    for _, reference in reversed(alive):
        module = reference()
        # First names with one underscore, then the others: what __del__ methods have relied on since Python 1.5.
        for private in (True, False):
            for name in list(getattr(module, "__dict__", ())):
                if isinstance(name, str) and (name[:1] == "_" != name[1:2]) is private and name != "__builtins__":
                    module.__dict__[name] = None
        module = None
    gc.collect()
