"""Probe of the guarantees of an engine's containers: asked of the engine, and seen from inside one."""

from __future__ import annotations

import json
from typing import Any

from tidebox.errors import ProvisionFailed, TideboxError
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited, OutputEvent
from tidebox.model.runtimes import Finding, Guarantee, RuntimeReport
from tidebox.runtime.base import Box, DockerSettings
from tidebox.runtime.docker.containers import EngineFacts, limits_of
from tidebox.runtime.docker.groups import needs_socket_limit, socket_limit

_EXAMINE = "tidebox:examine"
_MOST_TOLD = 1 << 20
_FILTERED = "2"
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def facts_of(info: dict[str, Any], version: dict[str, Any]) -> EngineFacts:
    """Parse the facts of an engine from its answers about itself."""
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    cgroup = str(info.get("CgroupVersion") or "1")
    machine = str(info.get("Architecture") or version.get("Arch") or "")
    engine = str(version.get("Version") or "")
    return EngineFacts(
        id=str(info.get("ID") or ""),
        version=engine,
        machine=_MACHINES.get(machine, machine),
        processors=float(info.get("NCPU") or 1),
        cgroup=cgroup,
        apparmor=any(option.startswith("name=apparmor") for option in options),
        podman=any(str(part.get("Name")).startswith("Podman") for part in version.get("Components") or ()),
        rootless=any(option.startswith("name=rootless") for option in options),
        runtimes={
            str(name): str((told or {}).get("path") or "") for name, told in (info.get("Runtimes") or {}).items()
        },
        facts={
            "engine": engine,
            "kernel": str(info.get("KernelVersion") or ""),
            "control groups": f"v{cgroup}",
            "engine without root": "yes" if any(option.startswith("name=rootless") for option in options) else "no",
        },
    )


def unavailable(error: TideboxError) -> RuntimeReport:
    """The report where there is nothing to try."""
    return RuntimeReport("docker", False, (), reason=error.message)


async def examine(
    box: Box, facts: EngineFacts, spec: BoxSpec, settings: DockerSettings, watched: frozenset[str] = frozenset()
) -> RuntimeReport:
    """The report on containers like this one; ``watched`` is what nothing counts and the guard looks for."""
    program = await box.exec(Command(argv=[_EXAMINE], cwd="/"))
    await program.end_input()
    said = b""
    async for event in program.events():
        if isinstance(event, OutputEvent) and len(said) < _MOST_TOLD:
            said += event.data
        elif isinstance(event, Exited) and event.code != 0:
            raise ProvisionFailed(f"a container could not be examined: {said[-200:]!r}", step="probe")
    try:
        seen = json.loads(said)
    except ValueError:
        raise ProvisionFailed("a container could not be examined", step="probe") from None
    return judge(seen, facts, spec, settings, watched)


def judge(
    seen: dict[str, Any],
    facts: EngineFacts,
    spec: BoxSpec,
    settings: DockerSettings,
    watched: frozenset[str] = frozenset(),
) -> RuntimeReport:
    """Report each guarantee: compare what was seen from inside with what was asked for."""
    limits = limits_of(spec.limits, facts, sandbox=False)
    kept = seen["limits"]
    findings = (
        _user(seen),
        _file_system(seen),
        Finding(Guarantee.PRIVATE_FILES, True, "an overlay of the engine for each container"),
        _finding(
            Guarantee.PROCESSES,
            "1" in seen["processes"] and len(seen["processes"]) <= 4,
            "a process namespace for each container",
            "processes of others are in sight",
        ),
        _finding(
            Guarantee.NETWORK,
            seen["interfaces"] in ([], ["lo"]),
            "no interface but the loopback one",
            f"interfaces in sight: {', '.join(map(str, seen['interfaces']))}",
        ),
        Finding(Guarantee.IPC, True, "an IPC namespace for each container, shared memory of its own"),
        _filter(seen, settings),
        _privileges(seen, facts, settings),
        _memory(kept, limits, seen["swap"], facts),
        _finding(
            Guarantee.PIDS,
            kept["pids"] == str(limits["PidsLimit"]),
            "control group",
            "the limit on processes is not in force",
            _delegate(facts),
        ),
        _finding(
            Guarantee.CPU,
            _positive(kept["cpu"]),
            "control group",
            "the limit on processor time is not in force",
            _delegate(facts),
        ),
        _disk(seen, spec),
        Finding(Guarantee.TIME, True, "the agent kills everything; the engine does where the agent cannot"),
    )
    told = {**facts.facts, "kernel memory": _kernel_memory(watched)}
    if settings.apparmor_profile:
        told["AppArmor"] = str(seen["apparmor"]).strip() or "this kernel has none"
    return RuntimeReport("docker", True, findings, facts=told)


def _kernel_memory(watched: frozenset[str]) -> str:
    """Describe the kernel memory that a container can take and that nothing charges to it."""
    problems = [f"not bounded: {name}" for name in ("file locks", "unaccepted connections") if name not in watched]
    return "; ".join(problems) or "counted; file locks and unaccepted connections end a box that piles them up"


def _finding(guarantee: Guarantee, holds: bool, how: str, otherwise: str, remedy: str | None = None) -> Finding:
    return Finding(guarantee, True, how) if holds else Finding(guarantee, False, otherwise, remedy)


def _user(seen: dict[str, Any]) -> Finding:
    plain = seen["uid"] != 0 and seen["gid"] != 0 and all(group == seen["gid"] for group in seen["groups"])
    reached = sorted(name for name, works in seen["init"].items() if works)
    if not plain:
        return Finding(Guarantee.USER_SEPARATION, False, f"programs are uid {seen['uid']} with groups {seen['groups']}")
    return _finding(
        Guarantee.USER_SEPARATION,
        not reached,
        "a random uid for each container; its agent cannot be reached",
        f"programs reach their container's agent: {', '.join(reached)}",
    )


def _file_system(seen: dict[str, Any]) -> Finding:
    problems = []
    if seen["root_writable"] or "ro" not in seen["mounts"]["/"]:
        problems.append("the root can be written to")
    if "ro" not in seen["mounts"]["/.tidebox"]:
        problems.append("the agent's own files can be written to")
    for path in ("/workspace", "/tmp"):
        lacking = {"nosuid", "nodev", "noexec"} - set(seen["mounts"][path])
        if lacking or not _is_memory(seen, path):
            problems.append(f"{path} is not mounted as asked for ({', '.join(sorted(lacking)) or 'no tmpfs'})")
    return _finding(
        Guarantee.FILE_SYSTEM, not problems, "read-only root; nothing of this machine is mounted", "; ".join(problems)
    )


def _is_memory(seen: dict[str, Any], path: str) -> bool:
    return seen["mounts"][path][:1] == ["tmpfs"] and any(word.startswith("size=") for word in seen["mounts"][path])


def _disk(seen: dict[str, Any], spec: BoxSpec) -> Finding:
    if not all(_is_memory(seen, path) for path in seen["files"]):
        return Finding(Guarantee.DISK, False, "files are not in file systems of a fixed size")
    return _finding(
        Guarantee.DISK,
        max(seen["files"].values()) <= spec.limits.inodes,
        "file systems of a fixed size; nothing else is writable",
        "the number of files is not bounded: this engine takes no limit for it",
        "use Docker",
    )


def _filter(seen: dict[str, Any], settings: DockerSettings) -> Finding:
    filtered = seen["status"].get("Seccomp") == _FILTERED and seen["namespace"] is not None
    how = (
        "the profile of the settings"
        if settings.seccomp is not None
        else "a profile of the engine's and our own filter"
    )
    return _finding(
        Guarantee.SYSCALL_FILTER,
        filtered,
        how,
        "system calls are not filtered",
        "use an engine and a kernel with seccomp",
    )


def _privileges(seen: dict[str, Any], facts: EngineFacts, settings: DockerSettings) -> Finding:
    status = seen["status"]
    powers = [name for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb") if int(status.get(name, "1"), 16)]
    if powers or status.get("NoNewPrivs") != "1":
        return Finding(Guarantee.NO_PRIVILEGES, False, f"capabilities or privileges are left ({', '.join(powers)})")
    wanted = settings.apparmor_profile
    current = str(seen["apparmor"]).strip().partition(" ")[0]
    if wanted and facts.apparmor and current != wanted:
        return Finding(
            Guarantee.NO_PRIVILEGES,
            False,
            f"the AppArmor profile is {current or 'none'}, not {wanted}",
            "load the profile with apparmor_parser",
        )
    return Finding(Guarantee.NO_PRIVILEGES, True, "no capability, no new privileges")


def _memory(kept: dict[str, str], limits: dict[str, Any], swap: int, facts: EngineFacts) -> Finding:
    if kept["memory"] != str(limits["Memory"]):
        return Finding(Guarantee.MEMORY, False, "the limit on memory is not in force", "use control groups v2")
    if needs_socket_limit(facts) and kept["sockets"] != str(socket_limit(limits["Memory"])):
        return Finding(
            Guarantee.MEMORY,
            False,
            "buffers of sockets are not bounded: control groups v1 count them apart, and engines set no limit",
            "use control groups v2, or have this server run as root on the engine's own machine",
        )
    # v1 counts both together, v2 swap alone.
    no_swap = kept["memory_swap"] in ("0", str(limits["Memory"])) or not swap
    return _finding(
        Guarantee.MEMORY,
        no_swap,
        "control group, without swap",
        "programs can use swap without a limit",
        "boot with swapaccount=1, or turn swap off",
    )


def _positive(text: str) -> bool:
    first = text.split()[:1]
    return bool(first) and first[0].isdigit() and int(first[0]) > 0


def _delegate(facts: EngineFacts) -> str | None:
    return "an engine without root needs control groups v2 that are delegated to it" if facts.rootless else None
