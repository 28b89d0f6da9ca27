"""Resets, in a module that was loaded ahead, all that has to be as if just imported: random states, times, locks.

Also applies what a module reads at its import, where that can as well be done when it is given to a program.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_ctypes: Any
try:
    import _ctypes
except ImportError:
    _ctypes = None

_OF_LIBRARIES = (b"OPENBLAS_", b"GOTO_", b"OMP_", b"GOMP_", b"KMP_", b"MKL_", b"BLIS_", b"NPY_")
# In the order in which OpenBLAS heeds them.
_THREADS = (b"OPENBLAS_NUM_THREADS", b"GOTO_NUM_THREADS", b"OMP_NUM_THREADS")
# Of each library for numbers what sets how many threads it has, and what tells how many it would have.
_blas: list[tuple[Any, ...]] = []
# Until a module of this name (with its submodules) is given these are no reason to load it anew: they are applied then.
_APPLIED = {"matplotlib": frozenset((b"MPLBACKEND", b"MPLCONFIGDIR"))}


def is_applied(module: str, variable: bytes) -> bool:
    """Whether what ``module`` reads of the environment is applied when it is given."""
    return variable in _APPLIED.get(module.partition(".")[0], ())


def is_of_library(variable: bytes) -> bool:
    """Whether it is read by libraries for numbers, in C; all but the number of threads only once."""
    return variable.startswith(_OF_LIBRARIES) and variable not in _THREADS


def may_give(name: str) -> bool:
    """Whether nothing but the variables that Python code has read would make a fresh import differ."""
    if name == "matplotlib":
        # Looked for at its import: settings and styles of the program's own.
        base = os.environ.get("MPLCONFIGDIR") or os.path.join(
            os.environ.get("XDG_CONFIG_HOME") or os.environ.get("HOME", "") + "/.config", "matplotlib"
        )
        if "MATPLOTLIBRC" in os.environ:
            return False
        places = ("matplotlibrc", f"{base}/matplotlibrc", f"{base}/stylelib")
        return not any(map(os.path.lexists, places))
    return True


def note_libraries() -> None:
    """Find the libraries for numbers that were loaded with one thread."""
    if _ctypes is None:
        return
    fd = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    finally:
        os.close(fd)
    paths = {line.split(None, 5)[5] for line in text.splitlines() if b"openblas" in line.rpartition(b"/")[2]}
    for path in sorted(paths):
        try:
            library = _ctypes.dlopen(os.fsdecode(path), 0)
        except OSError:
            continue
        for prefix, suffix in (("", ""), ("", "64_"), ("scipy_", ""), ("scipy_", "64_")):
            try:
                names = (f"{prefix}openblas_{what}{suffix}" for what in ("set_num_threads", "get_num_procs"))
                _blas.append(tuple(_function(_ctypes.dlsym(library, name)) for name in names))
            except OSError:
                continue


def _function(address: int) -> Any:
    class Function(_ctypes.CFuncPtr):  # type: ignore[misc]
        _flags_ = _ctypes.FUNCFLAG_CDECL

    return Function(address)


def freshen(name: str, module: Any) -> None:
    """Make a module that is given to a program as if it had just been loaded."""
    refresh = _FRESH.get(name)
    if refresh is not None:
        refresh(module)


def _seed(random: Any) -> None:
    random.seed()


def _names(tempfile: Any) -> None:
    # Told apart by process id, which all programs may have alike.
    tempfile._name_sequence = tempfile.tempdir = None


def _main_thread(threading: Any) -> None:
    # As after any fork: its locks, and who the main thread is.
    threading._after_fork()
    threading.main_thread()._set_native_id()


def _start(logging: Any) -> None:
    logging._startTime = time.time_ns() if sys.version_info >= (3, 13) else time.time()


def _machine(platform: Any) -> None:
    # With the name of whichever machine this was when it was loaded: each box has its own.
    platform._uname_cache = None
    platform._platform_cache.clear()


def _process(process: Any) -> None:
    # What processes of one program know each other by, and where it began.
    process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))
    process.ORIGINAL_DIR = os.path.abspath(os.getcwd())


def _threads(_numpy: Any) -> None:
    wanted = [os.environb.get(name, b"") for name in _THREADS]
    asked = next((int(text) for text in wanted if text.isdigit() and int(text)), 0)
    for set_threads, processors in _blas:
        set_threads(min(asked or processors(), processors()))


def _seed_numpy(mtrand: Any) -> None:
    mtrand.seed()


def _settings(matplotlib: Any) -> None:
    """Its directories and its backend, as the environment has them now."""
    for cached in (matplotlib.get_configdir, matplotlib.get_cachedir):
        for name, cell in zip(cached.__code__.co_freevars, cached.__closure__):
            if name == "called":
                cell.cell_contents = False
        # Makes the directory, as an import does.
        cached()
    backend = os.environ.get("MPLBACKEND")
    if backend:
        matplotlib.rcParams["backend"] = backend


def _styles(core: Any) -> None:
    core.USER_LIBRARY_PATHS[:] = [os.path.join(core.mpl.get_configdir(), "stylelib")]


def _tex(texmanager: Any) -> None:
    for name in ("texcache", "_texcache"):
        if hasattr(texmanager.TexManager, name):
            setattr(texmanager.TexManager, name, os.path.join(texmanager.mpl.get_cachedir(), "tex.cache"))


_FRESH: dict[str, Callable[[Any], None]] = {
    "logging": _start,
    "multiprocessing.process": _process,
    "matplotlib": _settings,
    "matplotlib.style.core": _styles,
    "matplotlib.texmanager": _tex,
    "numpy": _threads,
    "platform": _machine,
    "numpy.random.mtrand": _seed_numpy,
    "random": _seed,
    "tempfile": _names,
    "threading": _main_thread,
}
