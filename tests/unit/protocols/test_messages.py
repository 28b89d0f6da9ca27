"""Messages of the protocols: what one side writes the other reads, and whatever else comes is one error of ours."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.unit.protocols.message_strategies import JSON, instances, json_like, structs
from tidebox.api.access import answers, requests
from tidebox.errors import InvalidRequest, ServerProtocolError
from tidebox.protocols import access, codec, fathom
from tidebox.protocols.dataplane import frames, routes
from tidebox.sdk.fathom_messages import decode as decode_fathom

REQUESTS: tuple[type[msgspec.Struct], ...] = frames.Request.__args__
FRAMES: tuple[type[msgspec.Struct], ...] = frames.Frame.__args__
OTHERS = [
    kind for module in (frames, routes, access) for kind in structs(module) if kind not in (*REQUESTS, *FRAMES)
] + [codec.ErrorEnvelope]
IN_QUERY: list[type[msgspec.Struct]] = [
    routes.ListRequest,
    routes.WatchRequest,
    routes.PathRequest,
    routes.RemoveRequest,
    routes.MoveRequest,
    routes.PartRequest,
    routes.UploadRequest,
]
TEXTS = JSON.map(msgspec.json.encode) | st.binary(max_size=40)


def read(kind: type[msgspec.Struct], text: bytes) -> Any:
    """What the other side makes of a text."""
    if kind in REQUESTS:
        return frames.decode_request(text.decode())
    return frames.decode_frame(text) if kind in FRAMES else codec.decode(kind, text)


@given(st.sampled_from([*REQUESTS, *FRAMES, *OTHERS]).flatmap(instances))
@settings(max_examples=300)
def test_what_one_side_writes_the_other_reads(message: msgspec.Struct) -> None:
    text = codec.encode(message)
    found = read(type(message), text)
    assert type(found) is type(message)
    assert codec.encode(found) == text


KINDS = st.sampled_from([*REQUESTS, *FRAMES, *OTHERS])


@given(KINDS.flatmap(lambda kind: st.tuples(st.just(kind), json_like(kind).map(msgspec.json.encode) | TEXTS)))
@settings(max_examples=500)
def test_whatever_comes_is_a_message_or_one_error(sent: tuple[type[msgspec.Struct], bytes]) -> None:
    check_hostile(*sent)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"type":' * 100_000, b'"\\ud800"', b"", b"{}", b"null"])
@pytest.mark.parametrize("kind", [frames.Start, frames.Exit, routes.FileListing, access.AccessAnswer])
def test_texts_that_are_made_to_hurt(kind: type[msgspec.Struct], text: bytes) -> None:
    check_hostile(kind, text)


def check_hostile(kind: type[msgspec.Struct], text: bytes) -> None:
    """Whatever is wrong with a text shows as one error, when it is read or when its parts are."""
    with contextlib.suppress(InvalidRequest if kind in REQUESTS else ServerProtocolError):
        try:
            found = read(kind, text)
        except UnicodeDecodeError:
            return  # what a socket has as text is UTF-8
        for method in ("words", "bytes", "size", "number", "output", "modified"):
            if callable(getattr(found, method, None)):
                getattr(found, method)()


@given(json_like(routes.ExecRequest).map(msgspec.json.encode) | TEXTS)
@example(b'{"command":' * 100_000)
@example(b'{"command":[' + b'"",' * 20_000 + b'""]}')
def test_a_program_is_read_or_refused(text: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        assert routes.decode_exec(text).max_output_bytes <= routes.MAX_OUTPUT_BYTES


@given(st.sampled_from(IN_QUERY).flatmap(instances))
def test_a_request_in_a_query(message: msgspec.Struct) -> None:
    assert codec.from_fields(type(message), codec.to_fields(message)) == message


@given(st.sampled_from(IN_QUERY).flatmap(lambda kind: st.tuples(st.just(kind), json_like(kind))))
def test_whatever_is_in_a_query(sent: tuple[type[msgspec.Struct], dict[str, Any]]) -> None:
    with contextlib.suppress(InvalidRequest):
        assert isinstance(codec.from_fields(*sent), sent[0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"path": "null", "upload_id": "null"}, routes.UploadRequest("null", upload_id="null")),
        ({"path": "1", "offset": "12", "complete": "FALSE"}, routes.UploadRequest("1", offset=12, complete=False)),
        ({"path": "p", "complete": ""}, routes.UploadRequest("p")),
        ({"path": "p", "complete": "maybe"}, "complete"),
        ({"path": "p", "offset": "-1"}, "offset"),
        ({"path": "p", "offset": "half"}, "offset"),
        ({"path": "p", "offset": "1e3"}, "offset"),
        ({"path": "p", "offset": "1.0"}, "offset"),
        ({"path": "p", "mode": "644\n"}, "mode"),
        ({"path": "p", "upload_id": "a\n"}, "upload_id"),
        ({"path": "p", "mode": "888"}, "mode"),
        ({"path": "a\0b"}, "path"),
        ({"path": None}, "path"),
        ({}, "path"),
    ],
)
def test_texts_of_a_query(given: dict[str, Any], expected: routes.UploadRequest | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(InvalidRequest) as refused:
            codec.from_fields(routes.UploadRequest, given)
        assert refused.value.details["field"] == expected
    else:
        assert codec.from_fields(routes.UploadRequest, given) == expected


@given(st.binary(max_size=1000))
@example("ä".encode() * 200_000)
@example(bytes(range(256)) * 3000)
def test_input_arrives_as_it_was_sent(data: bytes) -> None:
    found = [frames.decode_request(text.decode()) for text in frames.input_frames(data)]
    assert b"".join(frame.bytes() for frame in found if isinstance(frame, frames.Stdin)) == data


@given(TEXTS)
def test_whatever_a_fathom_server_says(text: bytes) -> None:
    with contextlib.suppress(ServerProtocolError):
        found = decode_fathom(text)
        assert found is None or isinstance(found, fathom.Answer)


@pytest.mark.parametrize("number", [*range(1, 65), None])
def test_signals_by_name(number: int | None) -> None:
    assert frames.signal_number(frames.signal_name(number)) == number


# The models of the REST routes are those of the same messages, as FastAPI needs them.
SAME: list[tuple[type[BaseModel], type[msgspec.Struct]]] = [
    (requests.SessionBody, access.SessionRequest),
    (requests.AcquireBody, access.AcquireRequest),
    (requests.ReleaseBody, access.ReleaseRequest),
    (answers.AccessAnswer, access.AccessAnswer),
    (answers.BindingAnswer, access.BindingAnswer),
    (answers.TokenAnswer, access.TokenAnswer),
    (answers.GrantAnswer, access.GrantAnswer),
]
# What only a configuration has, beside an answer.
NOT_OF_THE_SERVER = {"refresh_url"}
# An answer with a token has the sandbox that the token is for.
NEVER = {"sandbox": {"null"}}


@pytest.mark.parametrize(("model", "struct"), SAME, ids=[struct.__name__ for _, struct in SAME])
def test_the_server_and_its_clients_mean_the_same(model: type[BaseModel], struct: type[msgspec.Struct]) -> None:
    is_request = model.__name__.endswith("Body")
    described = model.model_json_schema(mode="validation" if is_request else "serialization")
    read = msgspec.json.schema(struct)
    there, here = shapes(described, described), shapes(read, read)
    if is_request:
        assert here == there
        required = read["$defs"][struct.__name__].get("required", [])
        assert sorted(described.get("required", [])) == sorted(required)
    for name, kinds in here.items():
        if name in there:
            assert there[name] - NEVER.get(name, set()) <= kinds, name
        else:
            assert name in NOT_OF_THE_SERVER


def shapes(document: dict[str, Any], schema: dict[str, Any], path: str = "") -> dict[str, set[str]]:
    """What may be at each place of a document: types, or the words of an enumeration."""
    found: dict[str, set[str]] = {}
    for option in schema.get("anyOf", [schema]):
        if "$ref" in option:
            option = document["$defs"][option["$ref"].rpartition("/")[2]]
        words = option.get("enum") or ([option["const"]] if "const" in option else None)
        kind = "string" if words else option.get("type", "any")
        found.setdefault(path, set()).add(kind)
        if words and "Capability" not in option.get("title", ""):
            found.setdefault(f"{path}=", set()).update(map(str, words))
        if kind == "array":
            found |= shapes(document, option["items"], f"{path}[]")
        for name, inner in option.get("properties", {}).items():
            for place, kinds in shapes(document, inner, f"{path}.{name}".lstrip(".")).items():
                found.setdefault(place, set()).update(kinds)
    return found
