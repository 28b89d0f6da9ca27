"""Output of containers comes byte-exact, however much there is, and nobody who waits holds others up."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.conftest import RunningServer, finish, start
from tests.api.interpreter.service import Service
from tests.boxes import BoxRunner
from tests.patience import patient
from tests.runtimes import runtime_settings
from tidebox.model.result import Outcome

MEGABYTES = 100
FLOOD = """
import hashlib, os, sys
block = os.urandom(1 << 20)
total = hashlib.sha256()
for number in range({megabytes}):
    piece = number.to_bytes(8, "big") + block[8:]
    total.update(piece)
    sys.stderr.buffer.write(piece)
sys.stderr.flush()
print(total.hexdigest())
"""


def test_counting_comes_whole(docker_runner: BoxRunner) -> None:
    result = docker_runner(command=["seq", "1", "100000"])
    assert result.stdout == b"".join(b"%d\n" % number for number in range(1, 100_001))
    assert len(result.stdout) == 588_895


def test_a_hundred_megabytes_of_errors_come_whole(docker_runner: BoxRunner) -> None:
    result = docker_runner(FLOOD.format(megabytes=MEGABYTES), output=2 * MEGABYTES << 20, timeout=patient(100))
    assert result.outcome is Outcome.EXITED
    assert len(result.stderr) == MEGABYTES << 20
    assert hashlib.sha256(result.stderr).hexdigest() == result.stdout.decode().strip()


def test_more_than_it_may_print_ends_it(docker_runner: BoxRunner) -> None:
    result = docker_runner("while True: print('x' * 1000)", output=100_000)
    assert result.outcome is Outcome.OUTPUT_LIMIT
    assert len(result.stdout) == 100_000


@pytest.fixture(scope="module")
def server(docker_host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    server = start(tmp_path_factory.mktemp("docker"), rate_limit="off", **runtime_settings("docker"))
    yield server
    finish(server)


def test_cancelling_answers_at_once_while_others_are_served(server: RunningServer) -> None:
    with Service.of(server) as client:
        run = client.start(["sleep", "20"], runtime="docker")
        client.wait(run, "running", seconds=patient(60))
        asked = time.monotonic()

        def ask(number: int) -> int:
            return client.get(f"/runs/{run}" if number % 2 else "/runtimes").status_code

        with ThreadPoolExecutor(50) as threads:
            others = [threads.submit(ask, number) for number in range(50)]
            answer = client.post(f"/runs/{run}/cancel")
            answered = time.monotonic() - asked
            assert answer.status_code in (200, 202)
            assert [other.result() for other in others] == [200] * 50
        ended = client.wait(run, seconds=patient(30))
        assert (ended["phase"], ended["message"]) == ("killed", "canceled_by_user")
        # Not after the sleep, nor after the grace that the program has.
        assert answered < patient(4)
        assert time.monotonic() - asked < patient(15)
