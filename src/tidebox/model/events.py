"""What an exec tells its reader, in order: Started, any number of Output, one Exited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Started:
    """The program runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes as the program wrote them."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True)
class StdinRefused:
    """The program closed its standard input; what is still sent is dropped."""

    message: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The program ended by itself (``code``) or by a signal."""

    code: int | None
    signal: int | None = None
    usage: dict[str, int] | None = None
    """What the agent counted for this exec alone, where it can."""


Event = Started | Output | StdinRefused | Exited
