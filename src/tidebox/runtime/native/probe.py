"""Probe of the guarantees that the native runtime can enforce on this machine, in words an operator can act on."""

from __future__ import annotations

import errno
import functools
import os
from pathlib import Path
from typing import Any

from tidebox.errors import ProvisionFailed, RuntimeUnavailable, TideboxError
from tidebox.model.runtimes import Finding, Guarantee, RuntimeReport
from tidebox.runtime.native.plan import HostFacts, OwnFiles

_CGROUP_REMEDY_ROOT = (
    "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1) or mount the memory, pids and cpu controllers"
)
# From here on the end of a filter in the kernel may wait for a queue that the ends of others fill.
_HANGS_FROM = (6, 9)
_CGROUP_REMEDY_USER = (
    "run in a login session with a systemd user manager (then a delegated scope is used), or start as root; "
    "to enable a user manager: sudo loginctl enable-linger $USER"
)


def explain(error: ProvisionFailed) -> RuntimeUnavailable:
    """Explain why the first template could not be made, and what helps."""
    step = str(error.details.get("step", ""))
    number = int(error.details.get("errno") or 0)
    remedy = _remedy(step, number)
    text = f"boxes cannot be made on this machine: {step}: {os.strerror(number) if number else error.message}"
    return RuntimeUnavailable(f"{text}. {remedy}" if remedy else text, step=step, errno=number, remedy=remedy)


def _remedy(step: str, number: int) -> str | None:
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1" and os.getuid() != 0:
        return (
            "AppArmor restricts user namespaces for unprivileged programs: "
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if _sysctl("kernel/unprivileged_userns_clone") == "0" and os.getuid() != 0:
        return "the kernel forbids unprivileged user namespaces: sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if _sysctl("user/max_user_namespaces") == "0":
        return "no user namespaces are allowed: sudo sysctl -w user.max_user_namespaces=15000"
    if "clone" in step or "namespace" in step:
        if number == errno.ENOSYS:
            return "the kernel is older than 5.3 and has no clone3"
        return "this looks like a container without namespaces: run it with --privileged, or on the machine itself"
    if "proc" in step:
        return (
            "/proc is partly hidden here, as in a container: run on the machine itself, "
            "or with --security-opt systempaths=unconfined"
        )
    return None


def explain_egress(error: ProvisionFailed) -> str:
    """Explain why networks cannot lead out, and what helps."""
    step, number = str(error.details.get("step", "")), int(error.details.get("errno") or 0)
    text = f"{step}: {os.strerror(number) if number else error.message}"
    if step in ("egress rules", "egress connection"):
        return f"{text}; it takes nf_tables with tproxy: modprobe nft_tproxy"
    return text


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def unavailable(error: TideboxError) -> RuntimeReport:
    """The report of a machine on which no box can be made."""
    remedy = error.details.get("remedy")
    findings = tuple(Finding(guarantee, False, "no box can be made", remedy) for guarantee in Guarantee)
    return RuntimeReport("native", False, findings, reason=error.message)


def report(spawner: dict[str, Any], facts: HostFacts, own: OwnFiles, guarded: frozenset[str]) -> RuntimeReport:
    """The report of a machine on which a template stands."""
    two_ids, cgroup = bool(spawner["two_ids"]), int(spawner["cgroup"])
    problem = spawner["cgroup_problem"]
    remedy = None if cgroup else (_CGROUP_REMEDY_ROOT if os.getuid() == 0 else _CGROUP_REMEDY_USER)
    counted = f"cgroup v{cgroup}" if cgroup else f"not enforced: {problem}"
    init = "another uid than user code" if two_ids else "user code's uid; capabilities and the filter guard it"
    findings = (
        Finding(Guarantee.USER_SEPARATION, True, "a user namespace of its own; init has " + init),
        Finding(Guarantee.FILE_SYSTEM, True, "read-only root of its own, private tmpfs, masked /proc"),
        _private_files(own),
        Finding(Guarantee.PROCESSES, True, "a pid namespace; all die with its init"),
        Finding(Guarantee.NETWORK, True, "an empty network namespace with loopback only"),
        Finding(Guarantee.IPC, True, "ipc and uts namespaces"),
        Finding(Guarantee.SYSCALL_FILTER, True, f"seccomp allow-list for {os.uname().machine}"),
        Finding(Guarantee.NO_PRIVILEGES, True, "no capability, no_new_privs, nosuid mounts"),
        Finding(Guarantee.MEMORY, bool(cgroup), f"{counted}, swap off" if cgroup else counted, remedy),
        Finding(Guarantee.PIDS, bool(cgroup), counted + _process_rlimit(two_ids), remedy),
        Finding(Guarantee.CPU, bool(cgroup), counted, remedy),
        Finding(Guarantee.DISK, True, "tmpfs with size and inode caps"),
        Finding(Guarantee.TIME, True, "the host's clock, RLIMIT_CPU behind it"),
    )
    noexec = "with memfd" if facts.memfd_noexec else "files only (memfd needs root and Linux 6.3)"
    told = {"kernel": os.uname().release, "noexec": noexec}
    told["kernel memory"] = _kernel_memory(cgroup, guarded)
    told["crashes"] = _crashes()
    if _kernel() >= _HANGS_FROM:
        told["filters"] = "this kernel may hang when thousands end at once, which no box can cause; avoid it elsewhere"
    if left_alone := [*spawner["left_alone"], *spawner["living"]]:
        told["control groups left alone"] = "; ".join(left_alone)
    return RuntimeReport("native", True, findings, facts=told)


def processes_are_counted_per_box(two_ids: bool) -> bool:
    """Whether RLIMIT_NPROC counts the processes of one box: by uid, and since Linux 5.14 by user namespace too."""
    return two_ids or _kernel() >= (5, 14)


def _private_files(own: OwnFiles) -> Finding:
    if not own.overlay:
        return Finding(
            Guarantee.PRIVATE_FILES,
            False,
            "locks and watches on files of the image are shared with other boxes",
            "use Linux 5.11 or newer, and keep data_dir on a file system that is not an overlay itself",
        )
    devices = "devices too" if own.devices else "devices are the machine's (private ones need root)"
    return Finding(Guarantee.PRIVATE_FILES, True, f"an overlay for each box; {devices}")


def _process_rlimit(two_ids: bool) -> str:
    if processes_are_counted_per_box(two_ids):
        return "; RLIMIT_NPROC for each box"
    return "; no RLIMIT_NPROC, which counts all processes of this user (before Linux 5.14)"


def _kernel_memory(cgroup: int, guarded: frozenset[str]) -> str:
    """Describe the kernel memory that a box can take and that its cgroup does not count."""
    options = _read("/proc/cmdline").split()
    problems = [f"booted with {option}" for option in options if option.startswith("cgroup.memory=")]
    if cgroup == 1 and not os.path.exists("/sys/fs/cgroup/memory/memory.kmem.tcp.limit_in_bytes"):
        problems.append("cgroup v1 does not count buffers of sockets here")
    problems += [f"not bounded: {name}" for name in ("file locks", "unaccepted connections") if name not in guarded]
    return "; ".join(problems) or "counted; file locks and unaccepted connections end a box that piles them up"


@functools.cache
def _kernel() -> tuple[int, ...]:
    numbers = os.uname().release.split("-")[0].split(".")
    return tuple(int(number) for number in numbers[:2] if number.isdigit())


def _crashes() -> str:
    pattern = _read("/proc/sys/kernel/core_pattern").strip()
    if pattern.startswith("@"):
        return f"core_pattern {pattern!r}: whether crashes of boxes reach that socket was not tried"
    return "no core is kept, and no handler of the machine is started"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
