"""The list of tools: as big clients demand it, and short."""

from __future__ import annotations

import json
import re

import pytest

from tidebox.mcp import catalog
from tidebox.model.languages import BUILT_IN

TOOLS = catalog.tools(sorted(language.name for language in BUILT_IN))
# Claude Desktop and Codex refuse the whole list for one name beside it.
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
COMBINING = {"oneOf", "anyOf", "allOf", "not", "if", "enum"}


def test_the_tools_are_those_promised_and_no_more() -> None:
    assert [tool.name for tool in TOOLS] == [
        "run_code",
        "sandbox_run",
        "environment_acquire",
        "environment_exec",
        "environment_read_file",
        "environment_write_file",
        "environment_list_files",
        "environment_heartbeat",
        "environment_refresh",
        "environment_release",
    ]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_names_and_schemas_are_what_big_clients_take(tool: catalog.Tool) -> None:
    schema = tool.schema
    assert NAME.fullmatch(tool.name)
    assert schema["type"] == "object"
    assert not COMBINING & schema.keys()
    assert set(tool.required) <= schema["properties"].keys()
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in schema["properties"])


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_what_a_schema_names_is_what_the_tool_takes(tool: catalog.Tool) -> None:
    assert set(tool.schema["properties"]) == set(tool.arguments.__struct_fields__)
    needed = [
        name
        for name, value in zip(
            tool.arguments.__struct_fields__[::-1], tool.arguments.__struct_defaults__[::-1], strict=False
        )
        if repr(value) == "NODEFAULT"
    ]
    assert set(needed) <= set(tool.required)


def test_the_list_is_short() -> None:
    size = sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.schema)) for tool in TOOLS)
    assert size <= 8000, size


def test_the_document_s_own_name_has_the_document_s_own_rule() -> None:
    tool = next(tool for tool in TOOLS if tool.name == "sandbox_run")
    assert catalog.DOTTED_RUN == "sandbox.run"
    assert catalog.dotted(tool)["oneOf"] == [
        {"required": ["session_id", "command"]},
        {"required": ["base_image", "command"]},
    ]
