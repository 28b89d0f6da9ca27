"""What is generated depends on seed, grammar and number alone, and holds to what the campaign promises about it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.attacks import ATTACKS, PRELUDE
from tests.attack.grammars import GRAMMARS, archives, bodies, calls, chance_of, requests, resources, sockets
from tests.attack.grammars.frames import frame, random_frames
from tests.attack.mutation import damaged_bytes, damaged_json
from tidebox.spawner.syscall_tables import syscall_numbers

Generator = Callable[[random.Random], Any]
GENERATORS: dict[str, Generator] = {
    "sockets": lambda chance: sockets.conversation(chance, "Bearer x", "token", "sb-1", "run-1"),
    "requests": lambda chance: requests.conversation(chance, "Bearer x"),
    "bodies": bodies.request,
    "calls": calls.program,
    "archives": archives.archive,
    "resources": resources.program,
}


def test_every_grammar_is_tested_here() -> None:
    assert set(GENERATORS) == set(GRAMMARS)


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_a_step_is_the_same_whenever_its_number_is(name: str) -> None:
    generate = GENERATORS[name]
    first = [generate(chance_of(7, name, number)) for number in range(20)]
    assert first == [generate(chance_of(7, name, number)) for number in range(20)]
    assert first != [generate(chance_of(8, name, number)) for number in range(20)]
    assert any(one != first[0] for one in first)


def test_frames_are_what_the_protocol_calls_frames() -> None:
    assert frame(1, b"hi", mask=b"\x01\x02\x03\x04") == b"\x81\x82\x01\x02\x03\x04" + bytes(
        [ord("h") ^ 1, ord("i") ^ 2]
    )
    assert frame(9, b"", mask=None) == b"\x89\x00"
    assert frame(2, bytes(300), final=False)[:4] == b"\x02\xfe\x01\x2c"
    assert frame(2, bytes(70_000))[:10] == b"\x82\xff" + (70_000).to_bytes(8, "big")


def test_frames_of_every_kind_come_up() -> None:
    chance = random.Random(1)
    seen = [random_frames(chance, [{"type": "ping"}]) for _ in range(400)]
    assert any(data.startswith(b"\x89\x80" + bytes(4) + b"\x89\x80") for data in seen), "a flood of pings"
    assert any(data[1] & 0x80 == 0 for data in seen), "a frame without a mask"
    assert any(data[0] & 0x70 for data in seen), "reserved bits"
    assert any(data[:2] == b"\x81\xff" and data[2] >= 0x7F for data in seen), "a length of eight bytes"
    assert max(map(len, seen)) < 1 << 20


def test_damage_is_done() -> None:
    chance = random.Random(1)
    value = {"a": 1, "b": [1, 2, {"c": "d"}]}
    damaged = {damaged_json(chance, value, 2) for _ in range(200)}
    assert len(damaged) > 100
    assert value == {"a": 1, "b": [1, 2, {"c": "d"}]}
    assert len({damaged_bytes(chance, b"x" * 100, 3) for _ in range(100)}) > 90


def test_programs_make_calls_that_the_filter_lets_through() -> None:
    names = {number: name for name, number in syscall_numbers("x86_64").items()}
    allowed = set(calls.reachable())
    assert {"read", "socket", "clone", "ioctl", "mmap", "timer_create"} <= allowed
    assert not {"ptrace", "bpf", "mount", "io_uring_setup", "clone3"} & allowed
    made = [call for number in range(50) for call in calls.calls(chance_of(1, "calls", number))]
    assert len({number for number, _ in made}) > 100
    if calls.MACHINE == "x86_64":
        assert {names[number] for number, _ in made} <= allowed


def test_no_filter_is_attached_by_ordinary_programs() -> None:
    numbers = syscall_numbers(calls.MACHINE)
    for number in range(300):
        for call, arguments in calls.calls(chance_of(1, "calls", number)):
            assert call != numbers.get("seccomp")
            assert not {22, 26, 50, 51, 52} & {argument for argument in arguments if isinstance(argument, int)}


def test_programs_are_programs() -> None:
    for number in range(20):
        compile(calls.program(chance_of(1, "calls", number)), "calls", "exec")
        compile(resources.program(chance_of(1, "resources", number))[1], "resources", "exec")
    for name, program in ATTACKS.items():
        compile(PRELUDE + program, name, "exec")


def test_archives_of_every_kind_come_up_and_stay_small() -> None:
    made = [archives.archive(chance_of(1, "archives", number)) for number in range(60)]
    assert {archive.kind for archive in made} == {"tar", "gz", "bz2", "xz", "xz-9", "zst", "zip", "oci"}
    assert max(len(archive.data) for archive in made) < 8 << 20
