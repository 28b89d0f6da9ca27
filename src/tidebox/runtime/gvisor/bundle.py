"""Sandbox configuration as data: pure functions from a specification to an OCI configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidebox.model.box import BoxSpec
from tidebox.model.launch import SCRATCH, WORKSPACE
from tidebox.model.limits import MIB, Limits
from tidebox.runtime import launchers
from tidebox.runtime.shared.tools import ENVIRONMENT

SHM_BYTES = 64 * MIB
HOSTNAME = "tidebox"
AGENT_UID, USER_UID = 0, 1000
# Memory that the sentry, its gofer and the processes that wait for them take, and the agent in it, beside the program:
# measured, with room for what the sentry keeps for each process and file.
OWN_BYTES = 96 * MIB
# Threads of these, and the processes by which the sentry runs each of the guest's.
_OWN_PROCESSES, _PROCESSES_EACH = 256, 3
# What init needs to start, signal and serve the files of processes of another uid, on the sandbox's own kernel.
_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETUID")
# By which it hides itself, on that kernel, and then gives up these two for itself and all that it starts.
_AT_FIRST = ("CAP_SETPCAP", "CAP_SYS_ADMIN")
_SETS = ("bounding", "effective", "permitted", "inheritable", "ambient")
_KEPT_SETS = ("bounding", "effective", "permitted")
_CORE = 1
_MOST_SIGNALS, _MOST_QUEUED = 1024, 819_200


@dataclass(frozen=True, slots=True)
class Root:
    """The read-only root of a sandbox, and what of this machine is put over it."""

    path: Path
    shared: Sequence[str] = ()
    """Directories and files that are at the same place there; what contains others comes before them."""


def group_limits(limits: Limits, *, sandbox: bool) -> dict[str, int]:
    """Return the cgroup limits around sentry, gofer and program.

    Processes are counted by the sandbox's own kernel: here only what they come to on the machine is bounded.
    """
    files = sum(file_systems(limits)) if sandbox else 0
    return {
        "memory": limits.memory + files + OWN_BYTES,
        "pids": _OWN_PROCESSES + _PROCESSES_EACH * limits.pids,
        "quota": max(int(limits.cpus * 100_000), 1000),
        "shares": limits.cpu_shares,
    }


def file_systems(limits: Limits) -> tuple[int, int, int]:
    """The sizes of /workspace, /tmp and /dev/shm."""
    return limits.workspace, limits.workspace, SHM_BYTES


def configuration(spec: BoxSpec, root: Root, *, tools: Path, command: Sequence[str]) -> dict[str, Any]:
    """The ``config.json`` of a sandbox."""
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": AGENT_UID, "gid": AGENT_UID},
            "args": list(command),
            "env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "cwd": "/",
            "capabilities": {name: [*_CAPABILITIES, *_AT_FIRST] if name in _KEPT_SETS else [] for name in _SETS},
            "rlimits": _rlimits(spec.limits),
            "noNewPrivileges": True,
        },
        "root": {"path": str(root.path), "readonly": True},
        "hostname": HOSTNAME,
        "mounts": [*_shared(root), *_own(spec), _bind(str(tools), launchers.DIRECTORY)],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }


def _shared(root: Root) -> list[dict[str, Any]]:
    return [_bind(path, path) for path in root.shared]


def _bind(source: str, target: str) -> dict[str, Any]:
    return {"destination": target, "type": "bind", "source": source, "options": ["bind", "ro", "nosuid", "nodev"]}


def _own(spec: BoxSpec) -> list[dict[str, Any]]:
    """The file systems that only this sandbox has."""
    limits = spec.limits
    workspace, tmp, shm = file_systems(limits)

    def memory(path: str, executable: bool, mode: str, size: int) -> dict[str, Any]:
        options = ["nosuid", "nodev", *([] if executable else ["noexec"])]
        options += [f"mode={mode}", f"size={size}", f"uid={USER_UID}", f"gid={USER_UID}"]
        return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": options}

    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "nodev", "noexec", "ro"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "nodev", "noexec", "ro"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "noexec", "mode=0755"]},
        memory(WORKSPACE, spec.executable, "0755", workspace),
        memory("/tmp", spec.executable, "1777", tmp),
        memory("/dev/shm", False, "1777", shm),
        *([memory(SCRATCH, spec.scratch == "exec", "0755", workspace)] if spec.scratch else []),
    ]


def _rlimits(limits: Limits) -> list[dict[str, Any]]:
    values = {
        "NOFILE": limits.open_files,
        # The sandbox's kernel counts them by user, but for the one that the agent starts: it was the agent's by then.
        "NPROC": limits.pids - 1,
        "CORE": _CORE,
        "FSIZE": limits.file_size,
        "SIGPENDING": _MOST_SIGNALS,
        "MSGQUEUE": _MOST_QUEUED,
    }
    return [{"type": f"RLIMIT_{name}", "soft": value, "hard": value} for name, value in values.items()]
