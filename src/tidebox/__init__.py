"""Tidebox runs untrusted code in fresh, isolated boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidebox.embedded import arun, run
    from tidebox.model.result import Result

__all__ = ["Result", "__version__", "arun", "run"]

__version__ = "0.1.0"

_LAZY = {"run": "tidebox.embedded", "arun": "tidebox.embedded", "Result": "tidebox.model.result"}


def __getattr__(name: str) -> Any:
    # The spawner and the agent live in this package too: importing it must load nothing.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
