"""User code is nobody in particular and cannot become anybody else."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.escape.probes import Probe, Run, assert_refused, outside, python, said, try_call
from tests.patience import patient
from tests.runtimes import RUNTIME, native_only

NO_NEW_PRIVILEGES = "import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))"
STATUS = """
fields = dict(line.rstrip().split(":", 1) for line in open("/proc/self/status"))
print(*[fields[name].strip() for name in {names!r}])
"""


def status(run: Run, *names: str) -> list[str]:
    return said(run(STATUS.format(names=names))).split()


def is_user(uid: str) -> bool:
    """Whether it is the one that programs have in a box: 1000, or in containers a random one."""
    return uid == "1000" if RUNTIME in ("native", "gvisor") else 20_000 <= int(uid) < 60_000


def test_user_code_is_not_root(box_run: Run) -> None:
    users = said(box_run("import os; print(*os.getresuid(), *os.getresgid())")).split()
    assert is_user(users[0])
    assert users == [users[0]] * 6


def test_user_code_has_no_other_groups(box_run: Run) -> None:
    # Without root, groups of the caller cannot be dropped; they show as the unmapped one.
    groups = said(box_run("import os; print(*os.getgroups())")).split()
    assert all(group == "65534" or is_user(group) for group in groups)
    assert len(groups) <= 2


@pytest.mark.parametrize("kind", ["CapEff", "CapPrm", "CapInh", "CapAmb"])
def test_user_code_has_no_capability(box_run: Run, kind: str) -> None:
    if RUNTIME == "gvisor" and kind == "CapAmb":
        # Its kernel has none of this kind: not even to ask for one is known to it.
        assert said(box_run(python("attempt(lambda: call(NR.prctl, 47, 1, 0, 0, 0))"))) == "denied EINVAL"
        return
    assert status(box_run, kind) == ["0" * 16]


def test_no_new_privileges_is_set(box_run: Run) -> None:
    assert said(box_run(NO_NEW_PRIVILEGES)) == "1"
    if RUNTIME != "gvisor":  # its kernel does not show it
        assert status(box_run, "NoNewPrivs") == ["1"]


def test_the_system_call_filter_is_on(box_run: Run) -> None:
    assert status(box_run, "Seccomp") == ["2"]


@pytest.mark.parametrize("language", ["javascript", "shell"])
def test_other_languages_are_confined_too(box_run: Run, language: str) -> None:
    code = {
        "javascript": "process.stdout.write(require('fs').readFileSync('/proc/self/status'))",
        "shell": "cat /proc/self/status",
    }[language]
    told = "NoNewPrivs"
    if RUNTIME == "gvisor":
        # What its kernel does not show of a program is seen in what its children inherit.
        told = "Inherited"
        asked = f"python3 -c '{NO_NEW_PRIVILEGES}'"
        child = {
            "javascript": f'process.stdout.write("Inherited: " + require("child_process").execSync(`{asked}`))',
            "shell": f"printf 'Inherited: '; {asked}",
        }[language]
        code = f"{code}; {child}"
    lines = [line.partition(":") for line in said(box_run(code, language)).splitlines()]
    fields = {name: value.strip() for name, _, value in lines}
    assert fields["CapEff"] == fields["CapPrm"] == "0" * 16
    assert (fields[told], fields["Seccomp"]) == ("1", "2")
    users = fields["Uid"].split()
    assert is_user(users[0])
    assert users == [users[0]] * 4


# Without root a box knows one uid, and the kernel refuses one it does not know with EINVAL.
NOT_MAPPED = ("EPERM", "EINVAL")

TRIALS = [
    Probe("setuid-root", "attempt(lambda: os.setuid(0))", NOT_MAPPED),
    Probe("setresuid-root", "attempt(lambda: os.setresuid(-1, 0, -1))", NOT_MAPPED),
    Probe("setgid-root", "attempt(lambda: os.setgid(0))", NOT_MAPPED),
    Probe("setgroups", "attempt(lambda: os.setgroups([0]))"),
    Probe(
        "chown-to-root",
        """
        open("file", "w").close()
        attempt(lambda: os.chown("file", 0, 0))
        """,
        NOT_MAPPED,
    ),
    Probe(
        "raise-capabilities",
        """
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        data = (ctypes.c_uint32 * 6)(1, 1, 0, 0, 0, 0)
        attempt(lambda: call(NR.capset, header, data))
        """,
    ),
    Probe("ambient-capability", "attempt(lambda: call(NR.prctl, 47, 2, 21, 0, 0))", compare=False, gvisor=("EINVAL",)),
    Probe(
        "file-capability",
        """
        import struct
        open("file", "w").close()
        value = struct.pack("<5I", 0x02000001, 0xFFFFFFFF, 0, 0x1FF, 0)
        attempt(lambda: os.setxattr("file", "security.capability", value))
        """,
        ("EPERM", "EOPNOTSUPP"),
        gvisor=("ENOTSUP",),
    ),
    Probe(
        "trusted-attribute",
        'open("f", "w").close(); attempt(lambda: os.setxattr("f", "trusted.x", b"1"))',
        ("EPERM", "EOPNOTSUPP"),
    ),
    Probe("negative-nice", "attempt(lambda: os.nice(-5))", ("EPERM", "EACCES")),
    Probe(
        "real-time", "attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))", gvisor=("EINVAL",)
    ),
    Probe("hostname", 'import socket; attempt(lambda: socket.sethostname("owned"))'),
    Probe(
        "memory-device-node", "import stat; attempt(lambda: os.mknod('mem', stat.S_IFCHR | 0o666, os.makedev(1, 1)))"
    ),
    Probe(
        "block-device-node", "import stat; attempt(lambda: os.mknod('disk', stat.S_IFBLK | 0o666, os.makedev(254, 0)))"
    ),
    Probe("user-namespace", "attempt(lambda: call(NR.unshare, 0x10000000))"),
    Probe(
        "uid-map",
        "attempt(lambda: os.write(os.open('/proc/self/uid_map', os.O_WRONLY), b'0 0 1'))",
        ("EROFS", "EACCES", "EPERM"),
        compare=False,
    ),
    Probe(
        "setgroups-file",
        "attempt(lambda: os.open('/proc/self/setgroups', os.O_WRONLY))",
        ("EROFS", "EACCES", "EPERM"),
        gvisor=("ENOENT",),
    ),
    Probe(
        "oom-score",
        # A process that may write it may make itself the first to be killed, and no more.
        "attempt(lambda: os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-500'))",
        ("EROFS", "EACCES", "EPERM"),
        compare=False,
    ),
    try_call("chroot", "ctypes.c_char_p(b'.')"),
    try_call("keyctl", "0", "-3", "1"),
]


@pytest.mark.parametrize("probe", TRIALS, ids=str)
def test_no_privilege_is_gained(box_run: Run, probe: Probe) -> None:
    assert_refused(box_run, probe)


@pytest.mark.parametrize("limit", ["NOFILE", "CPU", "FSIZE"])
def test_a_hard_limit_cannot_be_raised(box_run: Run, limit: str) -> None:
    program = f"""
import resource
hard = resource.getrlimit(resource.RLIMIT_{limit})[1]
if hard == resource.RLIM_INFINITY:
    print("unlimited")
else:
    try:
        resource.setrlimit(resource.RLIMIT_{limit}, (hard, hard + 1))
        print("BREACH", resource.getrlimit(resource.RLIMIT_{limit}))
    except ValueError:
        print("refused")
"""
    assert said(box_run(program)) == "refused"


def test_a_core_dump_cannot_be_had(box_run: Run) -> None:
    result = box_run("import os; os.abort()", artifacts=["**/*"])
    assert (result.outcome.value, result.signal) == ("signaled", 6)
    assert [name for name in result.artifacts if "core" in name] == []


CRASH = "import os; os.abort()"


def test_the_limit_of_cores_stays_what_it_is(box_run: Run) -> None:
    """Programs that keep secrets set it to 0, and go on."""
    program = """
import resource
before = resource.getrlimit(resource.RLIMIT_CORE)
for value in (0, 1 << 20):
    resource.setrlimit(resource.RLIMIT_CORE, (value, value))
print(before, resource.getrlimit(resource.RLIMIT_CORE))
"""
    assert said(box_run(program)) == "(1, 1) (1, 1)"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may name a handler of crashes")
def test_a_crash_starts_no_handler_of_the_machine(box_run: Run, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    handler = tmp_path / "handler"
    handler.write_text(f"#!/bin/sh\ncat > {seen}\n")
    handler.chmod(0o755)
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_text()
    pattern.write_text(f"|{handler}")
    try:
        for code in (CRASH, f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); {CRASH}"):
            assert box_run(code).signal == signal.SIGABRT
        assert box_run("kill -ABRT $$", "shell").signal == signal.SIGABRT
        assert not seen.exists()
        # What another limit does, outside.
        subprocess.run(["sh", "-c", "ulimit -c 0; kill -ABRT $$"], check=False)
        deadline = time.monotonic() + patient(10)
        while not seen.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen.exists()
    finally:
        pattern.write_text(before)


def test_a_setuid_file_gives_nothing(box_run: Run) -> None:
    program = """
import os, shutil, subprocess
shutil.copy(shutil.which("id"), "id")
os.chmod("id", 0o6755)
print(subprocess.run(["./id", "-u"], capture_output=True, text=True).stdout)
"""
    assert is_user(said(box_run(program)))


@native_only("an engine mounts its own file systems; no_new_privs makes setuid of no use on all of them")
def test_setuid_is_off_on_every_mount(box_run: Run) -> None:
    program = """
import os
for line in open("/proc/self/mountinfo"):
    point = line.split()[4]
    if not os.statvfs(point).f_flag & os.ST_NOSUID:
        print("BREACH", point)
"""
    assert said(box_run(program)) == ""
    assert outside(program) != ""


@pytest.mark.parametrize(
    "command",
    ["su -c id", "sudo -n id", "newgrp root", "pkexec id", "mount -t tmpfs none /tmp", "chsh -s /bin/sh root"],
)
def test_programs_made_to_give_privilege_do_not(box_run: Run, command: str) -> None:
    # What the command itself says is apart: some ask for a password even where nobody can type one.
    result = box_run(f"{command} </dev/null >&2; code=$?; id -u; exit $code", "shell")
    assert result.exit_code != 0
    assert is_user(result.stdout.decode().strip())
    assert b"uid=0" not in result.stderr


def test_no_new_privileges_cannot_be_taken_back(box_run: Run) -> None:
    assert said(box_run(python("attempt(lambda: call(NR.prctl, 38, 0, 0, 0, 0))"))) == "denied EINVAL"


def test_the_system_call_filter_cannot_be_taken_back(box_run: Run) -> None:
    program = python(
        """
        attempt(lambda: call(NR.prctl, 22, 0, 0, 0, 0))
        attempt(lambda: call(NR.unshare, 0x10000000))
        """
    )
    assert said(box_run(program)).split("\n") == ["denied EINVAL", "denied EPERM"]
