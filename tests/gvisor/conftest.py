"""What the tests of the gvisor runtime share."""

from __future__ import annotations

import pytest

from tests.api.conftest import start_server
from tests.gvisor.program import usable_runsc

__all__ = ["start_server"]


@pytest.fixture(scope="session")
def runsc_path() -> str:
    """A runsc that boots sandboxes here."""
    return usable_runsc()
