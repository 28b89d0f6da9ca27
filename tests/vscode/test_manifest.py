"""The extension's manifest, compared with the language server and the extension's sources. Needs no Node."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

import tidebox
from tests.vscode.editor import EXTENSION
from tidebox.lsp.arguments import Defaults, RunArguments
from tidebox.lsp.server import COMMANDS, PREFIXES

MANIFEST: dict[str, Any] = json.loads((EXTENSION / "package.json").read_text())
CONTRIBUTED: dict[str, Any] = MANIFEST["contributes"]
TITLES = {
    f"{command['category']}: {command['title']}" if "category" in command else command["title"]: command["command"]
    for command in CONTRIBUTED["commands"]
}


def source(name: str) -> str:
    return (EXTENSION / "src" / name).read_text()


def fields(interface: str) -> set[str]:
    """The keys of an interface of src/protocol.ts."""
    found = re.search(rf"^export interface {interface} \{{\n(.*?)^\}}", source("protocol.ts"), re.DOTALL | re.MULTILINE)
    assert found is not None, interface
    return set(re.findall(r"^  (\w+)\??:", found[1], re.MULTILINE))


def test_the_version_is_that_of_tidebox() -> None:
    assert MANIFEST["version"] == tidebox.__version__


@pytest.mark.parametrize(
    ("title", "command"),
    [("Run in Sandbox", "run"), ("Sandbox: Configure", "configure"), ("Sandbox: Open Artifacts", "openArtifacts")],
)
def test_the_palette_has_the_commands_of_the_server(title: str, command: str) -> None:
    assert command in COMMANDS
    assert TITLES[title] == PREFIXES[0] + command


def test_every_command_is_registered() -> None:
    constants = dict(re.findall(r'^export const (\w+) = "(tldw\.sandbox\.\w+)";', source("protocol.ts"), re.MULTILINE))
    registered = set(re.findall(r"register\(\s*`\$\{SECTION\}\.(\w+)`", source("extension.ts")))
    named = set(re.findall(r"register\(\s*([A-Z_]+),", source("extension.ts")))
    found = {f"tldw.sandbox.{name}" for name in registered} | {constants[name] for name in named}
    assert found == set(TITLES.values())


def test_only_contributed_commands_are_in_menus() -> None:
    entries = [entry["command"] for menu in CONTRIBUTED["menus"].values() for entry in menu]
    assert set(entries) <= set(TITLES.values())
    assert any(entry["command"] == "tldw.sandbox.run" for entry in CONTRIBUTED["menus"]["editor/title"])


def test_the_settings_are_those_that_are_read() -> None:
    names = {name.removeprefix("tldw.sandbox.") for name in CONTRIBUTED["configuration"]["properties"]}
    assert {"command", "serverUrl", "apiKey", "runtime", "image", "packages", "limits"} <= names
    assert set(re.findall(r'\.get(?:<[^(]*>)?\("(\w+)"', source("settings.ts"))) == names


def test_what_is_sent_is_what_the_server_takes() -> None:
    """It refuses a key that it does not know."""
    assert fields("RunArguments") <= {field.name for field in msgspec.structs.fields(RunArguments)}
    assert fields("Defaults") <= {field.name for field in msgspec.structs.fields(Defaults)}


def test_a_workspace_that_is_not_trusted_chooses_no_program_no_server_and_no_key() -> None:
    untrusted = MANIFEST["capabilities"]["untrustedWorkspaces"]
    assert untrusted["supported"] == "limited"
    assert set(untrusted["restrictedConfigurations"]) == {
        f"tldw.sandbox.{name}" for name in ("command", "serverUrl", "apiKey")
    }


def test_the_walkthrough_has_its_pages() -> None:
    [walkthrough] = CONTRIBUTED["walkthroughs"]
    for step in walkthrough["steps"]:
        assert (EXTENSION / step["media"]["markdown"]).is_file()
    named = re.findall(r"\(command:([\w.]+)\)", json.dumps(walkthrough))
    assert {name for name in named if name.startswith("tldw.")} <= set(TITLES.values())
