"""Output arrives whole, in order and within its limit, whatever bytes a program sends."""

from __future__ import annotations

import time

import pytest

from tests.escape.probes import MIB, Run, said
from tests.patience import patient


@pytest.mark.parametrize("stream", [1, 2], ids=["stdout", "stderr"])
def test_a_flood_is_cut_at_the_limit(box_run: Run, stream: int) -> None:
    result = box_run(f"import os\nwhile True:\n    os.write({stream}, b'x' * 65536)", output=MIB, timeout=patient(30))
    assert result.outcome.value == "output_limit"
    assert result.truncated
    assert len(result.stdout) + len(result.stderr) <= MIB
    assert len(result.stdout if stream == 1 else result.stderr) == MIB


def test_a_flood_on_both_streams_shares_one_limit(box_run: Run) -> None:
    result = box_run(
        "import os\nwhile True:\n    os.write(1, b'o' * 4096)\n    os.write(2, b'e' * 4096)",
        output=MIB,
        timeout=patient(30),
    )
    assert result.outcome.value == "output_limit"
    assert len(result.stdout) + len(result.stderr) <= MIB


def test_a_flood_by_many_processes_is_cut_too(box_run: Run) -> None:
    program = "import os\nfor _ in range(3):\n    os.fork()\nwhile True:\n    os.write(1, b'y' * 65536)"
    result = box_run(program, output=MIB, timeout=patient(30))
    assert result.outcome.value == "output_limit"
    assert result.usage.wall_seconds < patient(20)


def test_a_flood_in_single_bytes_is_whole(box_run: Run) -> None:
    result = box_run("import os\nfor n in range(100000):\n    os.write(1, b'%d' % (n % 10))")
    assert result.stdout == b"0123456789" * 10000


def test_a_line_of_100_megabytes_is_whole(box_run: Run) -> None:
    program = """
import os
for _ in range(100):
    left = b"z" * 1000000
    while left:
        left = left[os.write(1, left):]
"""
    result = box_run(program, output=128 * MIB, timeout=patient(50))
    assert result.outcome.value == "exited"
    assert len(result.stdout) == 100_000_000
    assert result.stdout.count(b"z") == 100_000_000


def test_every_byte_is_kept_as_it_is(box_run: Run) -> None:
    result = box_run("import os; os.write(1, bytes(range(256)) * 64); os.write(2, bytes(range(255, -1, -1)) * 64)")
    assert result.stdout == bytes(range(256)) * 64
    assert result.stderr == bytes(range(255, -1, -1)) * 64


@pytest.mark.parametrize(
    "raw",
    [b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"ok\x80ok", b"\xf0\x9f"],
    ids=["never", "cut", "surrogate", "too-high", "overlong", "stray", "half-emoji"],
)
def test_invalid_utf8_is_kept_as_it_is(box_run: Run, raw: bytes) -> None:
    assert box_run(f"import os; os.write(1, {raw!r})").stdout == raw


def test_a_character_sent_byte_by_byte_is_whole(box_run: Run) -> None:
    program = """
import os, time
for byte in "\\U0001f30a\\u00e9".encode():
    os.write(1, bytes([byte]))
    time.sleep(0.03)
"""
    assert box_run(program).stdout.decode() == "\U0001f30a\u00e9"


def test_control_sequences_are_only_bytes(box_run: Run) -> None:
    raw = b"\x1b]0;owned\x07\x1b[2J\x00\x04\x1a\r\n\x7f"
    assert box_run(f"import os; os.write(1, {raw!r})").stdout == raw


def test_what_looks_like_our_protocol_is_only_output(box_run: Run) -> None:
    """A frame of an exit with code 0, printed by the program, does not end it."""
    frame = b"\x00\x00\x00\x25\x00\x00\x00\x01\x01\xa3avatpcore.exec.exitedap\xa1dcode\x00"
    result = box_run(f"import os, sys\nfor fd in (1, 2):\n    os.write(fd, {frame!r} * 100)\nsys.exit(9)")
    assert (result.exit_code, result.stdout, result.stderr) == (9, frame * 100, frame * 100)


def test_order_within_a_stream_is_kept(box_run: Run) -> None:
    result = box_run("for n in range(30000):\n    print(n)")
    assert result.stdout.split() == [b"%d" % n for n in range(30000)]


def test_the_last_words_of_a_program_are_not_lost(box_run: Run) -> None:
    for _ in range(10):
        result = box_run("import os; os.write(1, b'x' * 300000); os.write(2, b'last words'); os._exit(5)")
        assert (result.exit_code, len(result.stdout), result.stderr) == (5, 300000, b"last words")


def test_the_last_words_before_a_kill_are_not_lost(box_run: Run) -> None:
    result = box_run("import os; os.write(1, b'before'); os.kill(os.getpid(), 9)")
    assert (result.outcome.value, result.signal, result.stdout) == ("signaled", 9, b"before")


def test_output_before_a_timeout_is_kept(box_run: Run) -> None:
    result = box_run("print('before', flush=True)\nwhile True: pass", timeout=0.7)
    assert (result.outcome.value, result.stdout) == ("timeout", b"before\n")


def test_a_program_that_closes_its_streams_still_ends_well(box_run: Run) -> None:
    result = box_run("import os, time\nfor fd in (0, 1, 2):\n    os.close(fd)\ntime.sleep(0.3)\nos._exit(7)")
    assert (result.outcome.value, result.exit_code) == ("exited", 7)


def test_a_program_that_closes_its_streams_still_times_out(box_run: Run) -> None:
    result = box_run("import os\nfor fd in (0, 1, 2):\n    os.close(fd)\nwhile True: pass", timeout=0.7)
    assert result.outcome.value == "timeout"


def test_streams_put_in_another_mode_lose_nothing_written(box_run: Run) -> None:
    program = """
import os
os.set_blocking(1, False)
sent = 0
while sent < 3000000:
    try:
        sent += os.write(1, b"n" * 65536)
    except BlockingIOError:
        pass
os.write(2, b"%d" % sent)
"""
    result = box_run(program)
    assert len(result.stdout) == int(result.stderr)


def test_streams_swapped_by_the_program_are_its_own_matter(box_run: Run) -> None:
    result = box_run(
        "import os\nsaved = os.dup(1)\nos.dup2(2, 1)\nos.dup2(saved, 2)\nos.write(1, b'one')\nos.write(2, b'two')"
    )
    assert (result.stdout, result.stderr) == (b"two", b"one")


@pytest.mark.parametrize(
    ("descriptor", "action"), [(0, "os.write(0, b'x')"), (1, "os.read(1, 1)"), (2, "os.read(2, 1)")]
)
def test_streams_go_one_way(box_run: Run, descriptor: int, action: str) -> None:
    program = f"import os\ntry:\n    {action}\n    print('BREACH')\nexcept OSError as error:\n    print(error.errno)"
    assert said(box_run(program, stdin=b"")) == "9"


def test_a_program_that_never_reads_its_input_ends_well(box_run: Run) -> None:
    start = time.monotonic()
    assert said(box_run("print('done')", stdin=b"i" * (8 * MIB))) == "done"
    assert time.monotonic() - start < patient(30)


def test_a_program_that_closes_its_input_ends_well(box_run: Run) -> None:
    assert (
        said(box_run("import os, time; os.close(0); time.sleep(0.2); print('done')", stdin=b"i" * (8 * MIB))) == "done"
    )


def test_input_and_output_floods_at_once_do_not_block_each_other(box_run: Run) -> None:
    program = """
import os
for _ in range(64):
    os.write(1, b"o" * 65536)
total = 0
while chunk := os.read(0, 65536):
    total += len(chunk)
os.write(2, b"%d" % total)
"""
    result = box_run(program, stdin=b"i" * (4 * MIB), output=32 * MIB)
    assert (len(result.stdout), result.stderr) == (64 * 65536, b"%d" % (4 * MIB))


def test_a_held_stream_does_not_hold_the_run(box_run: Run) -> None:
    start = time.monotonic()
    program = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(50)
print("done", flush=True)
os._exit(0)
"""
    result = box_run(program, timeout=patient(40))
    assert said(result) == "done"
    assert time.monotonic() - start < patient(30)


def test_a_shell_flood_is_cut(box_run: Run) -> None:
    result = box_run("yes", "shell", output=MIB, timeout=patient(30))
    assert (result.outcome.value, len(result.stdout)) == ("output_limit", MIB)


def test_a_node_flood_is_cut(box_run: Run) -> None:
    program = """
const fs = require("fs"), block = Buffer.alloc(65536, "x");
while (true) { try { fs.writeSync(1, block); } catch (e) { if (e.code !== "EAGAIN") throw e; } }
"""
    result = box_run(program, "javascript", output=MIB, timeout=patient(30))
    assert result.outcome.value == "output_limit"
