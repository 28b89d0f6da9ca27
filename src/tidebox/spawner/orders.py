"""Orders to a template: the shapes of its boxes, then which boxes to make."""

from __future__ import annotations

from tidebox.agent.init_setup import InitSetup
from tidebox.spawner import confine, ids, steps, warm
from tidebox.spawner.single import Single

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from tidebox.agent.main import Agent


class Shape:
    """All that boxes of one kind have in common, told to the template once and decoded before they are cloned."""

    def __init__(
        self,
        message: dict[str, Any],
        make_agent: Callable[[InitSetup, dict[str, Any]], Agent] | None,
        two_ids: bool,
        egress: bool,
    ) -> None:
        """``make_agent`` is None in a template whose boxes have none."""
        self.steps = steps.prepare(message["plan"])
        self.load_filter = confine.load_filter_calls(message["nested_filters"])
        self.setup = InitSetup(
            sock=-1,
            generation=message["generation"],
            user=(ids.USER_UID, ids.USER_UID),
            default_user_name="user",
            confine=confine.confine_program,
            builtins={"python": warm.park},
        )
        # Made here, once: a box inherits it and only adds its descriptors.
        self.agent = None if make_agent is None else make_agent(self.setup, message)
        self.single = Single(self.setup, message, self.steps, two_ids, egress)


class BoxOrder:
    """The spawner's order to a template for one box.

    Descriptors: the agent's socket, or the control socket and the standard streams of a single program; the mount of
    its devices, if it has one; then the cgroup's.
    """

    def __init__(self, message: dict[str, Any], descriptors: list[int], shape: Shape) -> None:
        self.box: str = message["box"]
        self.request: int = message["request"]
        self.number: int = message["number"]
        self.shape = shape
        self.cgroup_version: int = message["cgroup"]
        self.leaf_count: int = message["leaves"]
        self.descriptors = descriptors
        # Put into words by the spawner: a box has to copy every page it touches.
        self.announcement: bytes = message["announcement"]
        # The name and arguments of the builtin that its program is, where that is known.
        self.builtin: list[str] | None = message["builtin"]
        # What is done in this box alone, when it stands on its root.
        self.own_steps: list[list[Any]] = message["own_steps"]
        self._fixed = 4 if shape.agent is None else 1
        self._devices = self._fixed if message["devices"] else None
        self._cgroup = self._fixed + message["devices"]

    @property
    def ends(self) -> list[int]:
        """The descriptors that connect the box with the server."""
        return self.descriptors[: self._fixed]

    @property
    def devices(self) -> int | None:
        """The descriptor of the mount that is to be its /dev, if it has one."""
        return None if self._devices is None else self.descriptors[self._devices]

    @property
    def attach(self) -> list[int]:
        """The cgroup files that a v1 box writes itself into; none on v2."""
        return (
            self.descriptors[self._cgroup : len(self.descriptors) - self.leaf_count] if self.cgroup_version == 1 else []
        )

    @property
    def cgroup_directory(self) -> int | None:
        """The v2 leaf to be cloned into."""
        return self.descriptors[self._cgroup] if self.cgroup_version == 2 else None

    @property
    def leaf_directories(self) -> list[int]:
        """The delegated directories for a leaf per exec; empty in a single-use box."""
        return self.descriptors[len(self.descriptors) - self.leaf_count :] if self.leaf_count else []
