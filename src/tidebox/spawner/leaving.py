"""Runs the program and ends the process as the interpreter would, without the price of tearing the interpreter down.

The order is that of ``Py_FinalizeEx``: the program's threads, its exit handlers, its streams, its signal handlers, then
its modules, so that files left open are written and ``__del__`` runs; only what the bare interpreter had before is left
to the kernel. Where that cannot be done from here (threads that still run, things the program broke) the interpreter
itself is asked to end.

All this happens after the program, which may have emptied, replaced or booby-trapped anything it can reach. So nothing
is looked up in a module or among the builtins by then, no method of an object that may be the program's is called but
where the interpreter calls it too, and any error that is left ends in ``_exit``, never in the frames below.
"""

from __future__ import annotations

import _thread
import builtins
import gc
import sys
from _io import TextIOWrapper
from _operator import attrgetter, is_not, methodcaller
from _signal import NSIG, SIG_DFL, getsignal, raise_signal, signal  # type: ignore[import-not-found]
from _weakref import ref
from atexit import _ncallbacks as _exit_handlers
from atexit import _run_exitfuncs
from itertools import starmap
from posix import _exit, write

from tidebox.spawner import frames

try:
    import _ctypes
except ImportError:
    # Only the threads and finalizers that are left then come off worse.
    _finalize: Callable[[int], Any] = _exit
else:

    class _Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_PYTHONAPI | _ctypes.FUNCFLAG_CDECL

    _finalize = _Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "Py_Exit"))  # type: ignore[arg-type]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType
    from typing import Any, Callable, NoReturn

    from tidebox.spawner.frames import Place

_shared_builtins = vars(builtins)
_own_builtins = _shared_builtins.copy()
# What the functions below take their builtins from: out of the program's reach.
__builtins__ = _own_builtins  # type: ignore[assignment]

FLUSH_FAILED = 120
_VERSION = sys.version_info[:2]
_SIGINT = 2
_SIGNALS = range(1, NSIG)
_ABSENT = object()
# sys.modules and the attributes of sys as the interpreter has them, no matter what the program puts in their place.
_modules = sys.modules
_sys_names = vars(sys)
_module_type = type(sys)
_dict_of = vars(_module_type)["__dict__"].__get__
_show = sys.__excepthook__
_show_ignored = sys.__unraisablehook__
# A type that no module shows.
_Ignored: Any = next(kind for kind in tuple.__subclasses__() if kind.__name__ == "UnraisableHookArgs")
_getprofile, _setprofile, _gettrace, _settrace = sys.getprofile, sys.setprofile, sys.gettrace, sys.settrace
_threads = _thread._count
_collect, _collects, _gc_callbacks = gc.collect, gc.isenabled, gc.callbacks
_traceback: Any = BaseException.__traceback__
_get_traceback, _set_traceback = _traceback.__get__, _traceback.__set__
_plain_int = int.__int__
_audit = sys.audit
_text_type, _flush_text = TextIOWrapper, TextIOWrapper.flush
_flush, _shut_down = methodcaller("flush"), methodcaller("_shutdown")
_closed, _code, _write = attrgetter("closed"), attrgetter("code"), attrgetter("write")
# Argument lists for starmap: one call each.
_NOTHING: tuple[tuple[()]] = ((),)
_NONE = ((None,),)
_FORGOTTEN = (
    *("path", "argv", "ps1", "ps2", "last_type", "last_value", "last_traceback", "last_exc"),
    *("path_hooks", "path_importer_cache", "meta_path", "__interactivehook__"),
)
_STREAMS = (("stdin", "__stdin__"), ("stdout", "__stdout__"), ("stderr", "__stderr__"))


def live(code: CodeType | None, error: BaseException | None, bare: Mapping[int, object]) -> NoReturn:
    """Run the program, or report the error that is all there is of it, and end the process.

    ``bare``, by their ids, are the modules of a bare interpreter, which are left alone when the program's go.
    """
    status, exited, interrupted = 1, False, False
    place = frames.current_frame()
    if place.value != frames.record_of(sys._getframe()):
        place = frames.Unrecognised()
    names = _modules["__main__"].__dict__
    is_file = "__file__" in names
    try:
        try:
            if code is not None:
                frames.forget_depth()
                error = call(place, exec, code, names)[1]
                if is_file:
                    # Before it reports the error of a file, the interpreter lets out what came before.
                    call(place, _flush, _sys_names.get("stderr"))
                    call(place, _flush, _sys_names.get("stdout"))
            interrupted = type(error) is KeyboardInterrupt
            status, exited = report(place, error)
            if is_file and not exited:
                # The interpreter takes these back when the file has run, so exit handlers do not see them.
                names.pop("__file__", None)
                names.pop("__cached__", None)
            # Nothing of the program's may be held from here when its modules go.
            names = code = error = None  # type: ignore[assignment]
            interrupted = interrupted and not exited
            status = _leave(place, status, bare, interrupted)
        except BaseException:
            if not interrupted:
                place.value = None
                _finalize(status)
        if interrupted:
            # The way a program tells its parent that it did not handle the interrupt.
            signal(_SIGINT, SIG_DFL)
            raise_signal(_SIGINT)
    finally:
        _exit(status & 0xFF)


def call(place: Place, function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """Call what is the program's from an empty stack; returns its result and what it raised.

    Through an iterator written in C: a call from this frame would show this frame to the function, or to a profiler.
    """
    here = place.value
    active: Any
    result = error = None
    try:
        place.value = None
        for result in starmap(function, (arguments,)):  # noqa: B007
            pass
    except BaseException as caught:
        error = caught
    # First of all: an interpreter that reports a call to a profiler must have a frame to name.
    place.value = here
    for active in starmap(_getprofile, _NOTHING):
        if active is not None:
            for _ in starmap(_setprofile, _NONE):
                pass
    for active in starmap(_gettrace, _NOTHING):
        if active is not None:
            for _ in starmap(_settrace, _NONE):
                pass
    if error is not None:
        traceback = _get_traceback(error)
        if traceback is not None:
            # The first entry is this frame.
            _set_traceback(error, traceback.tb_next)
    return result, error


def report(place: Place, error: BaseException | None) -> tuple[int, bool]:
    """Tell stderr how the program's module ended; returns the exit status, and whether it asked for it."""
    if error is None:
        return 0, False
    if issubclass(type(error), SystemExit):
        return _exit_status(place, error), True
    traceback = _get_traceback(error)
    _sys_names["last_type"], _sys_names["last_value"], _sys_names["last_traceback"] = type(error), error, traceback
    if _VERSION >= (3, 12):
        _sys_names["last_exc"] = error
    hook = _sys_names.get("excepthook", _ABSENT)
    if hook is _ABSENT:
        _write_stderr(place, "sys.excepthook is missing\n")
        hook = _show
    refused = call(place, _audit, "sys.excepthook", hook, type(error), error, traceback)[1]
    if refused is not None:
        if issubclass(type(refused), RuntimeError):
            return 1, False
        _ignore(place, refused, None, "Exception ignored in audit hook")
    second = call(place, hook, type(error), error, traceback)[1]
    if second is None:
        return 1, False
    if issubclass(type(second), SystemExit):
        return _exit_status(place, second), True
    _write_stderr(place, "Error in sys.excepthook:\n")
    call(place, _show, type(second), second, _get_traceback(second))
    _write_stderr(place, "\nOriginal exception was:\n")
    call(place, _show, type(error), error, traceback)
    return 1, False


def _exit_status(place: Place, error: BaseException) -> int:
    code, failure = call(place, _code, error)
    if failure is not None:
        code = error
    if code is None:
        return 0
    if issubclass(type(code), int):
        number: int = _plain_int(code)
        # What does not fit a C long becomes -1, and then only the low byte counts.
        return number if -(1 << 63) <= number < 1 << 63 else -1
    stream = _sys_names.get("stderr")
    text, failure = call(place, str, code)
    if failure is None:
        if stream is None:
            _write_descriptor(text)
        else:
            writer, failure = call(place, _write, stream)
            if failure is None:
                call(place, writer, text)
    _write_stderr(place, "\n")
    return 1


def _write_stderr(place: Place, text: str) -> None:
    stream = _sys_names.get("stderr")
    if stream is not None:
        writer, failure = call(place, _write, stream)
        if failure is None and call(place, writer, text)[1] is None:
            return
    _write_descriptor(text)


def _write_descriptor(text: str) -> None:
    try:
        write(2, str.encode(text, "utf-8", "backslashreplace"))
    except OSError:
        pass


def _leave(place: Place, status: int, bare: Mapping[int, object], interrupted: bool) -> int:
    threading = _modules.get("threading", _ABSENT)
    if threading is not _ABSENT:
        error = call(place, _shut_down, threading)[1]
        if error is not None:
            if _VERSION >= (3, 13):
                _ignore(place, error, None, "Exception ignored on threading shutdown")
            else:
                _ignore(place, error, threading)
    threading = error = None
    if _VERSION >= (3, 12) and _exit_handlers() and not interrupted:
        # There a handler can neither fork nor start a thread, which is so only while the interpreter itself calls it.
        place.value = None
        _finalize(status)
    if _VERSION >= (3, 10):
        call(place, _run_exitfuncs)
    else:
        # There every instance of the module has a set of exit handlers of its own.
        atexit = _modules.get("atexit")
        if atexit is not None:
            call(place, atexit._run_exitfuncs)
            atexit = None
    if not flush(place):
        status = FLUSH_FAILED
    if _threads() == 0:
        drop_modules(place, bare)
        for name in ("__stdout__", "__stderr__"):
            stream = _sys_names.get(name)
            if type(stream) is _text_type:
                # What was printed while the modules went; the interpreter's own streams would do this as they go.
                call(place, _flush_text, stream)
    elif not interrupted:
        # Other threads still use the modules; only the interpreter itself can stop them first.
        place.value = None
        _finalize(status)
    return status


def _ignore(place: Place, error: BaseException, where: Any, message: str | None = None) -> None:
    """Report an exception that changes nothing."""
    hook = _sys_names.get("unraisablehook")
    what = _Ignored((type(error), error, _get_traceback(error), message, where))
    call(place, _audit, "sys.unraisablehook", hook, what)
    second = call(place, _show_ignored if hook is None else hook, what)[1]
    if second is not None:
        message = "Exception ignored in sys.unraisablehook"
        call(place, _show_ignored, _Ignored((type(second), second, _get_traceback(second), message, hook)))


def flush(place: Place) -> bool:
    """Write out what the program left in its streams; False when that failed."""
    whole = True
    for name in ("stdout", "stderr"):
        stream = _sys_names.get(name)
        if stream is None:
            continue
        closed, error = call(place, _closed, stream)
        if error is None:
            closed, error = call(place, bool, closed)
        if error is None and closed:
            continue
        error = call(place, _flush, stream)[1]
        if error is not None:
            whole = False
            if name == "stdout":
                if _VERSION >= (3, 13):
                    _ignore(place, error, None, "Exception ignored on flushing sys.stdout")
                else:
                    _ignore(place, error, stream)
    return whole


def rehearse(bare: Mapping[int, object]) -> None:
    """Look at everything that ``drop_modules`` will let go of: pages are copied when references are counted."""
    for _ in map(getsignal, _SIGNALS):
        pass
    _collect()
    for module in list(_modules.values()):
        if id(module) not in bare:
            ref(module)
    any(map(is_not, _shared_builtins.values(), _own_builtins.values()))


def drop_modules(place: Place, bare: Mapping[int, object]) -> None:
    """Let go of everything the program imported or made, in the interpreter's order."""
    # For all that follows: no call of a Python function of ours may stand below, it would bring this frame back.
    place.value = None
    handler: Any = None
    for number, handler in enumerate(map(getsignal, _SIGNALS), 1):
        if type(handler) is not int and handler is not None:
            signal(number, SIG_DFL)
    handler = None
    if _collects():
        _collect()
    # Later collections have no witnesses.
    callbacks = _gc_callbacks.copy()
    _gc_callbacks.clear()
    for name in _FORGOTTEN:
        _sys_names[name] = None
    # The program's own streams die with its other objects; what is printed by then goes to the first ones.
    for name, original in _STREAMS:
        _sys_names[name] = _sys_names.get(original)
    alive: list[Any] = []
    module: Any = None
    for name, module in list(_modules.items()):
        if type(module) is _module_type or issubclass(type(module), _module_type):
            if id(module) not in bare:
                alive.append(ref(module))
            _modules[name] = None  # type: ignore[assignment]
    module = None
    # Not one is left that a finalizer could import.
    _modules.clear()
    if len(_shared_builtins) != len(_own_builtins) or any(
        map(is_not, _shared_builtins.values(), _own_builtins.values())
    ):
        added = _shared_builtins.copy()
        _shared_builtins.clear()
        _shared_builtins.update(_own_builtins)
        # Only now do the program's additions go, which may need the others.
        added.clear()
    _collect()
    for reference in reversed(alive):
        module = reference()
        if module is None:
            continue
        # First names with one underscore, then the others: what __del__ methods have relied on since Python 1.5.
        variables = _dict_of(module)
        for private in (True, False):
            for name in list(variables):
                if issubclass(type(name), str) and (name[:1] == "_" != name[1:2]) is private and name != "__builtins__":
                    variables[name] = None
        module = variables = None
    _collect()
    del callbacks
