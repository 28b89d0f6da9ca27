"""The setup that the spawner or the container's entry point hands to the init of a box."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, NoReturn, Protocol

    from tidebox.wire import messages

    class ExecCgroups(Protocol):
        """A cgroup leaf per exec, known by a number."""

        def make(self) -> int:
            """A new leaf."""

        def attach(self, leaf: int, /) -> None:
            """Move the calling process into it."""

        def kill(self, leaf: int, /) -> None:
            """SIGKILL to everything in it."""

        def usage(self, leaf: int, /) -> dict[str, int]:
            """The resources it has used."""

        def remove(self, leaf: int, /) -> None:
            """Remove it as soon as it is empty."""


class InitSetup:
    """The descriptors, users, cgroups and functions handed to an init by the process that started it."""

    __slots__ = (
        "sock",
        "out",
        "generation",
        "user",
        "default_user_name",
        "confine",
        "builtins",
        "leaves",
        "oom_score_fd",
        "bootstrap",
        "environment",
        "counters",
        "shares_user",
    )

    def __init__(
        self,
        *,
        sock: int,
        out: int | None = None,
        generation: int,
        user: tuple[int, int],
        default_user_name: str,
        confine: Callable[[], None],
        builtins: dict[str, Callable[[list[str], int], NoReturn]],
        leaves: ExecCgroups | None = None,
        oom_score_fd: int | None = None,
        bootstrap: bool | messages.Bootstrap = True,
        counters: Callable[[], dict[str, int]] | None = None,
        shares_user: bool = False,
    ) -> None:
        # A socket; with ``out`` a pipe to read from, and that one to write to.
        self.sock = sock
        self.out = out
        self.generation = generation
        self.user = user
        self.default_user_name = default_user_name
        self.confine = confine
        # Called with its arguments and the descriptor to report a failed exec through, or -1.
        self.builtins = builtins
        self.leaves = leaves
        self.oom_score_fd = oom_score_fd
        self.bootstrap = bootstrap
        # The agent's own, which a child that stays a Python need not be given anew.
        self.environment = dict(os.environb)
        # What the whole box has used, where init can tell. It then takes the host's orders about the whole box too.
        self.counters = counters
        # Whether programs have init's own uid: what is still init's they must not reach through a child of its.
        self.shares_user = shares_user
