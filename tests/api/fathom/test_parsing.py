"""Whatever a client sends becomes a request or a refusal that names the field; the rules and their edges."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.api.fathom.execute_order import BOUNDS, make_order
from tidebox.api.fathom.requests import (
    MAX_CODE_BYTES,
    MAX_ENV_BYTES,
    MAX_ENV_NAME_BYTES,
    MAX_ENV_VALUE_BYTES,
    MAX_ENV_VARIABLES,
    MAX_ID_BYTES,
    MAX_STDIN_BYTES,
    MessageRefused,
    parse,
)
from tidebox.model.execution_request import ExecutionRequest
from tidebox.model.languages import ALWAYS
from tidebox.model.limits import MIB
from tidebox.protocols.fathom import Cancel, Execute, Ping

MISSING = object()


def execute(**changes: Any) -> dict[str, Any]:
    """A good execute message with some fields changed; MISSING takes one away, a dot goes into ``limits``."""
    message: dict[str, Any] = {
        "v": 1,
        "type": "execute",
        "id": "a",
        "ts": "2025-12-27T11:30:00.000Z",
        "language": "python",
        "code": "print(1)",
        "limits": {"timeout_ms": 1000, "memory_mb": 64},
    }
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = message
        for parent in parents:
            place = place[parent]
        if value is MISSING:
            del place[name]
        else:
            place[name] = value
    return message


def parsed_whole(text: str) -> ExecutionRequest | None:
    request = parse(text)
    return make_order(request, dict.fromkeys(ALWAYS, "host")) if isinstance(request, Execute) else None


def order_of(text: str) -> ExecutionRequest:
    order = parsed_whole(text)
    assert order is not None
    return order


def answer(text: str) -> str:
    try:
        parsed_whole(text)
    except MessageRefused as refused:
        return refused.message
    return "taken"


def refusal(text: str) -> MessageRefused:
    with pytest.raises(MessageRefused) as caught:
        order_of(text)
    return caught.value


def test_each_type_is_parsed() -> None:
    assert isinstance(parse(json.dumps(execute())), Execute)
    assert parse('{"v":1,"type":"cancel","id":"a","ts":"x"}') == Cancel(v=1, id="a", ts="x")
    assert parse('{"v":1,"type":"ping"}') == Ping(v=1)


def test_unknown_fields_are_ignored() -> None:
    order = order_of(json.dumps(execute(extra={"deep": [1, {}]}, limits__disk_mb=5)))
    assert order.launch.program.source == b"print(1)"


def test_what_is_left_out_has_the_documents_defaults() -> None:
    order = order_of(json.dumps(execute()))
    limits = order.spec.limits
    assert (limits.timeout, limits.memory, limits.cpu_shares, limits.output) == (1.0, 64 * MIB, 512, 1_048_576)
    assert order.stdin is None
    assert order.launch.program.env == ()


def test_null_is_the_same_as_left_out() -> None:
    changes = {"stdin": None, "env": None, "ts": None, "limits__cpu_shares": None, "limits__max_output_bytes": None}
    assert order_of(json.dumps(execute(**changes))) == order_of(json.dumps(execute()))


def test_what_is_given_is_taken() -> None:
    changes = {"stdin": "é", "env": {"A": "1", "B": ""}, "limits__cpu_shares": 2, "limits__max_output_bytes": 0}
    order = order_of(json.dumps(execute(**changes)))
    assert order.stdin == "é".encode()
    assert order.launch.program.env == (("A", "1"), ("B", ""))
    assert (order.spec.limits.cpu_shares, order.spec.limits.output) == (2, 0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": MISSING}, "id: missing"),
        ({"id": 5}, "id: "),
        ({"id": None}, "id: "),
        ({"id": ""}, "id: empty"),
        ({"id": "é" * (MAX_ID_BYTES // 2) + "x"}, "id: longer"),
        ({"ts": 5}, "ts: "),
        ({"language": MISSING}, "language: missing"),
        ({"language": 5}, "language: "),
        ({"code": MISSING}, "code: missing"),
        ({"code": None}, "code: "),
        ({"code": ["x"]}, "code: "),
        ({"code": "é" * (MAX_CODE_BYTES // 2) + "x"}, "code: longer"),
        ({"stdin": 5}, "stdin: "),
        ({"stdin": "x" * (MAX_STDIN_BYTES + 1)}, "stdin: longer"),
        ({"limits": MISSING}, "limits: missing"),
        ({"limits": []}, "limits: "),
        ({"limits__timeout_ms": MISSING}, "limits.timeout_ms: missing"),
        ({"limits__timeout_ms": "1000"}, "limits.timeout_ms: "),
        ({"limits__timeout_ms": 1.5}, "limits.timeout_ms: "),
        ({"limits__timeout_ms": True}, "limits.timeout_ms: "),
        ({"limits__memory_mb": MISSING}, "limits.memory_mb: missing"),
        ({"limits__memory_mb": {}}, "limits.memory_mb: "),
        ({"limits__cpu_shares": "many"}, "limits.cpu_shares: "),
        ({"limits__max_output_bytes": -1}, "limits.max_output_bytes: must be between 0 and"),
        ({"limits__max_output_bytes": 10**40}, "limits.max_output_bytes: "),
        ({"env": []}, "env: "),
        ({"env": {"A": 1}}, "env: "),
        ({"env": {"A": None}}, "env: "),
        ({"env": {"": "x"}}, "env: "),
        ({"env": {"A=B": "x"}}, "env: "),
        ({"env": {"A\0": "x"}}, "env: "),
        ({"env": {"A": "\0"}}, "env: "),
        ({"env": {"N" * (MAX_ENV_NAME_BYTES + 1): ""}}, "env: "),
        ({"env": {"A": "x" * (MAX_ENV_VALUE_BYTES + 1)}}, "env: "),
        ({"env": {f"A{number}": "" for number in range(MAX_ENV_VARIABLES + 1)}}, "env: "),
        ({"env": {f"A{number}": "x" * MAX_ENV_VALUE_BYTES for number in range(5)}}, "env: "),
        ({"env": {"A": "\U0001f600" * (2 * MAX_ENV_BYTES)}}, "env: longer"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], field: str) -> None:
    refused = refusal(json.dumps(execute(**change)))
    assert refused.code == "INVALID_REQUEST"
    assert refused.message.startswith(field)
    assert refused.id == (None if "id" in change else "a")
    assert len(refused.message) < 300


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_a_limit_may_be_what_its_range_says(name: str) -> None:
    bounds = BOUNDS[name]
    for value in (bounds.low, bounds.high):
        order_of(json.dumps(execute(**{f"limits__{name}": value})))
    for value in (bounds.low - 1, bounds.high + 1):
        refused = refusal(json.dumps(execute(**{f"limits__{name}": value})))
        assert refused.message.startswith(f"limits.{name}: must be between {bounds.low} and {bounds.high}")


@pytest.mark.parametrize("language", ["rust", "", "Python", "py", "x" * 10_000])
def test_an_unknown_language_has_a_code_of_its_own(language: str) -> None:
    refused = refusal(json.dumps(execute(language=language)))
    assert refused.code == "LANGUAGE_NOT_SUPPORTED"
    assert refused.id == "a"
    assert len(refused.message) < 300


def test_a_language_without_an_interpreter_is_not_supported() -> None:
    request = parse(json.dumps(execute(language="elixir")))
    assert isinstance(request, Execute)
    with pytest.raises(MessageRefused, match="available: python, shell") as caught:
        make_order(request, {"python": "host", "shell": "host"})
    assert caught.value.code == "LANGUAGE_NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("text", "message", "id"),
    [
        ("", "the message is not JSON", None),
        ("{", "the message is not JSON", None),
        ("nonsense", "the message is not JSON", None),
        ('{"v":1,"type":"ping"} {}', "the message is not JSON", None),
        ('{"v":NaN}', "the message is not JSON", None),
        ('{"v":1,"type":"cancel","id":"\\ud800"}', "the message is not JSON", None),
        ('{"v":1,"type":"cancel","id":"\ud800"}', "the message is not JSON", None),
        ("null", "the message is not a JSON object", None),
        ('[{"v":1,"type":"ping"}]', "the message is not a JSON object", None),
        ('"ping"', "the message is not a JSON object", None),
        ("{}", "v: missing", None),
        ('{"type":"cancel","id":"a"}', "v: missing", "a"),
        ('{"v":"1","type":"ping"}', "v: ", None),
        ('{"v":1.0,"type":"ping"}', "v: ", None),
        ('{"v":true,"type":"ping"}', "v: ", None),
        ('{"v":2,"type":"ping"}', "v: version 2 is not supported; supported is 1", None),
        ('{"v":2,"type":"cancel","id":"a"}', "v: version 2 is not supported", "a"),
        ('{"v":0,"type":"something new","id":"a","code":5}', "v: version 0 is not supported", "a"),
        ('{"v":1}', "type: missing", None),
        ('{"v":1,"id":"a"}', "type: missing", "a"),
        ('{"v":1,"type":7,"id":"a"}', "type: ", "a"),
        ('{"v":1,"type":"ack","id":"a"}', "type: 'ack' is none of execute, cancel, ping", "a"),
        ('{"v":1,"type":"cancel"}', "id: missing", None),
        ('{"v":1,"type":"cancel","id":{}}', "id: ", None),
    ],
)
def test_what_is_no_request_is_refused(text: str, message: str, id: str | None) -> None:
    with pytest.raises(MessageRefused) as caught:
        parse(text)
    assert caught.value.code == "INVALID_REQUEST"
    assert caught.value.message.startswith(message)
    assert caught.value.id == id


@pytest.mark.parametrize(
    "text",
    [
        "[" * 4_000_000,
        '{"a":' * 1_500_000,
        '{"v":1,"type":"ping","x":' + "[" * 2_000_000 + "]" * 2_000_000 + "}",
        '{"v":1,"type":"execute","id":"a","limits":' + '{"x":' * 1_000_000,
        '{"v":1,"type":"ping","x":' + "9" * 8_000_000 + "}",
        '{"v":' + "9" * 8_000_000 + ',"type":"ping"}',
        '{"v":1,"type":"execute","id":"a","language":"python","code":"","limits":{"timeout_ms":1000,"memory_mb":64},'
        '"env":{' + ",".join(f'"{number}":""' for number in range(700_000)) + "}}",
    ],
    ids=["arrays", "objects", "nested extra", "nested limits", "number", "version", "variables"],
)
def test_a_bomb_neither_crashes_nor_stalls(text: str) -> None:
    started = time.process_time()
    assert len(answer(text)) < 300
    assert time.process_time() - started < 1


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["v", "type", "id", "ts", "language", "code", "stdin", "env", "limits", "other"])


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    assert answer(text)


@given(st.dictionaries(FIELDS, VALUES))
def test_any_values_in_any_fields_are_parsed_or_refused(changes: dict[str, Any]) -> None:
    text = json.dumps(execute() | changes)
    assert answer(text)


@given(st.data())
def test_any_damage_is_parsed_or_refused(data: st.DataObject) -> None:
    text = json.dumps(execute(env={"A": "\u00e9"}, stdin="x"), ensure_ascii=data.draw(st.booleans()))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 10)))
        text = text[:start] + data.draw(st.text(max_size=5)) + text[end:]
    assert answer(text)
