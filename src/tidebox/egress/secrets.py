"""The operator's secrets: a file of JSON, readable by its owner alone, whose values only the egress process knows.

    {"API_KEY": {"value": "…", "hosts": ["api.example.com"], "users": ["alice"]},
     "BUCKET": {"aws": {"access_key_id": "…", "secret_access_key": "…"}, "hosts": ["*.amazonaws.com"]}}

The server has to know what there is, not what it is: ``python -m tidebox.egress.secrets`` reads the file for it, in a
process of its own, and tells everything but the values.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidebox.errors import InvalidRequest
from tidebox.model.injection import Secrets, secret_info

SETTING = "SANDBOX_EGRESS_SECRETS"
_LARGEST = 1 << 20
_MOST = 1000
_LONGEST_VALUE = 16 * 1024
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """Keys that requests to AWS are signed with."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Value:
    """A secret, in the one process that has it."""

    text: str = field(default="", repr=False)
    aws: AwsKeys | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()
    """Hosts that it is for, as the file says now; rules agreed upon before do not widen that."""


def open_file(path: Path) -> int:
    """A descriptor of the file; raises ``InvalidRequest`` where others can read it, or nobody can."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _wrong(f"{path} cannot be read: {error.strerror}") from None
    found = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(found.st_mode):
        problem = f"{path} is not a file"
    elif found.st_mode & 0o077:
        problem = f"{path} can be used by others than its owner: give it the mode 0600"
    if problem is not None:
        os.close(descriptor)
        raise _wrong(problem)
    return descriptor


def describe(path: Path) -> Secrets:
    """List the secrets without their values, which stay in the process that reads them."""
    descriptor = open_file(path)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "tidebox.egress.secrets", str(descriptor)],
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _wrong(f"{path} could not be read in {_SECONDS:g} s") from None
    finally:
        os.close(descriptor)
    try:
        told = json.loads(done.stdout)
    except ValueError:
        raise _wrong(f"{path} could not be read") from None
    if "problem" in told:
        raise _wrong(f"{path}: {told['problem']}")
    return Secrets({name: secret_info(name, entry, SETTING) for name, entry in told["secrets"].items()})


def read(descriptor: int) -> dict[str, Value]:
    """The secrets in a file; raises ``InvalidRequest``, whose text has nothing of the values."""
    return {name: _value(name, entry) for name, entry in _entries(descriptor).items()}


def _entries(descriptor: int) -> dict[str, dict[str, Any]]:
    with open(descriptor, "rb", closefd=False) as file:
        data = file.read(_LARGEST + 1)
    try:
        found = json.loads(data) if len(data) <= _LARGEST else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or len(found) > _MOST:
        raise _wrong(f"give a JSON object of at most {_MOST} secrets and {_LARGEST} bytes")
    for name, entry in found.items():
        _value(name, entry)
    return found


def _value(name: str, entry: dict[str, Any]) -> Value:
    hosts = secret_info(name, entry, SETTING).hosts
    if "value" in entry:
        return Value(_checked(entry["value"], f"{name}.value"), hosts=hosts)
    keys = entry["aws"]
    if not isinstance(keys, dict) or not {"access_key_id", "secret_access_key"} <= keys.keys():
        raise _wrong(f"{name}.aws: give access_key_id and secret_access_key")
    if not keys.keys() <= {"access_key_id", "secret_access_key", "session_token"}:
        raise _wrong(f"{name}.aws: there is only access_key_id, secret_access_key and session_token")
    checked = {key: _checked(text, f"{name}.aws.{key}") for key, text in keys.items()}
    return Value(aws=AwsKeys(**checked), hosts=hosts)


def _checked(text: object, where: str) -> str:
    """A text that can be in a header as it is."""
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_VALUE:
        raise _wrong(f"{where}: give a text of at most {_LONGEST_VALUE} characters")
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise _wrong(f"{where}: give printable ASCII without white space around it")
    return text


def _wrong(problem: str) -> InvalidRequest:
    return InvalidRequest(f"{SETTING}: {problem}", field=SETTING)


def _tell(descriptor: int) -> None:
    try:
        entries = _entries(descriptor)
    except InvalidRequest as error:
        told: dict[str, Any] = {"problem": error.message.removeprefix(f"{SETTING}: ")}
    else:
        told = {"secrets": {name: _without_value(entry) for name, entry in entries.items()}}
    sys.stdout.write(json.dumps(told))


def _without_value(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: None if key in ("value", "aws") else value for key, value in entry.items()}


if __name__ == "__main__":
    _tell(int(sys.argv[1]))
