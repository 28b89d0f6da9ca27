"""Container configuration as data: pure functions from a specification to the body of an engine's request."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidebox.model.box import BoxSpec
from tidebox.model.launch import SCRATCH, WORKSPACE
from tidebox.model.limits import MIB, Limits
from tidebox.runtime import launchers
from tidebox.runtime.shared.tools import ENVIRONMENT

SHM_BYTES = 64 * MIB
# What the agent takes for itself, beside the program.
AGENT_BYTES = 16 * MIB
AGENT_PROCESSES = 1
# Of what an engine starts a container with, in the container's own control group.
_STARTING_PROCESSES = 32
HOSTNAME = "tidebox"

# What an interpreter or a loader reads when it starts: the agent is not to be led by an image.
_LEADING = ("LD_", "PYTHON", "GLIBC_", "MALLOC_", "LC_", "LANG", "GCONV_", "LOCPATH", "TZ")
# No core, and no handler of the machine's is started for one.
_CORE = 1
_MOST_SIGNALS, _MOST_QUEUED = 1024, 819_200
_MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/bus",
    "/proc/cmdline",
    "/proc/diskstats",
    "/proc/driver",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/irq",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/partitions",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/swaps",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/block",
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices",
    "/sys/firmware",
    "/sys/hypervisor",
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
)
_READ_ONLY = ("/proc/sys",)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The properties of an engine that matter to its containers."""

    id: str
    version: str
    machine: str
    processors: float
    cgroup: str
    """The version of its control groups."""
    apparmor: bool
    rootless: bool = False
    podman: bool = False
    """Whether it is Podman, whose Docker API takes less: no owner of a file system and no number of files in it, a
    profile as a file only, and no other limits for a container that runs."""
    runtimes: Mapping[str, str] = field(default_factory=dict)
    """Those that it can make containers by, with the programs that they are."""
    facts: Mapping[str, str] = field(default_factory=dict)

    def updates(self, runtime: str | None) -> bool:
        """Whether a container that runs, made by that one or the engine's own choice, takes other limits."""
        if self.podman:
            return False
        # gVisor's program has no command for it.
        return runtime is None or os.path.basename(self.runtimes.get(runtime) or runtime) != "runsc"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """The properties of an image that matter to its containers."""

    name: str
    id: str
    digest: str
    environment: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardening:
    """The hardening that all containers of a server share: seccomp and AppArmor profile, process limit, OCI runtime."""

    seccomp: str
    """A profile, as Docker has them, or the file of one where the engine takes it so."""
    apparmor: str | None
    max_processes: int
    runtime: str | None = None
    """By which of its runtimes the engine makes them."""


def limits_of(limits: Limits, facts: EngineFacts, *, sandbox: bool, starting: bool = False) -> dict[str, Any]:
    """Return a container's cgroup limits, as the engine takes them when a container is made, or later.

    While it is ``starting`` it holds what starts it, too.
    """
    files = sum(file_systems(limits)) if sandbox else 0
    memory = limits.memory + files + AGENT_BYTES
    return {
        "Memory": memory,
        # Of memory and swap together: no swap.
        "MemorySwap": memory,
        "PidsLimit": max(limits.pids + AGENT_PROCESSES, _STARTING_PROCESSES if starting else 0),
        "NanoCpus": int(max(min(limits.cpus, facts.processors), 0.01) * 1e9),
        "CpuShares": limits.cpu_shares,
    }


def file_systems(limits: Limits) -> tuple[int, int, int]:
    """The sizes of /workspace, /tmp and /dev/shm."""
    return limits.workspace, limits.workspace, SHM_BYTES


def container_body(
    spec: BoxSpec,
    image: ImageFacts,
    facts: EngineFacts,
    hardening: Hardening,
    *,
    user: int,
    command: Sequence[str],
    tools: str,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """The request that makes the container of a box."""
    limits = spec.limits
    options = ["no-new-privileges", f"seccomp={hardening.seccomp}"]
    if hardening.apparmor is not None:
        options.append(f"apparmor={hardening.apparmor}")
    host = {
        **limits_of(limits, facts, sandbox=spec.kind == "sandbox", starting=not facts.podman),
        "AutoRemove": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": options,
        "ReadonlyRootfs": True,
        "NetworkMode": "none",
        # Nobody is asked; but without a word the file that says whom would be the machine's own.
        "Dns": ["127.0.0.1"],
        "DnsSearch": ["."],
        "IpcMode": "none",
        "LogConfig": {"Type": "none"},
        "Tmpfs": _file_systems(spec, image, None if facts.podman else user),
        "Mounts": [
            {
                "Type": "volume",
                "Source": tools,
                "Target": launchers.DIRECTORY,
                "ReadOnly": True,
                "VolumeOptions": {"NoCopy": True},
            }
        ],
        "MaskedPaths": list(_MASKED),
        "ReadonlyPaths": list(_READ_ONLY),
        "Ulimits": _ulimits(limits, hardening.max_processes),
        "RestartPolicy": {"Name": "no"},
        **({"Runtime": hardening.runtime} if hardening.runtime is not None else {}),
        "Init": False,
    }
    return {
        "Image": image.id,
        "Entrypoint": list(command),
        "Cmd": [],
        # What is empty leads nobody.
        "Env": [
            f"{name}={value}"
            for name, value in (
                {name: "" for name in image.environment if name.startswith(_LEADING)} | ENVIRONMENT
            ).items()
        ],
        "User": f"{user}:{user}",
        "WorkingDir": "/",
        "Hostname": HOSTNAME,
        "Labels": dict(labels),
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "HostConfig": host,
    }


def _file_systems(spec: BoxSpec, image: ImageFacts, user: int | None) -> dict[str, str]:
    """The file systems in memory; without ``user`` as an engine takes them that knows no owner of one, nor a number of
    files."""
    limits = spec.limits
    workspace, tmp, shm = file_systems(limits)
    half = max(limits.inodes // 2, 64)
    # An engine adds noexec by itself where nothing is said.
    executable = "exec" if spec.executable else "noexec"

    def options(execution: str, mode: str, size: int, inodes: int) -> str:
        if user is None:
            return f"rw,nosuid,nodev,{execution},mode=1777,size={size}"
        return f"rw,nosuid,nodev,uid={user},gid={user},{execution},mode={mode},size={size},nr_inodes={inodes}"

    places = [path for path in image.volumes if path != launchers.DIRECTORY]
    found = dict.fromkeys(places, options("noexec", "1777", MIB, 64))
    return found | {
        WORKSPACE: options(executable, "0755", workspace, limits.inodes),
        "/tmp": options(executable, "1777", tmp, half),
        "/dev/shm": options("noexec", "1777", shm, half),
        **({SCRATCH: options(spec.scratch, "0755", workspace, half)} if spec.scratch else {}),
    }


def _ulimits(limits: Limits, max_processes: int) -> list[dict[str, Any]]:
    values = {
        "nofile": limits.open_files,
        "nproc": max(limits.pids, max_processes),
        "core": _CORE,
        "fsize": limits.file_size,
        "sigpending": _MOST_SIGNALS,
        "msgqueue": _MOST_QUEUED,
    }
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in values.items()]
