"""Gives a program the modules that were loaded ahead (see ``preload``), when it imports them.

The import system finds a module as ever; only where what it found is what was set aside, it is given that instead of
loading it. This is done in the one function that finds modules, ``_find_spec``: it stays the same function, with other
code, and no list or name that a program looks at has anything of ours.

A module is given together with all that its import would load, in the same order, and what that import would do besides
is done then. It is not given where a fresh import could end otherwise: another file would be found for any part of it,
a variable that it read has another value, a part was given before and is not there any more or was put there by the
program (None too), or the program watches
imports (traces, profiles, finders or an ``__import__`` of its own). Then it is loaded as if nothing had been set aside.
Packages with compiled parts no process can load twice: they are given though imports are watched, or a variable was
changed since the start. One that comes with such a variable is run by an interpreter of its own.

What can still be told: by time; by the missing events of an audit hook; by ``__subclasses__()`` and what one preloaded
module registered with another (``copyreg``, ``encodings``); by the code of ``_find_spec``; and that objects which a
program leaves in such a module are not finalized, nor what they hold: a file that was left open, and never closed or
flushed, is not written where a function or class of the program that sees it was put into such a module.
"""

from __future__ import annotations

import _imp
import builtins
import os
import sys
from posix import listdir

from tidebox.spawner import fresh, preload
from tidebox.spawner.preload import EVERYTHING, Kept, Record, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__builtins__ = vars(builtins).copy()  # type: ignore[assignment]

_bootstrap: Any = sys.modules["_frozen_importlib"]
_warnings: Any = sys.modules["_warnings"]
_SUFFIXES = ("", ".py", ".pyc", *_imp.extension_suffixes())
_modules = sys.modules
_import = builtins.__import__
_frame, _gettrace, _getprofile = sys._getframe, sys.gettrace, sys.getprofile
_monitoring = getattr(sys, "monitoring", None)
_environment = os.environ
_variables: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
_ABSENT = object()
_FILE = "<frozen importlib._bootstrap>"
_SOURCE = """
def _find_spec(name, path, target=None):
    spec = "find"(name, path, target)
    return "give"(name, spec) if name in "kept" else spec
"""


class Bundle:
    """A module with everything that its import loads, in the order in which that is complete."""

    __slots__ = ("members", "variables", "absent", "files", "once")

    def __init__(self, kept: dict[str, Kept], name: str) -> None:
        self.members = _in_order(kept, name)
        self.variables = {
            variable: value
            for member in self.members
            for variable, value in member.variables.items()
            if not fresh.is_applied(member.name, variable)
        }
        self.absent = frozenset(missing for member in self.members for missing in member.absent if missing not in kept)
        """What was asked for in vain: a program can put it among the modules."""
        tops = {member.name for member in self.members if "." not in member.name and member.spec is not None}
        tops.update(missing.partition(".")[0] for member in self.members for missing in member.absent)
        self.files = frozenset(top + suffix for top in tops for suffix in _SUFFIXES)
        """Names of files that would come before, or be found where nothing was."""
        self.once = any(map(_is_compiled_package, self.members))
        """Whether it has parts that no process can load a second time."""


def _is_compiled_package(member: Kept) -> bool:
    origin = getattr(member.spec, "origin", None)
    return isinstance(origin, str) and "-packages/" in origin and origin.endswith(tuple(_imp.extension_suffixes()))


def _in_order(kept: dict[str, Kept], name: str) -> list[Kept]:
    """The closure of what modules ask for; without recursion, for it may be deep."""
    ordered: list[Kept] = []
    visited = {name}
    stack = [(kept[name], iter(kept[name].requests))]
    while stack:
        member, requests = stack[-1]
        for request in requests:
            if request in kept and request not in visited:
                visited.add(request)
                stack.append((kept[request], iter(kept[request].requests)))
                break
        else:
            stack.pop()
            ordered.append(member)
    return ordered


def load(names: Iterable[str], path: Iterable[str]) -> HandOver | Refused:
    """Load modules ahead, and have programs given them; or why one of them cannot be."""
    try:
        hand_over = HandOver(preload.load(names, path))
    except Refused as error:
        return error
    hand_over.install()
    return hand_over


class HandOver:
    """Answers the import system, from within ``_find_spec``, with modules that were loaded ahead."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._kept = record.kept
        self._bundles = {name: Bundle(record.kept, name) for name in record.asked if name in record.kept}
        self._read = {
            variable: value
            for member in record.kept.values()
            for variable, value in member.variables.items()
            if not fresh.is_applied(member.name, variable)
        }
        self._caller = _bootstrap._find_and_load_unlocked.__code__

    def suits(self, environment: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether nothing that was loaded had read one of these variables, and another value."""
        return all(
            self._read.get(name, value) == value and not fresh.is_of_library(name) for name, value in environment
        )

    def install(self) -> None:
        """Put it where modules are found."""
        find = _bootstrap._find_spec
        plain = type(find)(find.__code__, find.__globals__, find.__name__, find.__defaults__)
        (code,) = (item for item in _compiled().co_consts if hasattr(item, "co_code"))
        ours = {"find": plain, "give": self.give, "kept": self._kept}
        constants = tuple(ours.get(item, item) if isinstance(item, str) else item for item in code.co_consts)
        find.__code__ = code.replace(co_consts=constants, co_firstlineno=find.__code__.co_firstlineno)

    def rehearse(self) -> None:
        """Look at all that may be given, so that the pages that this writes to are the process's own by then."""
        given = {}
        for member in self._kept.values():
            given[member.name] = member.module
            member.given = False
            for _ in _places(member):
                pass
        for bundle in self._bundles.values():
            if bundle.once:
                self._may_give(bundle)

    def give(self, name: str, spec: Any) -> Any:
        """``spec``, or one that gives what was set aside under that name."""
        kept = self._kept[name]
        # Others only want to know where a module is.
        if spec is None or _frame(2).f_code is not self._caller or not _is_same(spec, kept.spec):
            return spec
        bundle = self._bundles.get(name)
        if bundle is None:
            bundle = self._bundles[name] = Bundle(self._kept, name)
        if not self._may_give(bundle):
            return spec
        return _bootstrap.ModuleSpec(name, _Giving(self.record, kept, bundle, spec))

    def _may_give(self, bundle: Bundle) -> bool:
        if _modules is not sys.modules or os.environ is not _environment:
            return False
        for member in bundle.members:
            # Not even None, by which a program says that a module is not to be found.
            if _modules.get(member.name, _ABSENT) is not (member.module if member.given else _ABSENT):
                return False
        if not bundle.absent.isdisjoint(_modules):
            return False
        if not self._finds_the_same(bundle):
            return False
        # Those that cannot be loaded again are given where another import would only be seen, or read what was changed
        # since the start.
        return bundle.once or (not _is_watched() and self._reads_the_same(bundle))

    def _reads_the_same(self, bundle: Bundle) -> bool:
        for variable, value in bundle.variables.items():
            if variable == EVERYTHING:
                if _variables != self.record.environment:
                    return False
            elif _variables.get(variable) != value:
                return False
        return True

    def _finds_the_same(self, bundle: Bundle) -> bool:
        """Whether no finder and no directory of the program's own comes in between."""
        record = self.record
        if not all(fresh.may_give(member.name) for member in bundle.members):
            return False
        if any(finder not in record.added_finders for finder in sys.meta_path[len(record.meta_path) :]):
            return False
        if sys.meta_path[: len(record.meta_path)] != record.meta_path:
            return False
        added, path = list(sys.path), record.path
        for start in range(len(added) - len(path) + 1):
            if added[start : start + len(path)] == path:
                del added[start : start + len(path)]
                return all(_has_none_of(directory, bundle.files) for directory in added)
        return False


def _compiled() -> Any:
    """The code with texts in the place of what it calls, which the compiler would warn of."""
    filters = _warnings.filters
    kept = list(filters)
    filters.insert(0, ("ignore", None, SyntaxWarning, None, 0))
    try:
        return compile(_SOURCE, _FILE, "exec")
    finally:
        filters[:] = kept


def _is_same(found: Any, kept: Any) -> bool:
    return (
        kept is not None
        and found.origin == kept.origin
        and (found.loader is kept.loader or type(found.loader) is type(kept.loader))
    )


def _is_watched() -> bool:
    if builtins.__import__ is not _import or _gettrace() is not None or _getprofile() is not None:
        return True
    return _monitoring is not None and any(_monitoring.get_tool(number) is not None for number in range(6))


def _has_none_of(directory: object, files: frozenset[str]) -> bool:
    if not isinstance(directory, str):
        return False
    try:
        return files.isdisjoint(listdir(directory or "."))
    except FileNotFoundError:
        return True
    except OSError:
        return False  # an archive, or what nobody can look into


class _Giving:
    """The loader of one module that is given; nobody sees it afterwards."""

    def __init__(self, record: Record, kept: Kept, bundle: Bundle, spec: Any) -> None:
        self._record = record
        self._kept = kept
        self._members = bundle.members
        self._spec = spec

    def create_module(self, _spec: Any) -> Any:
        return self._kept.module

    def exec_module(self, module: Any) -> None:
        """The last of the members is the module itself, which the import system takes care of."""
        try:
            if module.__spec__ is not self._kept.spec:
                module.__spec__ = self._kept.spec
        except AttributeError:
            pass  # something that only stands in for a module
        finders, cache = self._record.finders, sys.path_importer_cache
        for member in self._members:
            if member.given:
                continue
            member.given = True
            if member is not self._kept:
                _modules[member.name] = member.module
                if member.late:
                    _bind(member)
            for place in _places(member):
                if place in finders and place not in cache:
                    cache[place] = finders[place]
            for function, arguments, keywords in member.actions:
                function(*arguments, **keywords)
            fresh.freshen(member.name, member.module)


def _bind(member: Kept) -> None:
    parent, _, child = member.name.rpartition(".")
    if parent in _modules:
        setattr(_modules[parent], child, member.module)


def _places(member: Kept) -> Iterable[str]:
    """Return the directories in which a package's own modules are looked for; none for a plain module."""
    places = getattr(member.spec, "submodule_search_locations", None)
    return list(places) if places else ()
