"""docs/fathom.md says what is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer
from tests.api.fathom.client import CODES, STATUSES
from tidebox.api.fathom import requests
from tidebox.api.fathom.execute_order import BOUNDS, DEFAULT_CPU_SHARES, DEFAULT_OUTPUT_BYTES
from tidebox.model.languages import ALWAYS
from tidebox.model.limits import KIB, MIB

PAGE = (Path(__file__).parents[3] / "docs" / "fathom.md").read_text()
ROWS = {cells[0]: cells for line in PAGE.splitlines() if (cells := [cell.strip() for cell in line.split("|")[1:-1]])}


def test_the_example_runs(running_server: RunningServer) -> None:
    example = PAGE.partition("```python\n")[2].partition("```")[0]
    environment = {
        "PATH": os.environ["PATH"],
        "SANDBOX_API_KEY": running_server.key,
        "FATHOM_URL": running_server.ws_url,
    }
    command = [sys.executable, "-W", "error", "-c", example]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    words = [word for word in done.stdout.split() if word != "stdout"]
    assert words == ["ack", "status", "running", "hello", "world", "status", "completed", "result", "0"]


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_the_page_has_the_range_of_each_limit(name: str) -> None:
    numbers = [int(number.replace(" ", "")) for number in re.findall(r"\d[\d ]*\d|\d", ROWS[f"`limits.{name}`"][3])]
    assert numbers[:2] == [BOUNDS[name].low, BOUNDS[name].high]


def test_the_page_has_the_defaults() -> None:
    assert ROWS["`limits.cpu_shares`"][3].endswith(f"default {DEFAULT_CPU_SHARES}")
    assert ROWS["`limits.max_output_bytes`"][3].replace(" ", "").endswith(f"default{DEFAULT_OUTPUT_BYTES}")


def test_the_page_has_the_maximum_sizes() -> None:
    assert f"1 to {requests.MAX_ID_BYTES} bytes" in ROWS["`id`"][3]
    assert f"up to {requests.MAX_CODE_BYTES // MIB} MiB" in ROWS["`code`"][3]
    assert f"up to {requests.MAX_STDIN_BYTES // MIB} MiB" in ROWS["`stdin`"][3]
    env = ROWS["`env`"][3]
    assert f"up to {requests.MAX_ENV_VARIABLES} variables" in env
    assert f"names up to {requests.MAX_ENV_NAME_BYTES} bytes" in env
    assert f"values up to {requests.MAX_ENV_VALUE_BYTES // KIB} KiB" in env
    assert f"{requests.MAX_ENV_BYTES // KIB} KiB together" in env


def test_every_word_of_the_protocol_is_explained() -> None:
    for word in (*CODES, *STATUSES, *ALWAYS, "ack", "status", "stdout", "stderr", "result", "error", "pong", "ping"):
        assert re.search(rf"`[^`]*\b{word}\b[^`]*`", PAGE), word
