"""A real server for the commands that speak to one."""

from __future__ import annotations

from tests.api.conftest import running_server, start_server

__all__ = ["running_server", "start_server"]
