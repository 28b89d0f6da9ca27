"""Events of an exec, in order: any number of Preparing, Started, any number of Output, one Exited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Preparing:
    """A step before the program can be started, where it may take long."""

    message: str
    layer: str | None = None
    """The digest of a layer that was made just now."""


@dataclass(frozen=True, slots=True)
class Started:
    """The program runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class OutputEvent:
    """Bytes as the program wrote them."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressSeen:
    """A connection that a program made or was denied, or a name that was not resolved: the first of its kind."""

    allowed: bool
    host: str | None = None
    ip: str | None = None
    port: int | None = None
    matched_rule: str | None = None
    reason: str | None = None
    """Why it was denied."""

    def shown(self) -> dict[str, str | int | None]:
        """As the audit log and streams have it."""
        found = {"host": self.host, "ip": self.ip, "port": self.port, "matched_rule": self.matched_rule}
        return found if self.allowed else {**found, "reason": self.reason}


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
    """The usage of this exec alone, where the agent can count it."""


Event = Preparing | Started | OutputEvent | StdinRefused | Exited
