"""Writes docs/configuration.md from the settings themselves: run it after changing them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from tidebox.config import PREFIX, Settings

TARGET = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

HEADER = """\
<!-- Written by scripts/gen_config_docs.py from src/tidebox/config.py. -->
# Configuration

Tidebox is configured by environment variables, read once at the start. Nothing needs to be set.

| variable | type | default | what it does |
|---|---|---|---|
"""

FOOTER = """
Clients of a server, the [command line](cli.md#servers) and the [library](sdk.md#which-server-which-key) alike, read

| variable | what it does |
|---|---|
| `TIDEBOX_URL` | The server. `tidebox.run` runs programs there. |
| `TIDEBOX_API_KEY` | The key for it. |
| `TIDEBOX_PROFILE` | A server that was stored by `tidebox login`, instead of that of the last login. |
| `XDG_CONFIG_HOME` | Where that is stored: `tidebox/profiles.json` below it, by default below `~/.config`. |
| `NO_COLOR` | No colours, on terminals either. |
"""

_TYPES = {
    "bool": "yes or no",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "Path": "path",
    "tuple[str, ...]": "list of texts",
    "tuple[RemoteServer, ...]": "JSON",
    "RequestedEgress": "JSON",
}


def _kind(setting: dataclasses.Field[Any]) -> str:
    words = [_TYPES[str(setting.type).removesuffix(" | None")]]
    for bound, text in (("low", "at least"), ("high", "at most")):
        if setting.metadata[bound] is not None:
            words.append(f"{text} {setting.metadata[bound]}")
    return ", ".join(words)


def _default(setting: dataclasses.Field[Any]) -> str:
    value = getattr(Settings(), setting.name)
    if value is None or value == ():
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text.replace(str(Path.home()), '~')}`"


def render() -> str:
    """The page as it should be."""
    rows = [
        f"| `{PREFIX}{item.name.upper()}` | {_kind(item)} | {_default(item)} | {item.metadata['description']} |\n"
        for item in dataclasses.fields(Settings)
    ]
    return HEADER + "".join(rows) + FOOTER


if __name__ == "__main__":
    # The default of the data directory must not be that of the user who runs this.
    os.environ.pop("XDG_DATA_HOME", None)
    TARGET.write_text(render())
