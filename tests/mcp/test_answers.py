"""Answers: their size, what they keep, and what errors say."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from mcp_types import BlobResourceContents, CallToolResult, ImageContent

from tests.mcp.clients import fields, words
from tidebox.errors import (
    CapabilityDenied,
    Forbidden,
    NotFound,
    Overloaded,
    QuotaExceeded,
    RuntimeUnavailable,
    TideboxError,
)
from tidebox.mcp.resources import contents
from tidebox.mcp.run_tools import WORDS
from tidebox.mcp.tool_results import MAX_ANSWER_BYTES, Tail, answer, explain, fitted, picture_type, refused, show_both
from tidebox.model.run import Reason

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def wire_size(result: CallToolResult) -> int:
    """As much as it can be on a wire: with everything escaped that may be."""
    return len(json.dumps(result.model_dump(mode="json", by_alias=True, exclude_none=True)))


@pytest.mark.parametrize(
    "output",
    [
        b"x" * 3_000_000,
        b"\n" * 3_000_000,
        b'"\\' * 1_500_000,
        b"\x00\x01" * 1_500_000,
        "\N{GRINNING FACE}".encode() * 800_000,
        random.Random(1).randbytes(3_000_000),
    ],
    ids=["letters", "lines", "quotes", "controls", "emoji", "noise"],
)
def test_an_answer_is_at_most_a_mebibyte_and_has_the_end(output: bytes) -> None:
    stdout, stderr = Tail(), Tail()
    for start in range(0, len(output), 65536):
        stdout.add(output[start : start + 65536])
    stderr.add(b"the last words")

    def make(most: int) -> dict[str, Any]:
        shown, cut = show_both(stdout, stderr, most)
        return {**shown, "truncated": cut}

    result = answer(fitted(make))
    assert wire_size(result) <= MAX_ANSWER_BYTES
    found = fields(result)
    kept = found["stdout"].encode() if "stdout" in found else base64.b64decode(found["stdout_b64"])
    assert found["truncated"]
    assert len(kept) > 20_000
    assert output.endswith(kept)
    assert found["stderr"] == "the last words"


def test_output_that_fits_is_whole() -> None:
    stdout, stderr = Tail(), Tail()
    stdout.add("grün\n".encode())
    assert show_both(stdout, stderr, 1000) == ({"stdout": "grün\n", "stderr": ""}, False)


def test_output_that_is_no_text_comes_as_base64() -> None:
    stdout, stderr = Tail(), Tail()
    stdout.add(b"\xff\xfe")
    shown, _ = show_both(stdout, stderr, 1000)
    assert base64.b64decode(shown["stdout_b64"]) == b"\xff\xfe"


def test_a_tail_keeps_the_end_in_bounded_memory() -> None:
    tail = Tail(1000)
    for number in range(100_000):
        tail.add(b"%07d\n" % number)
    assert tail.total == 800_000
    assert tail.last(1000).endswith(b"0099999\n")
    assert len(tail.last(10**9)) < 1100


def test_pictures_are_images_while_there_is_room_and_only_if_they_are_pictures() -> None:
    result = answer({"stdout": ""}, [PNG, b"not a picture", PNG + bytes(MAX_ANSWER_BYTES)])
    images = [block for block in result.content if isinstance(block, ImageContent)]
    assert [(image.mime_type, base64.b64decode(image.data)) for image in images] == [("image/png", PNG)]
    assert wire_size(result) <= MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"<svg/>", None),
        (b"", None),
    ],
)
def test_a_picture_is_known_by_its_beginning(data: bytes, kind: str | None) -> None:
    assert picture_type(data) == kind


def test_what_is_somebody_else_s_and_what_is_not_there_are_told_alike() -> None:
    strange = refused(Forbidden("the session belongs to somebody else"), about="session 'x'")
    missing = refused(NotFound("there is no session x"), about="session 'x'")
    assert strange == missing
    assert words(missing) == "not found: session 'x'"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Overloaded("no room in the queue", retry_after=3), "no room in the queue. Try again in 3 seconds."),
        (QuotaExceeded("100 sandboxes are the most"), "Release what is not needed any more, or wait."),
        (CapabilityDenied("exec was not granted"), "exec was not granted"),
        (RuntimeUnavailable("there is no qemu here"), "there is no qemu here. Call again without runtime;"),
    ],
)
def test_an_error_says_what_to_do_next(error: TideboxError, said: str) -> None:
    assert said in explain(error, about="session 'x'")


@pytest.mark.parametrize("reason", list(Reason))
def test_every_end_of_a_run_is_told_in_words(reason: Reason) -> None:
    assert reason.value in WORDS


def test_a_picture_is_no_text_even_if_its_bytes_would_be() -> None:
    found = contents("tidebox://x", b"GIF89a, all of it letters", picture_type(b"GIF89a"))
    assert isinstance(found, BlobResourceContents)
    assert (found.mime_type, base64.b64decode(found.blob)[:6]) == ("image/gif", b"GIF89a")
    log = contents("tidebox://x", b"a log with \xff in it", "text/plain")
    assert isinstance(log, BlobResourceContents)
    assert log.mime_type == "application/octet-stream"
