"""The tests of programs and files again, in a sandbox of another server: a client sees no difference."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.api.dataplane import test_exec, test_files, test_sockets
from tests.api.dataplane.plane import Plane, running_plane
from tests.api.dataplane.test_files import there as there
from tests.boxes import BoxRunner
from tidebox.broker.sandboxes.providers.peer import Peer
from tidebox.broker.sandboxes.providers.remote_sandbox import RemoteSandbox
from tidebox.broker.sandboxes.sandbox import AccessPass
from tidebox.model.principal import Actor
from tidebox.model.sandbox import ALL_CAPABILITIES, Capability

LEFT_OUT = {
    # Where input stalls, either server may be the first to give up.
    "test_a_program_that_never_reads_its_input_ends_the_connection",
    # The other server does the same for its own sandboxes, and is slow to test.
    "test_much_output_holds_up_nobody_while_it_is_answered",
    "test_what_the_agent_has_open_is_out_of_reach",
    # As tests/api/access/test_providers.py shows.
    "test_a_slow_client_holds_back_its_own_program_only",
}
globals().update(
    {
        name: test
        for module in (test_exec, test_files, test_sockets)
        for name, test in vars(module).items()
        if name.startswith("test_") and name not in LEFT_OUT
    }
)


class Machine:
    """The other server, as its provider here knows it: with a pass that lasts."""

    name = "machine"

    def __init__(self, url: str, token: str) -> None:
        self.peer = Peer(self.name, url, "a key that nothing is asked with")
        self._pass = AccessPass(
            token=token,
            expires_at=time.time() + 3600,
            renew_at=time.time() + 3000,
            capabilities=ALL_CAPABILITIES,
        )

    async def issue_pass(
        self, sandbox: RemoteSandbox, actor: Actor, capabilities: frozenset[Capability] | None = None
    ) -> AccessPass:
        return self._pass


@pytest.fixture(scope="module")
def machine(box_runner: BoxRunner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """The server that has the sandbox."""
    with running_plane(box_runner, tmp_path_factory.mktemp("machine")) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(plane: Plane, machine: Plane) -> Iterator[RemoteSandbox]:
    """A sandbox of that server, at this one."""
    home = machine.sandbox()
    provider = Machine(machine.url, machine.token(home))
    yield RemoteSandbox(home.id, "bind-remote", provider, "session", None)  # type: ignore[arg-type]
    plane.runner.submit(provider.peer.close()).result(30)
