"""uv and npm work within limits, in turns, and what they say in full is for the operator."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.conftest import Box
from tests.packages.index import Index, running_index
from tidebox.errors import FetchFailed, InvalidPackage, PackageUnresolvable
from tidebox.runtime.packaging import making, node
from tidebox.runtime.packaging.making import Making, Turns
from tidebox.runtime.packaging.tools import PackageTools, Stop, ToolLimits

SH = shutil.which("sh") or "/bin/sh"


def run(directory: Path, command: list[str], limits: ToolLimits, seconds: float = 60) -> None:
    tools = PackageTools({"PATH": os.environ["PATH"]}, limits, directory.with_name("tools.log"))
    tools.run(command, directory, Stop(), purpose="tide, moon", seconds=seconds)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "staging"
    directory.mkdir()
    return directory


def test_processor_time_is_bounded(place: Path) -> None:
    expected = r"sh took more than 1 s of processor time \(SANDBOX_PACKAGE_TOOL_CPU_SEC\) for tide, moon"
    with pytest.raises(InvalidPackage, match=expected):
        run(place, [SH, "-c", "while :; do :; done"], ToolLimits(cpu_seconds=1))


def test_memory_is_bounded(place: Path) -> None:
    program = shutil.which("node")
    assert program is not None
    expected = r"node took more than 256 MiB of memory \(SANDBOX_PACKAGE_TOOL_MEMORY_MB\) for tide, moon"
    code = "const kept = []; for (;;) kept.push(new Array(1e6).fill(1))"
    with pytest.raises(InvalidPackage, match=expected):
        run(place, [program, "-e", code], ToolLimits(memory_bytes=256 << 20))


def test_a_directory_is_bounded_as_a_whole(place: Path) -> None:
    fill = "for i in 1 2 3 4 5 6 7 8; do head -c 512K /dev/zero > $i; done; sleep 60"
    expected = r"sh took more than 2 MiB of the disk \(twice SANDBOX_PACKAGE_MAX_MB\) for tide, moon"
    with pytest.raises(InvalidPackage, match=expected):
        run(place, [SH, "-c", fill], ToolLimits(disk_bytes=2 << 20))


def test_what_was_written_at_the_very_end_counts_too(place: Path) -> None:
    with pytest.raises(InvalidPackage, match="of the disk"):
        run(place, [SH, "-c", "for i in 1 2 3 4; do head -c 512K /dev/zero > $i; done"], ToolLimits(disk_bytes=1 << 20))


def test_time_is_bounded(place: Path) -> None:
    with pytest.raises(FetchFailed, match=r"sh did not end within 0\.5 s for tide, moon"):
        run(place, [SH, "-c", "sleep 60"], ToolLimits(), seconds=0.5)


def test_temporary_files_are_within_the_directory(place: Path) -> None:
    run(place, [SH, "-c", 'echo "$TMPDIR" > where'], ToolLimits())
    assert Path((place / "where").read_text().strip()).parent == place


def test_a_resolver_that_gets_no_memory(box: Box, index: Index) -> None:
    index.add("tide", {"tide.py": ""})
    box.use(index.environment, tool_memory_bytes=4 << 20)
    with pytest.raises(InvalidPackage, match=r"uv took more than 4 MiB of memory .* for tide"):
        box("1", packages=["tide"])


def test_bytes_count_over_all_that_npm_fetches(box: Box, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_AT_ONCE", 1)
    box.use(index.environment, layer_bytes=3 << 20)
    names = [f"large{number}" for number in range(3)]
    for name in names:
        index.add_node(name, {"package/data": os.urandom(1 << 20).hex()})
    with pytest.raises(InvalidPackage, match=r"SANDBOX_PACKAGE_MAX_MB.*large0, large1, large2"):
        box("1", "javascript", packages={"node": names})


def test_what_a_tool_says_is_kept_for_the_operator_alone(box: Box) -> None:
    box.use({"UV_DEFAULT_INDEX": "http://bob:S3CRET@127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"})
    with pytest.raises(PackageUnresolvable) as caught:
        box("1", packages=["operators-own"])
    assert "127.0.0.1" not in caught.value.message
    log = box.images.layers.tools_log
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    last = json.loads(log.read_text().splitlines()[-1])
    assert "127.0.0.1:9" in last["stderr"]
    assert last["exit_code"] != 0


class TestTurns:
    """The order in which users get theirs."""

    def order_of(self, asked: list[str]) -> list[str]:
        async def all_of_them() -> list[str]:
            turns, served = Turns(), []
            begin = asyncio.Event()

            async def work(user: str) -> None:
                if user != "first":
                    await begin.wait()
                async with turns.turn(Making(user)):
                    served.append(user)
                    if user == "first":
                        begin.set()
                        for _ in range(5):
                            await asyncio.sleep(0)

            firsts = [asyncio.ensure_future(work("first")) for _ in range(making.AT_ONCE)]
            await asyncio.gather(*firsts, *(work(user) for user in asked))
            return served[making.AT_ONCE :]

        return asyncio.run(all_of_them())

    def test_users_take_turns(self) -> None:
        assert self.order_of(["ada"] * 6 + ["bob", "eve", "bob"]) == [
            *("ada", "bob", "eve"),
            *("ada", "bob"),
            *["ada"] * 4,
        ]

    def test_one_user_does_not_fill_the_queue(self) -> None:
        with pytest.raises(FetchFailed, match="try again later"):
            self.order_of(["ada"] * (making.MOST_WAITING_OF_ONE + 1))

    def test_who_gives_up_leaves_no_gap(self) -> None:
        async def give_up() -> list[str]:
            turns, served = Turns(), []
            go_on = asyncio.Event()

            async def work(user: str) -> None:
                async with turns.turn(Making(user)):
                    served.append(user)
                    await go_on.wait()

            tasks = [asyncio.ensure_future(work(user)) for user in ("ada", "bob", "eve", "zoe")]
            await asyncio.sleep(0.01)
            tasks[2].cancel()
            go_on.set()
            await asyncio.wait(tasks)
            return served

        assert asyncio.run(give_up()) == ["ada", "bob", "zoe"]


class TestGuard:
    """npm with the guard, and with nothing else that holds it back."""

    def npm(self, directory: Path, index: Index, traps: Path, *words: str, resolving: bool) -> int:
        (directory / "package.json").write_text('{"private": true}')
        guard = Path(node.__file__).with_name("npm_guard.cjs")
        environment = {
            "PATH": f"{traps}:{os.environ['PATH']}",
            "HOME": str(directory),
            "NODE_OPTIONS": f"--require {json.dumps(str(guard))}",
            "NPM_CONFIG_FETCH_RETRIES": "0",
            "NPM_CONFIG_CACHE": str(directory / "cache"),
            "NPM_CONFIG_REGISTRY": f"{index.url}/node",
        }
        if resolving:
            environment["TIDEBOX_REGISTRIES"] = index.url
        command = ["npm", "install", "--no-audit", "--no-fund", *words]
        return subprocess.run(command, cwd=directory, env=environment, capture_output=True, timeout=120).returncode

    @pytest.mark.parametrize("form", ["{url}/x.tgz", "git+{url}/repo.git", "git+file://{repository}"])
    def test_it_asks_nobody_but_the_registry_and_starts_nothing(
        self, index: Index, inner: Index, traps: Path, place: Path, form: str
    ) -> None:
        address = form.format(url=inner.url, repository=traps / "repository")
        index.add_node("evil-call", {"package/package.json": json.dumps({"dependencies": {"x": address}})})
        assert self.npm(place, index, traps, "--package-lock-only", "evil-call", resolving=True) != 0
        assert index.asked["/node/evil-call"]
        assert not inner.asked
        assert not (traps / "ran").exists()

    def test_it_fetches_metadata_only_while_it_resolves(self, index: Index, traps: Path, place: Path) -> None:
        index.add_node("evil-tar", {"package/index.js": "1"})
        assert self.npm(place, index, traps, "evil-tar", resolving=True) != 0
        assert index.asked["/node/evil-tar"]
        assert not index.asked["/files/evil-tar-1.0.0.tgz"]

    def test_it_runs_no_script_of_a_package(self, index: Index, traps: Path, place: Path) -> None:
        manifest = {"scripts": {"preinstall": f"echo script >> {traps}/ran"}, "hasInstallScript": True}
        index.add_node("evil-script", {"package/package.json": json.dumps(manifest)})
        assert self.npm(place, index, traps, "--foreground-scripts", "evil-script", resolving=False) != 0
        assert index.asked["/files/evil-script-1.0.0.tgz"], "it came as far as that"
        assert not (traps / "ran").exists()


@pytest.fixture
def inner() -> Iterator[Index]:
    """A server that no package may make anybody ask."""
    with running_index() as found:
        yield found


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A directory of programs that leave a mark when they are run."""
    directory = tmp_path / "traps"
    directory.mkdir()
    (directory / "git").write_text(f"#!/bin/sh\necho git >> {directory}/ran\n")
    (directory / "git").chmod(0o755)
    return directory
