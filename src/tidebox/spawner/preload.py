"""Loads modules ahead, in the process that programs are forked from, and sets them aside.

What an import does besides making modules is written down module by module: which others it asks for and in which
order, which variables of the environment it reads, and what it leaves with the interpreter (exit and fork handlers,
warning filters, finders). Then all of that is taken back: the interpreter is as bare as before. ``handover`` gives a
program what it imports, with everything that belongs to it, and does again what was written down.

A module that leaves what cannot be taken back (a thread, a descriptor, a signal handler, a variable) is refused: the
process is of no use by then, and the code that asked begins anew without that module.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import builtins
import os
import posix
import sys
import time

from tidebox.spawner import fresh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Callable

    # What to call, with what.
    Action = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

# Modules whose insides are of no interest to anybody else.
_bootstrap: Any = sys.modules["_frozen_importlib"]
_warnings: Any = sys.modules["_warnings"]
# Stands for the whole environment, where an import looked at all of it.
EVERYTHING = b""
# How much a module may hold that is loaded here: one that imports half of an index has no place in every program.
MOST_MODULES = 4000
# Libraries for numbers would start threads at their import, which no fork copies: a program gets those that it would
# have when it is given such a module.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
# And they would look for work a tenth of a second long, which a program that has one processor lacks then: here 2**20
# cycles, half a millisecond, before they sleep.
_SHORT_SPIN = {"OPENBLAS_THREAD_TIMEOUT": "20"}
# How often, and at what distance, it is asked whether a thread that was told to end has.
_THREAD_CHECKS, _THREAD_PAUSE = 100, 0.01
# Parts of sys that change with every import, or are looked at by themselves.
_LIVELY = frozenset(("modules", "path_importer_cache", "meta_path", "path_hooks", "path", "last_traceback"))


class Refused(Exception):
    """A module does what cannot be taken back; ``module`` names it."""

    def __init__(self, module: str, reason: str) -> None:
        super().__init__(f"{module}: {reason}")
        self.module = module
        self.reason = reason


class Kept:
    """A module that is set aside, and what its import did."""

    __slots__ = ("name", "module", "spec", "requests", "variables", "actions", "absent", "late", "given")

    def __init__(self, name: str, spec: Any) -> None:
        self.name = name
        self.spec = spec
        self.module: Any = None
        self.requests: list[str] = []
        """What it asked for, in order: some of it may have been there before."""
        self.variables: dict[bytes, bytes | None] = {}
        self.actions: list[Action] = []
        self.absent: list[str] = []
        """What it asked for in vain."""
        self.late = False
        """Whether it was loaded when its package was complete: the package does not know it before it is given."""
        self.given = False


class Record:
    """All that is set aside in this process."""

    def __init__(self, path: Iterable[str]) -> None:
        self.kept: dict[str, Kept] = {}
        self.asked: list[str] = []
        """What was to be loaded, and was found."""
        self.finders: dict[str, Any] = {}
        self.path = list(path)
        self.meta_path = list(sys.meta_path)
        self.added_finders: list[Any] = []
        self.environment: dict[bytes, bytes] = dict(os.environ._data)  # type: ignore[attr-defined]


def load(names: Iterable[str], path: Iterable[str]) -> Record:
    """Import what there is of ``names`` and set it aside, or raise ``Refused``; ``path`` is a bare interpreter's."""
    record = Record(path)
    bare = frozenset(sys.modules)
    recorder = _Recorder(record)
    importers = dict(sys.path_importer_cache)
    hooks, filters = list(sys.path_hooks), list(_warnings.filters)
    scratch = f"/tmp/.preload-{os.getpid()}"
    os.mkdir(scratch, 0o700)
    meanwhile = {**dict.fromkeys(_ONE_THREAD, "1"), **_SHORT_SPIN, "MPLCONFIGDIR": scratch}
    meanwhile = {name: value for name, value in meanwhile.items() if name not in os.environ}
    os.environ.update(meanwhile)
    before = _state()
    try:
        with recorder:
            for name in names:
                if recorder.import_top(name):
                    record.asked.append(name)
                _compare(name, before, _state())
                if len(sys.modules) > MOST_MODULES:
                    raise Refused(name, f"it loads more than {MOST_MODULES} modules")
    finally:
        for variable in meanwhile:
            os.environ.pop(variable, None)
        _remove(scratch)
    fresh.note_libraries()
    _set_aside(record, bare)
    record.added_finders = [finder for finder in sys.meta_path if finder not in record.meta_path]
    sys.meta_path[:] = record.meta_path
    sys.path_hooks[:] = hooks
    _warnings.filters[:] = filters
    _warnings._filters_mutated()
    record.finders = {entry: finder for entry, finder in sys.path_importer_cache.items() if entry not in importers}
    for entry in record.finders:
        del sys.path_importer_cache[entry]
    return record


def _set_aside(record: Record, bare: frozenset[str]) -> None:
    for name in [name for name in sys.modules if name not in bare]:
        module = sys.modules.pop(name)
        kept = record.kept.get(name)
        parent, _, child = name.rpartition(".")
        if kept is None or not parent:
            continue
        package = record.kept[parent].module if parent in record.kept else sys.modules.get(parent)
        if kept.late and package is not None and vars(package).get(child) is module:
            delattr(package, child)


def _remove(directory: str) -> None:
    with os.scandir(directory) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path)
            else:
                os.unlink(entry.path)
    os.rmdir(directory)


def _threads() -> list[str]:
    """The threads of this process, once those that end have ended."""
    found = os.listdir("/proc/self/task")
    for _ in range(_THREAD_CHECKS):
        if len(found) == 1:
            break
        time.sleep(_THREAD_PAUSE)
        found = os.listdir("/proc/self/task")
    return found


def _state() -> dict[str, Any]:
    """Return the state of the process and interpreter that an import must leave as it is."""
    return {
        "a thread": _threads(),
        "an open descriptor": sorted(os.listdir("/proc/self/fd")),
        "a signal handler": [_signal.getsignal(number) for number in range(1, _signal.NSIG)],
        "a variable of the environment": dict(os.environ._data),  # type: ignore[attr-defined]
        "another working directory": os.getcwd(),
        "another recursion limit": sys.getrecursionlimit(),
        "another search path": list(sys.path),
        "something in sys": {name: id(value) for name, value in vars(sys).items() if name not in _LIVELY},
        "something among the builtins": {
            name: id(value) for name, value in vars(builtins).items() if name not in ("__import__", "_")
        },
    }


def _compare(name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    for what, value in before.items():
        if after[what] != value:
            raise Refused(name, f"its import leaves {what}")


class _Recorder:
    """Writes down what imports do, while it is entered."""

    def __init__(self, record: Record) -> None:
        self._kept = record.kept
        self._top = Kept("", None)
        self._stack = [self._top]
        self._seen = set(sys.modules)
        self._import = builtins.__import__
        self._load = _bootstrap._load_unlocked
        self._general_import = _bootstrap._gcd_import
        self._at_fork = os.register_at_fork
        self._environments = [os.environ, os.environb]
        self._active = False

    def __enter__(self) -> None:
        self._active = True
        builtins.__import__ = self._recorded_import
        _bootstrap._load_unlocked = self._recorded_load
        _bootstrap._gcd_import = self._recorded_general_import
        os.register_at_fork = posix.register_at_fork = self._recorded_at_fork
        self._plain = type(os.environ)
        watched = _watched(self._plain, self._note)
        for environment in self._environments:
            environment.__class__ = watched
        # A fresh one, as a program will have it: there it is patched.
        self._import("atexit")
        self._atexit = vars(sys)["modules"]["atexit"]
        self._register = self._atexit.register
        self._atexit.register = self._recorded_register

    def __exit__(self, *error: object) -> None:
        self._active = False
        builtins.__import__ = self._import
        _bootstrap._load_unlocked = self._load
        _bootstrap._gcd_import = self._general_import
        os.register_at_fork = posix.register_at_fork = self._at_fork
        for environment in self._environments:
            environment.__class__ = self._plain
        self._atexit.register = self._register

    def import_top(self, name: str) -> bool:
        """Whether a module could be imported."""
        try:
            self._general_import(name)
        except ImportError:
            return False
        except Exception as error:
            raise Refused(name, f"its import fails: {type(error).__name__}") from error
        return True

    # What is asked for

    def _recorded_import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        asker = self._stack[-1]
        absolute = name
        if level:
            package = _bootstrap._calc___package__(globals or {})
            absolute = _bootstrap._resolve_name(name, package, level)
        self._note_strangers(asker)
        place = len(asker.requests)
        try:
            module = self._import(name, globals, locals, fromlist, level)
        except ImportError:
            asker.absent.append(absolute)
            raise
        wanted = _with_packages(absolute)
        for item in fromlist or ():
            items = getattr(sys.modules.get(absolute), "__all__", ()) if item == "*" else (item,)
            wanted += [f"{absolute}.{each}" for each in items if f"{absolute}.{each}" in sys.modules]
        # Before what code that this import ran has asked for on behalf of the same module.
        asker.requests[place:place] = wanted
        return module

    def _recorded_general_import(self, name: str, package: Any = None, level: int = 0) -> Any:
        asker = self._stack[-1]
        absolute = _bootstrap._resolve_name(name, package, level) if level else name
        try:
            module = self._general_import(name, package, level)
        except ImportError:
            asker.absent.append(absolute)
            raise
        asker.requests += _with_packages(absolute)
        return module

    def _recorded_load(self, spec: Any) -> Any:
        if not self._active:
            return self._load(spec)
        name = spec.name
        kept = Kept(name, spec)
        kept.late = not any(other.name == name.rpartition(".")[0] for other in self._stack)
        finders, filters = list(sys.meta_path), list(_warnings.filters)
        self._note_strangers(self._stack[-1])
        # Asked for here or, past __import__, by a module written in C.
        self._stack[-1].requests.append(name)
        self._stack.append(kept)
        self._seen.add(name)
        try:
            kept.module = self._load(spec)
        except BaseException:
            self._stack.pop()
            # What it had loaded by then stays.
            self._stack[-1].requests += kept.requests
            self._stack[-1].absent += kept.absent
            raise
        self._stack.pop()
        self._note_strangers(kept)
        below = [action for other in self._kept.values() for action in other.actions]
        for finder in sys.meta_path:
            if finder not in finders and (_add_finder, (finder,), {}) not in below:
                kept.actions.append((_add_finder, (finder,), {}))
        for item in reversed(_warnings.filters):
            if item not in filters and (_add_filter, (item,), {}) not in below:
                kept.actions.append((_add_filter, (item,), {}))
        self._kept[name] = kept
        return kept.module

    def _note_strangers(self, owner: Kept) -> None:
        """Modules that no finder found: the one that was just loaded has put them there."""
        for name in [name for name in sys.modules if name not in self._seen]:
            self._seen.add(name)
            if sys.modules[name] is sys.modules["__main__"]:
                owner.actions.append((_alias_main, (name,), {}))
                continue
            stranger = Kept(name, None)
            stranger.module = sys.modules[name]
            self._kept[name] = stranger
            owner.requests.append(name)

    # What is done besides

    def _note(self, variable: bytes, value: bytes | None) -> None:
        self._stack[-1].variables.setdefault(variable, value)

    def _recorded_register(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        if self._active:
            self._stack[-1].actions.append((self._register, (function, *arguments), keywords))
            return function
        return self._register(function, *arguments, **keywords)

    def _recorded_at_fork(self, **handlers: Any) -> None:
        if self._active:
            self._stack[-1].actions.append((self._at_fork, (), handlers))
        else:
            self._at_fork(**handlers)


def _with_packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _watched(plain: Any, note: Callable[[bytes, bytes | None], None]) -> Any:
    """The class of an environment that tells what is read of it."""

    class Watched(plain):  # type: ignore[misc]
        def __getitem__(self, key: Any) -> Any:
            encoded = self.encodekey(key)
            note(encoded, self._data.get(encoded))
            return plain.__getitem__(self, key)

        def __iter__(self) -> Any:
            note(EVERYTHING, None)
            return plain.__iter__(self)

        def __len__(self) -> int:
            note(EVERYTHING, None)
            return len(self._data)

        def copy(self) -> Any:
            note(EVERYTHING, None)
            return plain.copy(self)

    return Watched


def _alias_main(name: str) -> None:
    sys.modules[name] = sys.modules["__main__"]


def _add_finder(finder: Any) -> None:
    sys.meta_path.append(finder)


def _add_filter(item: Any) -> None:
    """As ``warnings.filterwarnings`` does."""
    filters = _warnings.filters
    if item in filters:
        filters.remove(item)
    filters.insert(0, item)
    _warnings._filters_mutated()
