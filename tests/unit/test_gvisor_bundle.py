"""What runsc is asked for, without runsc."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidebox.model.box import BoxSpec
from tidebox.model.limits import MIB, Limits
from tidebox.runtime.gvisor.bundle import OWN_BYTES, Root, configuration, group_limits
from tidebox.runtime.gvisor.runsc import Runsc

ROOT = Root(Path("/image"), ("/usr", "/usr/lib/x"))


def made(spec: BoxSpec) -> dict[str, dict[str, object]]:
    content = configuration(spec, ROOT, tools=Path("/tools"), command=["/.tidebox/ld.so"])
    assert content["root"] == {"path": "/image", "readonly": True}
    assert content["process"]["noNewPrivileges"] is True
    return {mount["destination"]: mount for mount in content["mounts"]}


@pytest.mark.parametrize("executable", [True, False])
def test_what_can_be_written_is_memory_of_a_size(executable: bool) -> None:
    mounts = made(BoxSpec(executable=executable, limits=Limits(workspace=5 * MIB)))
    for path in ("/workspace", "/tmp"):
        assert mounts[path]["type"] == "tmpfs"
        options = mounts[path]["options"]
        assert isinstance(options, list)
        assert {"nosuid", "nodev", f"size={5 * MIB}", "uid=1000"} <= set(options)
        assert ("noexec" in options) is not executable
    shared = [mount for mount in mounts.values() if mount["type"] == "bind"]
    assert [mount["destination"] for mount in shared] == ["/usr", "/usr/lib/x", "/.tidebox"]
    assert all("ro" in str(mount["options"]) for mount in shared)


def test_limits_leave_room_for_the_kernel_of_the_sandbox() -> None:
    limits = Limits(memory=64 * MIB, workspace=10 * MIB, cpus=0.5, pids=20)
    assert group_limits(limits, sandbox=False)["memory"] == 64 * MIB + OWN_BYTES
    assert group_limits(limits, sandbox=True)["memory"] == 64 * MIB + OWN_BYTES + 2 * 10 * MIB + 64 * MIB
    assert group_limits(limits, sandbox=False)["quota"] == 50_000
    assert group_limits(limits, sandbox=False)["pids"] > 20


def test_only_options_that_it_knows_are_used() -> None:
    old = Runsc("/runsc", "1", frozenset({"root", "platform", "network", "ignore-cgroups"}))
    assert old.command(Path("/state"), "ptrace", rootless=False) == [
        "/runsc",
        "--network=none",
        "--ignore-cgroups=true",
        "--root=/state",
        "--platform=ptrace",
    ]
    new = Runsc("/runsc", "2", old.flags | {"directfs", "rootless"})
    assert {"--directfs=false", "--rootless=true"} <= set(new.command(Path("/state"), "systrap", rootless=True))
