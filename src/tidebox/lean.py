"""Importing libraries without the parts of them that nothing here uses: most of the time a start takes is imports.

None of this changes what a library does. What was left out is loaded when it is asked for.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def without(name: str) -> Iterator[None]:
    """Let imports of a package fail meanwhile, for libraries that use it where it is installed.

    Nothing happens if it has been imported before.
    """
    if name in sys.modules:
        yield
        return
    # The import system's own way to say that there is no such module.
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop(name, None)


@contextmanager
def deferred_models() -> Iterator[None]:
    """Let pydantic build the validators of models that are defined meanwhile when they are first used.

    A library that defines hundreds, of which a process uses ten, loads in half the time.
    """
    from pydantic import BaseModel

    before = BaseModel.model_config.get("defer_build")
    # Every model inherits the configuration of its base.
    BaseModel.model_config["defer_build"] = True
    try:
        yield
    finally:
        if before is None:
            BaseModel.model_config.pop("defer_build", None)
        else:
            BaseModel.model_config["defer_build"] = before


def bare_packages(*names: str) -> None:
    """Let modules of these packages be imported without what the packages' ``__init__`` imports besides.

    That runs as soon as anybody asks for a name it defines. Parents come before their children.
    """
    for name in names:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None or spec.submodule_search_locations is None:
            continue  # the importer learns why
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _BarePackage
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


class _BarePackage(ModuleType):
    """A package whose ``__init__`` has not run."""

    def __getattr__(self, name: str) -> Any:
        # The import system asks for these of every module; none of them is defined by an __init__.
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _initializing:
            if isinstance(self, _BarePackage):
                self._initialize()
        return getattr(self, name)

    def _initialize(self) -> None:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        # Before it runs: what it imports may ask this package for a name, as of any that is being imported.
        object.__setattr__(self, "__class__", ModuleType)
        try:
            spec.loader.exec_module(self)
        except BaseException:
            # The next caller gets the same error.
            object.__setattr__(self, "__class__", _BarePackage)
            raise


_initializing = threading.RLock()
