"""Settings: the only module that reads the environment."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tidebox.errors import InvalidRequest


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "tidebox"


class Settings(BaseSettings):
    """Everything an operator can set, each by an environment variable ``SANDBOX_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="SANDBOX_", frozen=True, extra="ignore")

    data_dir: Path = Field(default_factory=_default_data_dir, description="Where images, sockets and state live.")
    allow_weak_isolation: bool = Field(
        default=False, description="Open boxes although a guarantee is missing on this machine. Every box says so."
    )
    python: str | None = Field(
        default=None,
        description="The interpreter of the host image; by default the system's python3, if it is new enough.",
    )
    pool_blank: int = Field(default=2, ge=0, le=256, description="Boxes kept ready without an interpreter.")
    pool_python: int = Field(default=4, ge=0, le=256, description="Parked cells for Python, shell and plain commands.")
    pool_node: int = Field(default=1, ge=0, le=64, description="Parked cells for JavaScript.")
    pool_elixir: int = Field(default=0, ge=0, le=16, description="Parked cells for Elixir; each is a whole BEAM.")
    pool_max_age_sec: float = Field(
        default=600.0, gt=0, description="A parked cell older than this is replaced unused."
    )


def session_environment() -> dict[str, str]:
    """What of the environment tells where programs and the login session are."""
    return {
        name: os.environ[name] for name in ("PATH", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS") if name in os.environ
    }


def environment_variable(name: str) -> str | None:
    """A variable of the caller's own environment that he asked to hand on to a program."""
    return os.environ.get(name)


def load_settings(**overrides: object) -> Settings:
    """The settings of this process: ``overrides`` win over the environment, the environment over the defaults."""
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "SANDBOX_" + "_".join(str(part) for part in first["loc"]).upper()
        raise InvalidRequest(f"{name}: {first['msg']}", field=name) from error
