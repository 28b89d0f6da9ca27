"""Frames, signed URLs and ranges by themselves: whatever goes in, they keep to their rules."""

from __future__ import annotations

import base64
import contextlib
import json
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.api.interpreter.stream_frames import MAX_MESSAGE_BYTES, error, render
from tidebox.api.ranges import parse_range
from tidebox.api.signed_urls import UrlSigner, base_url
from tidebox.broker.runs.log_writer import PIECE_BYTES
from tidebox.broker.storage.log_frames import LogFrame
from tidebox.errors import Conflict, RangeNotSatisfiable, Unauthorized
from tidebox.model.events import OutputEvent

seeds = st.binary(min_size=1, max_size=8) | st.text(min_size=1, max_size=4).map(str.encode)


@given(seeds, st.integers(1, PIECE_BYTES))
def test_a_frame_is_short_enough_and_holds_every_byte(seed: bytes, size: int) -> None:
    data = (seed * (size // len(seed) + 1))[:size]
    text = render(LogFrame(2**53, OutputEvent("stderr", data)))
    assert len(text) <= MAX_MESSAGE_BYTES
    frame = json.loads(text)
    found = frame["data"].encode() if frame["encoding"] == "utf8" else base64.b64decode(frame["data"], validate=True)
    assert (found, frame["type"], frame["seq"]) == (data, "stderr", 2**53)
    if frame["encoding"] == "base64":
        text_is_longer = len(json.dumps(data.decode("utf-8", "replace"), ensure_ascii=False).encode()) > 60_000
        assert text_is_longer or not is_utf8(data)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_an_error_may_quote_what_is_no_text() -> None:
    assert json.loads(error(Conflict("no \ud800"), 3))["data"]["message"] == "no \\ud800"


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


def test_a_signed_url_is_for_one_run() -> None:
    signer = UrlSigner("secret", ttl=60)
    url = signer.url("https://boxes.example/", "run-1", from_seq=7)
    assert url.startswith("wss://boxes.example/api/v1/sandbox/runs/run-1/stream?token=")
    query = query_of(url)
    assert query["from_seq"] == "7"
    signer.verify("run-1", query)
    for run_id, other in (("run-2", signer), ("run-1", UrlSigner("another", ttl=60))):
        with pytest.raises(Unauthorized):
            other.verify(run_id, query)


@given(st.text(max_size=70), st.text(max_size=70), st.text(max_size=20))
def test_nothing_but_a_signature_is_one(token: str, expiry: str, run_id: str) -> None:
    with pytest.raises(Unauthorized):
        UrlSigner("secret", ttl=60).verify(run_id, {"token": token, "exp": expiry})


def test_where_a_client_sees_the_server() -> None:
    scope = {"scheme": "https", "headers": [(b"host", b"boxes.example:8443")], "server": ("127.0.0.1", 1)}
    assert base_url(scope, None) == "https://boxes.example:8443"
    assert base_url(scope, "https://public.example") == "https://public.example"
    assert base_url({**scope, "headers": []}, None) == "https://127.0.0.1:1"


@given(st.integers(0, 50), st.none() | st.integers(0, 60), st.none() | st.integers(0, 60))
def test_a_range_is_what_the_header_means(size: int, first: int | None, last: int | None) -> None:
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    data = bytes(range(size))
    if first is None:
        expected = data[max(size - last, 0) :] if last else b""
    else:
        expected = data[first:] if last is None else data[first : last + 1]
    if not expected:
        with pytest.raises(RangeNotSatisfiable):
            parse_range(header, size)
        return
    found = parse_range(header, size)
    assert found is not None
    assert data[found.start : found.end] == expected
    assert found.length == len(expected)
    assert found.content_range(size) == f"bytes {found.start}-{found.end - 1}/{size}"


@given(st.text(max_size=30))
def test_any_header_is_a_range_or_none(text: str) -> None:
    for header in (text, f"bytes={text}"):
        with contextlib.suppress(RangeNotSatisfiable):
            found = parse_range(header, 10)
            assert found is None or 0 <= found.start < found.end <= 10
