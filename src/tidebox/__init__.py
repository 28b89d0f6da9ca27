"""Tidebox runs untrusted code in fresh, isolated boxes."""

from __future__ import annotations

# Not imported from typing: the spawner and the agent live in this package too, and every module they load costs memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tidebox.entry import arun, run
    from tidebox.model.result import Result
    from tidebox.sdk.sandboxes.blocking import Sandbox

__all__ = ["Result", "Sandbox", "__version__", "arun", "run"]

__version__ = "0.1.0"

_LAZY = {
    "run": "tidebox.entry",
    "arun": "tidebox.entry",
    "Result": "tidebox.model.result",
    "Sandbox": "tidebox.sdk.sandboxes.blocking",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value
