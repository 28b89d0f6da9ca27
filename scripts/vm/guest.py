"""Runs as root in the guest of ``scripts/vm-test``, from the unpacked checkout: every check, then a summary."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = str(VENV / "bin/python")
TIDEBOX = str(VENV / "bin/tidebox")
# Emulated processors are slow.
PATIENCE = {"TIDEBOX_TEST_PATIENCE": "6"}
PYTEST = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
COUNTED = ("cpu", "memory", "pids")

KEPT = ("runtime", "runners", "native_faults", "native_leaves", "native_frozen")
CONTRACT = [f"tests/contract/test_{name}.py" for name in KEPT]
HOSTILE = ("resources", "privilege", "init", "inheritance", "kernel_counts", "private_files")
ESCAPE = [f"tests/escape/test_{name}.py" for name in HOSTILE]
KERNEL_MEMORY = ["tests/escape/test_kernel_memory.py"]
# The guest is there to be broken: what takes kernel resources in numbers is tried here and nowhere else.
ATTACK = [PYTHON, "-m", "tests.attack", "--kernel-resources", "--seed", "1", "--seconds", "300"]
ATTACK_SECONDS = 1500

Done = subprocess.CompletedProcess[str]


def install() -> None:
    """Make the environment that ``scripts/bootstrap`` makes on a machine, from the packages that were brought along."""
    venv.create(VENV, symlinks=True)
    packages = Path(VENV, "lib", "python{}.{}".format(*sys.version_info[:2]), "site-packages")
    packages.rmdir()
    (ROOT / "site").rename(packages)
    (packages / "tidebox.pth").write_text(f"{ROOT / 'src'}\n")
    for name, target in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].items():
        module, _, function = target.partition(":")
        command = VENV / "bin" / name
        command.write_text(f"#!{PYTHON}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        command.chmod(0o755)


class Account:
    """Someone who runs commands in the guest."""

    def __init__(self, name: str) -> None:
        self.name = name
        entry = pwd.getpwnam(name)
        self._ids = (entry.pw_uid, entry.pw_gid)
        self._environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": entry.pw_dir,
            "LANG": "C.UTF-8",
            "COLUMNS": "160",
            **PATIENCE,
        }

    def start_manager(self) -> None:
        """Give the account a user manager, as logging in would."""
        subprocess.run(["loginctl", "enable-linger", self.name], check=True)
        runtime = Path(f"/run/user/{self._ids[0]}")
        deadline = time.monotonic() + 60
        while not (runtime / "systemd/private").exists():
            assert time.monotonic() < deadline, "the user manager did not start"
            time.sleep(0.2)
        self._environment["XDG_RUNTIME_DIR"] = str(runtime)

    def run(self, command: list[str], **environment: str) -> Done:
        """Run a command in the checkout and show what it prints."""
        uid, gid = self._ids
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment | environment,
            user=uid,
            group=gid,
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        lines = []
        with process:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        return subprocess.CompletedProcess(command, process.returncode, "".join(lines))


def within(seconds: int, command: list[str]) -> list[str]:
    """A command that is killed when it takes longer: a kernel that stands still must not keep the guest."""
    return ["timeout", "--signal=KILL", str(seconds), *command]


def passes(account: Account, command: list[str]) -> Callable[[], bool]:
    """A check that a command ends well."""
    return lambda: account.run(command).returncode == 0


def is_refused(account: Account) -> bool:
    """Where limits cannot be kept, doctor names them and a run is refused, unless the operator accepts it."""
    found = account.run([TIDEBOX, "doctor", "--json"])
    missing = [check["guarantee"] for check in json.loads(found.stdout)["checks"] if check["state"] != "enforced"]
    hello = [TIDEBOX, "run", "-c", "print('ran')"]
    refused = account.run(hello)
    accepted = account.run(hello, SANDBOX_ALLOW_WEAK_ISOLATION="1")
    return (
        (found.returncode, sorted(missing)) == (1, sorted(COUNTED))
        and refused.returncode == 2
        and "ran" not in refused.stdout
        and (accepted.returncode, accepted.stdout.splitlines()[-1:]) == (0, ["ran"])
    )


def nothing_is_left() -> bool:
    """No cgroup of ours stands anywhere any more."""
    left = [str(path) for path in Path("/sys/fs/cgroup").rglob("tidebox-[0-9]*")]
    print(*left, sep="\n", flush=True)
    return not left


def main() -> int:
    """Run every check; 0 if all passed."""
    install()
    root, managed, plain = Account("root"), Account("managed"), Account("plain")
    managed.start_manager()
    checks = [
        ("root: everything is enforced", passes(root, [TIDEBOX, "doctor"])),
        ("root: contract and faults", passes(root, PYTEST + CONTRACT)),
        ("root: hostile programs", passes(root, PYTEST + ESCAPE)),
        ("root: kernel memory is charged", passes(root, PYTEST + KERNEL_MEMORY)),
        ("root: attack", passes(root, within(ATTACK_SECONDS, ATTACK))),
        ("user with a manager: everything is enforced", passes(managed, [TIDEBOX, "doctor"])),
        ("user with a manager: contract and faults", passes(managed, PYTEST + CONTRACT)),
        ("user with a manager: hostile programs", passes(managed, PYTEST + ESCAPE)),
        ("user without a manager: refused by name", lambda: is_refused(plain)),
        ("nothing is left behind", nothing_is_left),
    ]
    # Takes long on emulated processors, so it is done only when it is asked for.
    asked = [
        ("root: the whole hostile suite", passes(root, [*PYTEST, "tests/escape"])),
        ("user with a manager: the whole hostile suite", passes(managed, [*PYTEST, "tests/escape"])),
    ]
    only = next(word for word in Path("/proc/cmdline").read_text().split() if word.startswith("tidebox.only="))
    wanted = only.removeprefix("tidebox.only=").replace("_", " ").split(",")
    summary = []
    for name, check in checks + (asked if wanted != [""] else []):
        if not any(words in name for words in wanted):
            continue
        print(f"\nvm: {name}", flush=True)
        start = time.monotonic()
        good = check()
        summary.append((f"vm: {'ok    ' if good else 'FAILED'} {name} ({time.monotonic() - start:.0f} s)", good))
        print(summary[-1][0], flush=True)
    systemd = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    print(f"\nvm: Linux {os.uname().release}, Python {sys.version.split()[0]}, systemd {systemd}")
    print(*(line for line, _ in summary), sep="\n")
    passed = all(good for _, good in summary)
    print("vm: every check passed" if passed else "vm: some checks FAILED", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
