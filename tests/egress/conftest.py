"""One machine in a network of its own for all tests of a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.egress.vault import Vault
from tests.egress.world import READY, Machine


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Boxes, and the servers that they may reach or not."""
    if os.geteuid() != 0 and READY not in os.environ:
        pytest.skip("only root can make a network for the test; test_unprivileged starts it in one")
    made = Machine(tmp_path_factory.mktemp("egress"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def vault(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    """Another one beside it, with secrets. Its servers stand in the same network: there is one of them."""
    made = Vault(machine, tmp_path_factory.mktemp("vault"))
    yield made
    made.machine.stop()
