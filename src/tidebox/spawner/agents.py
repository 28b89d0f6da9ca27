"""The agent of long-lived boxes: what only their templates load."""

from __future__ import annotations

from tidebox.agent.main import Agent
from tidebox.wire.messages import Bootstrap, EnvVar, Rlimit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tidebox.agent.init_setup import InitSetup


def make_agent(setup: InitSetup, shape: dict[str, Any]) -> Agent:
    """An agent that needs no bootstrap from its host any more."""
    setup.bootstrap = Bootstrap(
        rlimits=[Rlimit(resource=name, soft=value, hard=value) for name, value in shape["rlimits"]],
        default_cwd=shape["cwd"],
        default_env=[EnvVar(key=name, value=value) for name, value in shape["env"]],
    )
    return Agent(setup)
