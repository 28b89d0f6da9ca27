"""The list of tools as a model reads it: names, descriptions and input schemas.

Big clients drop a server whose names have dots in them, or whose schemas have ``oneOf`` or the like at their top; and
every character of the list is paid for with each request to a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidebox.mcp import arguments

ALWAYS_KNOWN = ("python", "javascript", "shell")
DOTTED_RUN = "sandbox.run"
"""The name that the interpreter service's document gives ``sandbox_run``; it is always accepted."""

INSTRUCTIONS = (
    "Runs code in isolated sandboxes. Use run_code for a snippet; use environment_acquire and the other environment "
    "tools when files must stay between steps. Programs have no network. Nothing of the user's machine is visible."
)

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool."""

    name: str
    title: str
    description: str
    properties: Mapping[str, Schema]
    required: Sequence[str]
    arguments: type[msgspec.Struct]
    read_only: bool = False

    @property
    def schema(self) -> Schema:
        """The input schema."""
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _texts(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


_FILES: Schema = {
    "type": "array",
    "description": "Files to put into /workspace first.",
    "items": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "content": _text("As text."),
            "content_b64": _text("Or as base64."),
        },
        "required": ["path"],
    },
}
_TIMEOUT: Schema = {"type": "number", "description": "Seconds it may run. Default 60."}
_ALLOW_HOSTS = _texts('Hosts it may reach, within what the server allows: "example.com", "*.example.com".')
_SESSION = _text("From environment_acquire.")
_PATH = _text("Absolute, or below /workspace.")


def tools(languages: Sequence[str] = ALWAYS_KNOWN) -> list[Tool]:
    """Every tool, on a server that knows these languages."""
    known = ", ".join(languages)
    return [
        Tool(
            name="run_code",
            title="Run code",
            description=(
                f"Run a program in a fresh isolated sandbox and get its output. Languages: {known}. It starts in an "
                "empty /workspace, keeps nothing for the next call, and reaches no network but allow_hosts. Print what "
                "you want to see; files that it writes to /workspace come back as artifacts, and pictures (PNG, JPEG, "
                "GIF, WebP) as images."
            ),
            properties={
                "code": _text("The program."),
                "language": {"type": "string", "description": f"{known}. Default python."},
                "packages": _texts("Packages to install for it, such as numpy or numpy==2.1."),
                "allow_hosts": _ALLOW_HOSTS,
                "files": _FILES,
                "timeout_sec": _TIMEOUT,
            },
            required=["code"],
            arguments=arguments.RunCode,
        ),
        Tool(
            name="sandbox_run",
            title="Run a command",
            description=(
                "Run a command, without a shell, in an image or in an existing session of the interpreter service. "
                "Give either base_image or session_id. For snippets run_code is simpler."
            ),
            properties={
                "command": _texts('Program and arguments: ["sh", "-c", "ls | wc -l"].'),
                "base_image": _text('Image of a fresh workspace. "host" is always there.'),
                "session_id": _text("Or a session, whose files the command sees. Not one of environment_acquire."),
                "runtime": {"type": "string", "enum": ["native", "docker", "gvisor", "firecracker", "qemu"]},
                "files": _FILES,
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "allow_hosts": _ALLOW_HOSTS,
                "timeout_sec": _TIMEOUT,
                "capture_patterns": _texts('Files to keep as artifacts, such as "out/**" or "*.csv".'),
            },
            required=["command"],
            arguments=arguments.SandboxRun,
        ),
        Tool(
            name="environment_acquire",
            title="Get a sandbox",
            description=(
                "Get a sandbox that lives on between calls, with its files and installed tools. The same thread_id "
                "gives the same sandbox. Use its session_id in the other environment tools; release it at the end."
            ),
            properties={
                "thread_id": _text("Any name you choose for this piece of work."),
                "mode": {
                    "type": "string",
                    "enum": ["ensure", "get"],
                    "description": "ensure (default) makes it if there is none.",
                },
            },
            required=["thread_id"],
            arguments=arguments.Acquire,
        ),
        Tool(
            name="environment_exec",
            title="Run in a sandbox",
            description=(
                "Run a command in a sandbox and get its output. A string is a shell line, a list is run as it is. "
                "Starts in /workspace; files stay, processes in the background too."
            ),
            properties={
                "session_id": _SESSION,
                "command": {
                    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                    "description": "Shell line, or program and arguments.",
                },
                "cwd": _text("Directory to run in."),
                "timeout_sec": _TIMEOUT,
            },
            required=["session_id", "command"],
            arguments=arguments.EnvironmentExec,
        ),
        Tool(
            name="environment_read_file",
            title="Read a file",
            description="Read a file of a sandbox. What is not text comes as content_b64, pictures as images.",
            properties={"session_id": _SESSION, "path": _PATH},
            required=["session_id", "path"],
            arguments=arguments.ReadFile,
            read_only=True,
        ),
        Tool(
            name="environment_write_file",
            title="Write a file",
            description="Write a file in a sandbox, as a whole. Missing directories are made.",
            properties={
                "session_id": _SESSION,
                "path": _PATH,
                "content": _text("Text to write."),
                "content_b64": _text("Or bytes, as base64."),
            },
            required=["session_id", "path"],
            arguments=arguments.WriteFile,
        ),
        Tool(
            name="environment_list_files",
            title="List files",
            description="List a directory of a sandbox.",
            properties={"session_id": _SESSION, "path": _text("Default /workspace.")},
            required=["session_id"],
            arguments=arguments.ListFiles,
            read_only=True,
        ),
        Tool(
            name="environment_heartbeat",
            title="Keep a sandbox",
            description="Say that a sandbox is still needed, so that it is kept although nothing is done in it.",
            properties={"session_id": _SESSION},
            required=["session_id"],
            arguments=arguments.OfSession,
        ),
        Tool(
            name="environment_refresh",
            title="Renew access",
            description="Renew access to a sandbox. The other tools do so themselves; rarely needed.",
            properties={"session_id": _SESSION},
            required=["session_id"],
            arguments=arguments.OfSession,
        ),
        Tool(
            name="environment_release",
            title="End a sandbox",
            description="End a sandbox with all files and processes in it.",
            properties={"session_id": _SESSION},
            required=["session_id"],
            arguments=arguments.OfSession,
        ),
    ]


def dotted(tool: Tool) -> Schema:
    """The schema of ``sandbox.run`` as the interpreter service's document has it: with its rule."""
    rule = [{"required": ["session_id", "command"]}, {"required": ["base_image", "command"]}]
    return {**tool.schema, "oneOf": rule}
