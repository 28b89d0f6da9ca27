"""Probe of the guarantees of sandboxes on this machine: what is seen from inside one, against what was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidebox.errors import ProvisionFailed
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited, OutputEvent
from tidebox.model.limits import Limits
from tidebox.model.runtimes import Finding, Guarantee, RuntimeReport
from tidebox.runtime.base import Box
from tidebox.runtime.gvisor.bundle import SHM_BYTES, USER_UID

# Few processes, so that their limit is soon reached.
SPEC = BoxSpec(executable=False, limits=Limits(pids=12))
_EXAMINE = ("tidebox:examine", "tried")
_MOST_TOLD = 1 << 20
_POWERS = ("CapEff", "CapPrm", "CapInh", "CapAmb")
_ROOT_NEEDED = "run the server as root"


def unavailable(reason: str) -> RuntimeReport:
    """The report where there is nothing to try."""
    return RuntimeReport("gvisor", False, (), reason=reason)


async def examine(box: Box, facts: Mapping[str, str], groups_problem: str | None) -> RuntimeReport:
    """The report on sandboxes like this one, which was opened by ``SPEC``."""
    program = await box.exec(Command(argv=_EXAMINE, cwd="/"))
    await program.end_input()
    said = b""
    async for event in program.events():
        if isinstance(event, OutputEvent) and len(said) < _MOST_TOLD:
            said += event.data
        elif isinstance(event, Exited) and event.code != 0:
            raise ProvisionFailed(f"a sandbox could not be examined: {said[-200:]!r}", step="probe")
    try:
        return judge(json.loads(said), facts, groups_problem)
    except (ValueError, KeyError, TypeError) as error:
        raise ProvisionFailed(f"a sandbox could not be examined: {error!r}", step="probe") from None


def judge(seen: dict[str, Any], facts: Mapping[str, str], groups_problem: str | None) -> RuntimeReport:
    """Report each guarantee by what was seen from inside; ``groups_problem`` is why there are no cgroups around it."""
    findings = (
        _user(seen),
        _file_system(seen),
        Finding(Guarantee.PRIVATE_FILES, True, "locks and watches are kept by each sandbox's own kernel"),
        _finding(
            Guarantee.PROCESSES,
            "1" in seen["processes"] and len(seen["processes"]) <= 4,
            "processes of the sandbox's own kernel, and no others",
            "processes of others are in sight",
        ),
        _finding(
            Guarantee.NETWORK,
            seen["interfaces"] in ([], ["lo"]),
            "the sandbox's own network stack, which leads nowhere",
            f"interfaces in sight: {', '.join(map(str, seen['interfaces']))}",
        ),
        Finding(Guarantee.IPC, True, "objects of the sandbox's own kernel"),
        _finding(
            Guarantee.SYSCALL_FILTER,
            # Its kernel would do both, and does not always tell that there is a filter.
            seen["namespace"] is not None and not seen["init"]["trace"],
            "our own filter on the sandbox's kernel, and that kernel's own on this machine's",
            "system calls are not filtered",
        ),
        _privileges(seen),
        _by_group(Guarantee.MEMORY, groups_problem, "control group around the sandbox, without swap"),
        _pids(seen),
        _by_group(Guarantee.CPU, groups_problem, "control group around the sandbox"),
        _disk(seen),
        Finding(Guarantee.TIME, True, "the agent kills everything; the whole sandbox is killed where it cannot"),
    )
    return RuntimeReport("gvisor", True, findings, facts=facts)


def _finding(guarantee: Guarantee, holds: bool, how: str, otherwise: str, remedy: str | None = None) -> Finding:
    return Finding(guarantee, True, how) if holds else Finding(guarantee, False, otherwise, remedy)


def _by_group(guarantee: Guarantee, problem: str | None, how: str) -> Finding:
    return _finding(guarantee, problem is None, how, f"nothing bounds it: {problem}", _ROOT_NEEDED)


def _user(seen: dict[str, Any]) -> Finding:
    plain = seen["uid"] == seen["gid"] == USER_UID and all(group == USER_UID for group in seen["groups"])
    if not plain:
        return Finding(Guarantee.USER_SEPARATION, False, f"programs are uid {seen['uid']} with groups {seen['groups']}")
    # Its kernel would show them to everybody: the agent hides its own.
    reached = sorted(name for name, works in seen["init"].items() if works) + seen["opened"]
    return _finding(
        Guarantee.USER_SEPARATION,
        not reached,
        "programs are a user of the sandbox's kernel and nobody on this machine; the agent is another",
        f"programs reach their sandbox's agent: {', '.join(reached)}",
    )


def _file_system(seen: dict[str, Any]) -> Finding:
    problems = []
    if seen["root_writable"] or "ro" not in seen["mounts"]["/"]:
        problems.append("the root can be written to")
    if "ro" not in seen["mounts"]["/.tidebox"]:
        problems.append("the agent's own files can be written to")
    problems += [f"files in {path} can be executed" for path, works in seen["executed"].items() if works]
    problems += [f"{path} is not in memory" for path in ("/workspace", "/tmp") if seen["mounts"][path][:1] != ["tmpfs"]]
    return _finding(
        Guarantee.FILE_SYSTEM,
        not problems,
        "read-only root, opened by a process apart from the sandbox's kernel",
        "; ".join(problems),
    )


def _privileges(seen: dict[str, Any]) -> Finding:
    status = seen["status"]
    left = [name for name in _POWERS if int(status.get(name, "0"), 16)]
    return _finding(
        Guarantee.NO_PRIVILEGES,
        not left and seen["no_new_privileges"] and "CapEff" in status,
        "no capability, no new privileges",
        f"capabilities or privileges are left ({', '.join(left)})",
    )


def _pids(seen: dict[str, Any]) -> Finding:
    return _finding(
        Guarantee.PIDS,
        # Who forks is one of them.
        seen["forked"] < SPEC.limits.pids,
        "counted by the sandbox's own kernel",
        "the limit on processes is not in force",
    )


def _disk(seen: dict[str, Any]) -> Finding:
    return _finding(
        Guarantee.DISK,
        0 < seen["capacity"] <= SHM_BYTES,
        "file systems of a fixed size in the sandbox's memory, which bounds the number of files",
        "the size of file systems is not bounded: this runsc is too old",
        "use a newer runsc",
    )
