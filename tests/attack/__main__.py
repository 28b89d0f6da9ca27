"""``make attack``: try for a while to bring down a server of one's own, and say what was found.

    python -m tests.attack [--seconds 600] [--seed N] [--only GRAMMAR [--step N]] [--kernel-resources]

Ends with exit code 1 if something grew and stayed, a neighbour waited for more than a second, or the server failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import sys
import tempfile
from pathlib import Path

from tests.attack.campaign import Plan, Report, attack
from tests.attack.grammars import GRAMMARS
from tests.patience import PATIENCE
from tidebox.cli.figures import Samples

# From this version on a kernel may stop for good when many filters are freed at once.
_FRAGILE_SINCE = (6, 9)
_PROGRAMS_PER_SECOND = 4


def plan_of(options: argparse.Namespace) -> Plan:
    """What the command line asks for; exits where it must not be done."""
    chosen = [grammar for grammar in GRAMMARS.values() if options.only in (None, grammar.name)]
    if any(grammar.kernel_resources for grammar in chosen):
        if not options.kernel_resources:
            chosen = [grammar for grammar in chosen if not grammar.kernel_resources]
        elif refusal := refused(os.uname().release, is_virtual_machine(), options.force):
            sys.exit(refusal)
    if not chosen:
        sys.exit(f"{options.only} takes kernel resources in numbers: it needs --kernel-resources")
    return Plan(
        seed=options.seed,
        seconds=options.seconds,
        grammars=tuple(grammar.name for grammar in chosen),
        most_programs=options.programs or int(options.seconds * _PROGRAMS_PER_SECOND),
        patience=options.patience,
        only_step=options.step,
    )


def refused(release: str, virtual_machine: bool, force: bool) -> str | None:
    """Why kernel resources are not attacked on this kernel, if they are not."""
    found = re.match(r"(\d+)\.(\d+)", release)
    version = (int(found[1]), int(found[2])) if found else _FRAGILE_SINCE
    if version < _FRAGILE_SINCE or virtual_machine or force:
        return None
    return (
        f"Linux {release} may stop for good when many filters are freed at once, with everything on this machine; "
        "run this in the virtual machine (make test-vm VM_ARGS='trixie attack'), or say --force"
    )


def is_virtual_machine() -> bool:
    """Whether this is the guest of scripts/vm-test, which is there to be broken."""
    return "tidebox.only=" in Path("/proc/cmdline").read_text()


def summary(report: Report) -> list[str]:
    """What was done, and how long the neighbour waited."""
    lines = [f"seed {report.seed}: {report.programs} programs, steps {report.steps}"]
    for kind in ("healthz", "hello", "echo", "bare", "sleep"):
        if times := [reading.seconds * 1000 for reading in report.readings if reading.kind == kind]:
            found = Samples.of(times)
            lines.append(f"{kind:8} p50 {found.p50:8.1f} ms, p99 {found.p99:8.1f} ms, worst {max(times):8.1f} ms")
    sure = sum(finding.certain for finding in report.findings)
    lines.append(f"FAILED: {sure} found" if report.failed else "PASSED: nothing grew, nobody waited")
    return lines


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="make attack", description="Attack a server of one's own.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--only", choices=sorted(GRAMMARS))
    parser.add_argument("--step", type=int, help="carry out this step only, again and again (with --only)")
    parser.add_argument("--programs", type=int, help="the most programs to start")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="times slower than a real processor")
    parser.add_argument("--kernel-resources", action="store_true", help="also take kernel resources in numbers")
    parser.add_argument("--force", action="store_true", help="also where that may stop the kernel")
    options = parser.parse_args()
    if options.step is not None and options.only is None:
        parser.error("--step needs --only")
    plan = plan_of(options)
    print(f"attacking for {plan.seconds:g} s with seed {plan.seed}: {', '.join(plan.grammars)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidebox-attack-") as directory:
        report = asyncio.run(attack(plan, Path(directory), lambda line: print(line, flush=True)))
    print(*summary(report), sep="\n")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
