"""Cutting a byte stream into frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.wire.errors import FrameError, FrameTooLarge, FrameTooShort, FrameTruncated
from tidebox.wire.frames import MAX_FRAME_SIZE, Frame, FrameReader, encode_frame, frame_header

frames = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=300))


def receive_in_pieces(reader: FrameReader, stream: bytes, sizes: list[int]) -> list[Frame]:
    """Like a socket would: each receive brings at most what the buffer takes."""
    got = []
    position = turn = 0
    while position < len(stream):
        space = reader.buffer()
        assert len(space) > 0
        piece = stream[position : position + min(sizes[turn % len(sizes)], len(space))]
        space[: len(piece)] = piece
        reader.received(len(piece))
        position += len(piece)
        turn += 1
        while (frame := reader.next_frame()) is not None:
            got.append(frame)
    return got


@given(st.lists(frames, max_size=20), st.lists(st.integers(1, 700), min_size=1), st.integers(64, 512))
def test_any_splitting_gives_the_same_frames(
    sent: list[tuple[int, int, bytes]], sizes: list[int], receive_size: int
) -> None:
    stream = b"".join(encode_frame(*frame) for frame in sent)
    reader = FrameReader(receive_size)
    got = receive_in_pieces(reader, stream, sizes)
    assert [(frame.id, frame.flags, bytes(frame.body)) for frame in got] == sent
    assert b"".join(bytes(frame.raw) for frame in got) == stream
    reader.eof()


@given(st.lists(frames, max_size=5), frames, st.data())
def test_truncation_is_seen_at_the_end(
    sent: list[tuple[int, int, bytes]], last: tuple[int, int, bytes], data: st.DataObject
) -> None:
    tail = encode_frame(*last)
    cut = data.draw(st.integers(1, len(tail) - 1))
    reader = FrameReader(128)
    got = reader.feed(b"".join(encode_frame(*frame) for frame in sent) + tail[:cut])
    assert len(got) == len(sent)
    with pytest.raises(FrameTruncated):
        reader.eof()


@given(st.binary(max_size=2000), st.lists(st.integers(1, 100), min_size=1))
def test_garbage_gives_frames_or_a_frame_error(garbage: bytes, sizes: list[int]) -> None:
    try:
        receive_in_pieces(FrameReader(256), garbage, sizes)
    except FrameError:
        pass


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    largest = encode_frame(1, 0, bytes(MAX_FRAME_SIZE - 5))
    [frame] = FrameReader().feed(largest)
    assert frame.raw == largest
    with pytest.raises(FrameTooLarge):
        frame_header(1, 0, MAX_FRAME_SIZE - 4)
    with pytest.raises(FrameTooLarge):
        FrameReader().feed((MAX_FRAME_SIZE + 1).to_bytes(4, "big"))


@pytest.mark.parametrize("length", range(5))
def test_too_short_is_an_error(length: int) -> None:
    with pytest.raises(FrameTooShort):
        FrameReader().feed(length.to_bytes(4, "big") + bytes(5))


def test_frames_before_a_broken_one_are_delivered() -> None:
    reader = FrameReader()
    stream = encode_frame(1, 0, b"good") + bytes(9)
    reader.buffer()[: len(stream)] = stream
    reader.received(len(stream))
    frame = reader.next_frame()
    assert frame is not None
    assert bytes(frame.body) == b"good"
    for _ in range(2):
        with pytest.raises(FrameTooShort):
            reader.next_frame()
