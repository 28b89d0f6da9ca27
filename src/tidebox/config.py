"""Settings: the only module that reads the environment.

Read by hand, not by a validation library: importing one takes several times as long as running a program in a box.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidebox.errors import InvalidRequest

PREFIX = "SANDBOX_"
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "tidebox"


def _setting(
    description: str,
    parse: Callable[[str], Any],
    default: Any = None,
    *,
    factory: Callable[[], Any] | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    metadata = {"description": description, "parse": parse, "low": low, "high": high}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def _flag(text: str) -> bool:
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise ValueError("give yes or no") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("give a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("give a number") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an operator can set, each by an environment variable ``SANDBOX_<NAME>``."""

    data_dir: Path = _setting("Where images, sockets and state live.", Path, factory=_default_data_dir)
    allow_weak_isolation: bool = _setting(
        "Open boxes although a guarantee is missing on this machine. Every box says so.", _flag, False
    )
    python: str | None = _setting(
        "The interpreter of the host image; by default the system's python3, if it is new enough.", str
    )
    pool_blank: int = _setting("Boxes kept ready without an interpreter.", _whole, 2, low=0, high=256)
    pool_python: int = _setting("Parked cells for Python, shell and plain commands.", _whole, 4, low=0, high=256)
    pool_node: int = _setting("Parked cells for JavaScript.", _whole, 1, low=0, high=64)
    pool_elixir: int = _setting("Parked cells for Elixir; each is a whole BEAM.", _whole, 0, low=0, high=16)
    pool_max_age_sec: float = _setting("A parked cell older than this is replaced unused.", _number, 600.0, low=1)


def load_settings(**overrides: Any) -> Settings:
    """The settings of this process: ``overrides`` win over the environment, the environment over the defaults."""
    values = _from_environment(os.environ) | overrides
    for item in dataclasses.fields(Settings):
        if item.name in values:
            _check_range(PREFIX + item.name.upper(), values[item.name], item.metadata)
    return Settings(**values)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for item in dataclasses.fields(Settings):
        name = PREFIX + item.name.upper()
        text = environment.get(name)
        if text:
            try:
                found[item.name] = item.metadata["parse"](text)
            except ValueError as error:
                raise InvalidRequest(f"{name}: {error}, not {text!r}", field=name) from None
    return found


def _check_range(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    low, high = limits["low"], limits["high"]
    if low is not None and not value >= low:
        raise InvalidRequest(f"{name}: must be at least {low:g}, not {value!r}", field=name)
    if high is not None and not value <= high:
        raise InvalidRequest(f"{name}: must be at most {high:g}, not {value!r}", field=name)


def session_environment() -> dict[str, str]:
    """What of the environment tells where programs and the login session are."""
    return {name: os.environ[name] for name in ("PATH", "XDG_RUNTIME_DIR") if name in os.environ}


def environment_variable(name: str) -> str | None:
    """A variable of the caller's own environment that he asked to hand on to a program."""
    return os.environ.get(name)
