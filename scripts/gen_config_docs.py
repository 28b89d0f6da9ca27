"""Writes docs/configuration.md from the settings themselves: run it after changing them."""

from __future__ import annotations

import os
import types
import typing
from pathlib import Path
from typing import Any

import annotated_types
from pydantic.fields import FieldInfo

from tidebox.config import Settings

TARGET = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

HEADER = """\
<!-- Written by scripts/gen_config_docs.py from src/tidebox/config.py. -->
# Configuration

Tidebox is configured by environment variables, read once at the start. Nothing needs to be set.

| variable | type | default | what it does |
|---|---|---|---|
"""


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in typing.get_args(annotation) if part is not types.NoneType)
    known = {bool: "yes or no", int: "whole number", float: "number", str: "text", Path: "path"}
    return known.get(annotation) or str(annotation).replace("|", "\\|")


def _range(field: FieldInfo) -> str:
    words = []
    for bound in field.metadata:
        match bound:
            case annotated_types.Ge(ge=value):
                words.append(f"at least {value}")
            case annotated_types.Gt(gt=value):
                words.append(f"above {value}")
            case annotated_types.Le(le=value):
                words.append(f"at most {value}")
            case annotated_types.Lt(lt=value):
                words.append(f"below {value}")
    return ", ".join(words)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text.replace(str(Path.home()), '~')}`" if text else ""


def render() -> str:
    """The page as it should be."""
    prefix = Settings.model_config.get("env_prefix", "")
    rows = []
    for name, field in Settings.model_fields.items():
        kind = ", ".join(filter(None, (_type(field.annotation), _range(field))))
        rows.append(f"| `{prefix}{name.upper()}` | {kind} | {_default(field)} | {field.description} |\n")
    return HEADER + "".join(rows)


if __name__ == "__main__":
    # The default of the data directory must not be that of whoever runs this.
    os.environ.pop("XDG_DATA_HOME", None)
    TARGET.write_text(render())
