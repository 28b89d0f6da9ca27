"""What is asked of an engine for a container, without an engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from tidebox.errors import PolicyUnsupported, UnknownImage
from tidebox.model.box import BoxSpec
from tidebox.model.limits import MIB, Limits
from tidebox.model.runtimes import Guarantee
from tidebox.runtime.base import DockerSettings, RuntimeSettings
from tidebox.runtime.docker import seccomp
from tidebox.runtime.docker.containers import (
    EngineFacts,
    Hardening,
    ImageFacts,
    container_body,
    limits_of,
)
from tidebox.runtime.docker.groups import socket_limit
from tidebox.runtime.docker.images import DockerImages
from tidebox.runtime.docker.probe import judge
from tidebox.runtime.docker.runtime import DockerRuntime
from tidebox.runtime.shared.owners import OwnerFile
from tidebox.spawner.seccomp import rules

FACTS = EngineFacts(id="x", version="20.10", machine="x86_64", processors=2.0, cgroup="2", apparmor=False)
IMAGE = ImageFacts(
    name="python:3.11-slim",
    id="sha256:1",
    digest="sha256:2",
    environment={"PATH": "/bin", "LD_PRELOAD": "/evil.so", "PYTHONPATH": "/evil"},
    volumes=("/data",),
)


def body(spec: BoxSpec, apparmor: str | None = None) -> dict[str, Any]:
    hardening = Hardening(seccomp="{}", apparmor=apparmor, max_processes=512)
    return container_body(
        spec, IMAGE, FACTS, hardening, user=4711, command=["agent"], tools="tools", labels={"owner": "us"}
    )


def test_a_container_has_nothing_of_the_machine_and_no_power() -> None:
    found = body(BoxSpec(executable=False))
    host = found["HostConfig"]
    assert found["User"] == "4711:4711"
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert "CapAdd" not in host
    assert host["SecurityOpt"] == ["no-new-privileges", "seccomp={}"]
    assert (host["NetworkMode"], host["IpcMode"], host["LogConfig"]["Type"]) == ("none", "none", "none")
    assert "Binds" not in host
    assert not host.get("Privileged")
    assert "PidMode" not in host
    (mount,) = host["Mounts"]
    assert mount["Type"] == "volume"
    assert mount["ReadOnly"]
    assert found["Labels"] == {"owner": "us"}
    assert host["AutoRemove"]
    assert body(BoxSpec(), apparmor="tidebox")["HostConfig"]["SecurityOpt"][-1] == "apparmor=tidebox"


def test_every_writable_place_has_a_size_and_what_an_image_calls_a_volume_too() -> None:
    for executable in (False, True):
        places = body(BoxSpec(executable=executable))["HostConfig"]["Tmpfs"]
        assert set(places) == {"/workspace", "/tmp", "/dev/shm", "/data"}
        for path, options in places.items():
            words = set(options.split(","))
            assert {"nosuid", "nodev"} <= words
            assert any(word.startswith("size=") for word in words)
            assert ("exec" in words) is (executable and path in ("/workspace", "/tmp"))
            assert ("noexec" in words) is not (executable and path in ("/workspace", "/tmp"))


@pytest.mark.parametrize("scratch", ["exec", "noexec"])
def test_what_a_compiler_makes_is_executed_there_alone(scratch: Literal["exec", "noexec"]) -> None:
    places = body(BoxSpec(executable=False, scratch=scratch))["HostConfig"]["Tmpfs"]
    words = places["/scratch"].split(",")
    assert {scratch, "nosuid", "nodev"} <= set(words)
    assert any(word.startswith("size=") for word in words)
    assert all("noexec" in options.split(",") for path, options in places.items() if path != "/scratch")


def test_an_image_does_not_lead_the_agent() -> None:
    assert body(BoxSpec())["Env"] == ["LD_PRELOAD=", "PYTHONPATH=", "LC_ALL=C"]


def test_limits_are_what_the_engine_can_hold() -> None:
    limits = limits_of(Limits(memory=64 * MIB, pids=4, cpus=1000.0), FACTS, sandbox=False)
    assert limits["Memory"] == limits["MemorySwap"] >= 64 * MIB
    assert limits["NanoCpus"] == 2_000_000_000
    assert limits["PidsLimit"] == 5
    ulimits = {
        item["Name"]: item["Hard"] for item in body(BoxSpec(limits=Limits(open_files=64)))["HostConfig"]["Ulimits"]
    }
    assert ulimits["nofile"] == 64
    assert ulimits["nproc"] == 512
    assert ulimits["core"] == 1


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_profile_is_the_list_of_the_native_filter(machine: str) -> None:
    found = json.loads(seccomp.profile(machine, executable=True))
    assert found["defaultAction"] == "SCMP_ACT_ERRNO"
    assert len(found["architectures"]) == 1
    allowed = {name for rule in found["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert {"execve", "openat", "clone", "memfd_create"} <= allowed
    by_argument = {name for names, _ in rules(False) for name in names.split()}
    assert by_argument <= allowed
    refused = {
        "ptrace",
        "mount",
        "bpf",
        "io_uring_setup",
        "process_vm_readv",
        "pidfd_getfd",
        "keyctl",
        "unshare",
        "clone3",
    }
    assert not refused & allowed
    # What depends on an argument is never let through whatever it is.
    whole = {
        name
        for rule in found["syscalls"]
        if "args" not in rule and rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    }
    assert not {"clone", "socket"} & whole
    strict = json.loads(seccomp.profile(machine, executable=False))
    assert "memfd_create" not in strict["syscalls"][0]["names"]


async def test_a_network_that_cannot_be_given_is_refused(tmp_path: Path) -> None:
    runtime = DockerRuntime(RuntimeSettings(data_dir=tmp_path, agent_sockets=tmp_path))
    with pytest.raises(PolicyUnsupported, match="no network"):
        await runtime.open(BoxSpec(leads_out=True))
    await runtime.close()


def test_names_of_images_are_read_as_an_engine_reads_them() -> None:
    images = DockerImages()
    assert images.canonical("host") == "python:3.11-slim"
    assert images.canonical("busybox") == "busybox:latest"
    assert images.canonical("ghcr.io:443/a/b") == "ghcr.io:443/a/b:latest"
    pinned = "a/b@sha256:" + "0" * 64
    assert images.canonical(pinned) == pinned
    for name in ("", "../x", "A B", "x?y=1", "x\n", "-x", "a" * 300, "a/../../b", "a//b"):
        with pytest.raises(UnknownImage):
            images.canonical(name)


def test_images_that_are_not_allowed_are_refused() -> None:
    images = DockerImages(["python:*", "ghcr.io/ours/*"])
    assert images.canonical("python:3.12") == "python:3.12"
    assert images.canonical("ghcr.io/ours/app:1") == "ghcr.io/ours/app:1"
    assert images.canonical("python@sha256:" + "0" * 64)
    # The last ones are of registries whose names are chosen to look like what is allowed.
    for name in ("busybox", "evil/python:3.12", "ghcr.io/theirs/app", "python:3/evil", "python:443/evil:3.12"):
        with pytest.raises(UnknownImage, match="not one of those"):
            images.canonical(name)
    exact = DockerImages(["python:3.12"])
    assert exact.canonical("python:3.12") == "python:3.12"
    for name in ("python:3.1", "python:3.12-slim", "python", "python@sha256:" + "0" * 64):
        with pytest.raises(UnknownImage, match="not one of those"):
            exact.canonical(name)
    # An engine goes by the digest, whatever the tag beside it says.
    with pytest.raises(UnknownImage, match="not one of those"):
        DockerImages(["python:3.*"]).canonical("python:3.12@sha256:" + "0" * 64)
    assert DockerImages(["*"]).canonical("a/b:1") == "a/b:1"


def seen() -> dict[str, Any]:
    """What is seen in a container as it should be."""
    limits = limits_of(Limits(), FACTS, sandbox=False)
    memory = ["tmpfs", "rw", "nosuid", "nodev", "noexec", "size=1k"]
    return {
        "uid": 4711,
        "gid": 4711,
        "groups": [4711],
        "status": {
            **dict.fromkeys(("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"), "0"),
            "NoNewPrivs": "1",
            "Seccomp": "2",
        },
        "mounts": {"/": ["overlay", "ro"], "/.tidebox": ["ext4", "ro"], "/workspace": memory, "/tmp": memory},
        "files": {"/workspace": Limits().inodes, "/tmp": Limits().inodes // 2},
        "root_writable": False,
        "interfaces": ["lo"],
        "limits": {
            "memory": str(limits["Memory"]),
            "memory_swap": "0",
            "pids": str(limits["PidsLimit"]),
            "cpu": "100000 100000",
        },
        "swap": 0,
        "init": {"memory": False, "trace": False},
        "namespace": "EPERM",
        "apparmor": "",
        "processes": ["1", "7"],
    }


def test_a_container_as_it_should_be_misses_nothing() -> None:
    report = judge(seen(), FACTS, BoxSpec(), DockerSettings())
    assert report.missing == ()
    assert "file locks" in report.facts["kernel memory"]


@pytest.mark.parametrize(
    ("change", "guarantee"),
    [
        ({"uid": 0}, Guarantee.USER_SEPARATION),
        ({"groups": [4711, 27]}, Guarantee.USER_SEPARATION),
        ({"init": {"memory": True}}, Guarantee.USER_SEPARATION),
        ({"root_writable": True}, Guarantee.FILE_SYSTEM),
        ({"files": {"/workspace": 2**20, "/tmp": 64}}, Guarantee.DISK),
        ({"interfaces": ["lo", "eth0"]}, Guarantee.NETWORK),
        ({"namespace": None}, Guarantee.SYSCALL_FILTER),
        ({"status": {"CapEff": "1", "NoNewPrivs": "1", "Seccomp": "2"}}, Guarantee.NO_PRIVILEGES),
        ({"limits": {**seen()["limits"], "memory": "max"}}, Guarantee.MEMORY),
        ({"limits": {**seen()["limits"], "memory_swap": "max"}, "swap": 1}, Guarantee.MEMORY),
        ({"limits": {**seen()["limits"], "pids": "max"}}, Guarantee.PIDS),
        ({"limits": {**seen()["limits"], "cpu": "max 100000"}}, Guarantee.CPU),
        ({"limits": {**seen()["limits"], "cpu": "-1"}}, Guarantee.CPU),
    ],
)
def test_what_is_not_seen_is_missing(change: dict[str, Any], guarantee: Guarantee) -> None:
    report = judge({**seen(), **change}, FACTS, BoxSpec(), DockerSettings())
    assert [finding.guarantee for finding in report.missing] == [guarantee]


def test_buffers_of_sockets_that_are_counted_apart_must_be_bounded() -> None:
    facts = replace(FACTS, cgroup="1")
    most = str(socket_limit(limits_of(Limits(), facts, sandbox=False)["Memory"]))
    for found, missing in ((most, []), (str(2**63 - 4096), [Guarantee.MEMORY]), ("", [Guarantee.MEMORY])):
        told = {**seen(), "limits": {**seen()["limits"], "sockets": found}}
        report = judge(told, facts, BoxSpec(), DockerSettings())
        assert [finding.guarantee for finding in report.missing] == missing


def test_an_apparmor_profile_counts_only_where_it_is_in_force() -> None:
    facts, settings = replace(FACTS, apparmor=True), DockerSettings(apparmor_profile="tidebox")
    assert judge({**seen(), "apparmor": "tidebox (enforce)"}, facts, BoxSpec(), settings).missing == ()
    report = judge({**seen(), "apparmor": "docker-default (enforce)"}, facts, BoxSpec(), settings)
    assert [finding.guarantee for finding in report.missing] == [Guarantee.NO_PRIVILEGES]


def test_an_owner_lives_as_long_as_its_process_holds_its_lock(tmp_path: Path) -> None:
    first, second = OwnerFile(tmp_path), OwnerFile(tmp_path)
    assert first.installation == second.installation
    assert first.lives(second.name)
    assert second.lives(first.name)
    second.close(nothing_left=False)
    assert not first.lives(second.name)
    assert first.dead() == [second.name]
    first.forget(second.name)
    assert first.dead() == []
    assert not first.lives("no-such-owner")
    assert not first.lives("../../etc")
    first.close(nothing_left=True)
