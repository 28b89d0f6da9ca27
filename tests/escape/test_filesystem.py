"""A box sees its image and its workspace, writes only its own memory, and finds no way around either."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.escape.probes import Probe, Run, assert_refused, on_gvisor, outside, python, said, try_call
from tests.runtimes import RUNTIME, native_only
from tidebox.runtime.native.configuration import package_files
from tidebox.runtime.native.plan import ETC_PATTERNS

HIDDEN = ("ENOENT", "EACCES", "ENOTDIR")


@pytest.mark.parametrize(
    "directory",
    [
        "/",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/local",
        "/etc",
        "/bin",
        "/lib",
        "/sbin",
        "/var",
        "/home",
        "/root",
        "/run",
        "/opt",
        "/.tidebox",
        "/dev",
        "/proc",
    ],
)
def test_nothing_of_the_image_can_be_written(box_run: Run, directory: str) -> None:
    program = python(
        f"""
        def plant():
            path = os.path.join({directory!r}, "tidebox-planted")
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
            os.unlink(path)
        attempt(plant)
        """
    )
    assert said(box_run(program)) in {"denied EROFS", "denied EACCES", "denied EPERM", "denied ENOENT"}


WALK = """
import hashlib, json, os
found = {}
for directory, names, files in os.walk("/etc"):
    for name in files:
        path = os.path.join(directory, name)
        if not os.path.islink(path):
            found[path] = hashlib.sha256(open(path, "rb").read()).hexdigest()
print(json.dumps(found))
"""
# What boxes have of their own, and never of the machine.
OWN_ETC = {"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf"}


@native_only("/etc is the image's, but for hosts, hostname and resolv.conf, which an engine writes")
def test_all_that_is_visible_of_etc_is_public(box_run: Run) -> None:
    """Named beforehand as what programs need, or as its package brought it; and everybody may read it."""
    found: dict[str, str] = json.loads(said(box_run(WALK)))
    packaged = dict(package_files())
    named = tuple("/etc/" + pattern.rstrip("*") for pattern in ETC_PATTERNS)
    assert set(found) >= OWN_ETC
    for path in set(found) - OWN_ETC:
        assert os.stat(path).st_mode & stat.S_IROTH, path
        assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == found[path], path
        assert path.startswith(named) or path in packaged, path
    for path in ("/etc/shadow", "/etc/sudoers", "/etc/machine-id", "/etc/resolv.conf", "/etc/fstab", "/etc/hostname"):
        assert path not in found
    if os.path.exists("/etc/matplotlibrc"):
        assert "/etc/matplotlibrc" in found


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/hosts", "/usr/bin/env", "/bin/sh"])
def test_no_file_of_the_image_can_be_opened_for_writing(box_run: Run, path: str) -> None:
    assert_refused(
        box_run,
        Probe(
            path,
            f"attempt(lambda: os.open({path!r}, os.O_WRONLY))",
            ("EROFS", "EACCES", "ETXTBSY"),
            compare=path != "/bin/sh",
        ),
    )


def test_preloading_a_library_for_others_is_impossible(box_run: Run) -> None:
    assert_refused(
        box_run,
        Probe(
            "preload",
            "attempt(lambda: os.open('/etc/ld.so.preload', os.O_CREAT | os.O_RDWR, 0o644))",
            ("EROFS", "EACCES"),
            compare=False,
        ),
    )


@pytest.fixture
def planted(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file of this machine with a secret in it, where machines keep such."""
    directory = Path(request.param).expanduser()
    if not os.access(directory, os.W_OK):
        pytest.skip(f"{directory} is not writable here")
    descriptor, name = tempfile.mkstemp(prefix="tidebox-canary-", dir=directory)
    os.write(descriptor, b"secret of the machine")
    os.close(descriptor)
    os.chmod(name, 0o644)
    try:
        yield Path(name)
    finally:
        os.unlink(name)


@pytest.mark.parametrize("planted", ["/tmp", "/var/tmp", "/dev/shm", "/run", "/srv", "~"], indirect=True)
def test_files_of_the_machine_are_not_visible(box_run: Run, planted: Path) -> None:
    program = python(f"attempt(lambda: open({str(planted)!r}).read())")
    assert said(box_run(program)) in {f"denied {name}" for name in HIDDEN}
    assert outside(program, shield=False) in {None, "BREACH secret of the machine"}


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/machine-id",
        "/etc/resolv.conf",
        "/etc/ssh",
        "/root/.ssh",
        "/root/.bashrc",
        "/var/lib",
        "/var/log",
        "/boot",
        "/sys/kernel",
        "/sys/fs/cgroup",
        "/run/systemd",
        "/run/dbus",
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/containerd",
    ],
)
def test_places_that_tell_of_the_machine_are_not_there(box_run: Run, path: str) -> None:
    program = python(f"attempt(lambda: os.listdir({path!r}) if os.path.isdir({path!r}) else open({path!r}).read())")
    if RUNTIME != "native" and path == "/sys/fs/cgroup":
        pytest.skip("native only: an engine shows a container its own control groups, read-only")
    answer = said(box_run(program))
    # An image may bring an empty directory of that name; the machine's own content is what must not show.
    # So may an engine an empty file.
    assert answer in {f"denied {name}" for name in HIDDEN} or answer in ("BREACH []", "BREACH")


@pytest.mark.parametrize("path", ["/home", "/root", "/run", "/srv", "/mnt", "/media"])
def test_directories_of_people_and_services_are_empty(box_run: Run, path: str) -> None:
    program = f"import os; print(sorted(os.listdir({path!r})) if os.path.isdir({path!r}) else [])"
    # An interpreter that lives in a home directory shows as its own prefix, and as nothing beside it.
    assert said(box_run(program)) in {"[]", "['.pyenv']"}


MOUNTING = [
    Probe("tmpfs", "attempt(lambda: call(NR.mount, b'x', b'/tmp', b'tmpfs', 0, 0))"),
    Probe("bind", "attempt(lambda: call(NR.mount, b'/', b'/tmp', 0, 4096, 0))"),
    Probe("proc", "attempt(lambda: call(NR.mount, b'proc', b'/tmp', b'proc', 0, 0))"),
    Probe("remount-writable", "attempt(lambda: call(NR.mount, 0, b'/', 0, 32 | 4096, 0))"),
    Probe("unmask-proc", "attempt(lambda: call(NR.umount2, b'/proc/kcore', 2))"),
    Probe("pivot-root", "attempt(lambda: call(NR.pivot_root, b'.', b'.'))"),
    Probe("new-mount-namespace", "attempt(lambda: call(NR.unshare, 0x00020000))"),
    Probe("fsopen", "attempt(lambda: call(NR.fsopen, b'tmpfs', 0))"),
    Probe("open-tree", "attempt(lambda: call(NR.open_tree, -100, b'/', 1))"),
    Probe("mount-setattr", "attempt(lambda: call(NR.mount_setattr, -100, b'/', 0, bytes(32), 32))"),
    try_call("move_mount"),
    try_call("fsmount"),
    try_call("fspick"),
]


@pytest.mark.parametrize("probe", MOUNTING, ids=str)
def test_nothing_can_be_mounted(box_run: Run, probe: Probe) -> None:
    assert_refused(box_run, probe)


def test_files_cannot_be_opened_by_handle(box_run: Run) -> None:
    """The "shocker" escape from containers: a handle names any inode of the file system, whatever is mounted."""
    program = python(
        """
        import struct
        handle = ctypes.create_string_buffer(struct.pack("<IiQ", 8, 1, 2), 136)
        root = os.open("/usr", os.O_RDONLY)
        attempt(lambda: call(NR.open_by_handle_at, root, handle, os.O_RDONLY))
        """
    )
    assert said(box_run(program)) == "denied EPERM"
    assert outside(program) != "denied EPERM"


def test_the_way_up_from_the_root_ends_at_the_root(box_run: Run) -> None:
    program = """
import os
fd = os.open("/", os.O_RDONLY)
for _ in range(64):
    fd = os.open("..", os.O_RDONLY, dir_fd=fd)
print(os.path.sameopenfile(fd, os.open("/", os.O_RDONLY)), sorted(os.listdir(fd)) == sorted(os.listdir("/")))
"""
    assert said(box_run(program)) == "True True"


def test_links_in_the_workspace_lead_nowhere_outside(box_run: Run) -> None:
    with tempfile.NamedTemporaryFile(prefix="tidebox-canary-", dir="/tmp") as canary:
        program = python(f"os.symlink({canary.name!r}, 'link'); attempt(lambda: open('link').read())")
        assert said(box_run(program)) == "denied ENOENT"


def test_a_file_of_the_image_cannot_be_linked_into_the_workspace(box_run: Run) -> None:
    assert said(box_run(python("attempt(lambda: os.link('/usr/bin/env', 'env'))"))) in {"denied EXDEV", "denied EPERM"}


@pytest.mark.parametrize("path", ["/workspace", "/tmp", "/dev/shm", "/proc", "/dev"])
def test_mount_points_cannot_be_moved_away(box_run: Run, path: str) -> None:
    answer = said(box_run(python(f"attempt(lambda: os.rename({path!r}, '/workspace/moved'))")))
    assert answer in {"denied EBUSY", "denied EROFS", "denied EXDEV", "denied EACCES", "denied EINVAL"}


def test_the_running_interpreter_cannot_be_overwritten(box_run: Run) -> None:
    """CVE-2019-5736: a program of a container rewrote the runtime through /proc/self/exe."""
    program = python(
        """
        held = os.open("/proc/self/exe", os.O_PATH)
        attempt(lambda: os.open("/proc/self/exe", os.O_WRONLY))
        attempt(lambda: os.open("/proc/self/fd/%d" % held, os.O_WRONLY | os.O_TRUNC))
        """
    )
    refusals = {"denied EROFS", "denied EACCES", "denied ETXTBSY"}
    assert set(said(box_run(program)).split("\n")) <= refusals


@pytest.mark.parametrize(
    "path",
    [
        "kcore",
        "kallsyms",
        "keys",
        "timer_list",
        "sysrq-trigger",
        "iomem",
        "modules",
        "cmdline",
        "interrupts",
        "partitions",
    ],
)
def test_parts_of_proc_about_the_machine_are_masked(box_run: Run, path: str) -> None:
    program = python(f"attempt(lambda: open('/proc/{path}', 'rb').read(64))")
    # The command line of a sandbox's own kernel is always the same.
    own = on_gvisor("BREACH b'BOOT_IMAGE=/vmlinuz-4.4.0-gvisor quiet\\n'") if path == "cmdline" else ()
    assert said(box_run(program)) in {"BREACH b''", "denied ENOENT", "denied EACCES", "denied EPERM", *own}


@pytest.mark.parametrize("path", ["acpi", "bus", "driver", "fs", "irq", "scsi", "asound"])
def test_directories_of_proc_about_the_machine_are_empty(box_run: Run, path: str) -> None:
    assert said(box_run(python(f"attempt(lambda: os.listdir('/proc/{path}'))"))) in {
        "BREACH []",
        "denied ENOENT",
        "denied EACCES",
    }


@pytest.mark.parametrize(
    "path",
    [
        "sysrq-trigger",
        "sys/kernel/core_pattern",
        "sys/kernel/modprobe",
        "sys/kernel/hostname",
        "sys/kernel/ns_last_pid",
        "sys/kernel/yama/ptrace_scope",
        "sys/vm/overcommit_memory",
        "sys/vm/drop_caches",
        "sys/vm/memfd_noexec",
        "sys/fs/binfmt_misc/register",
        "sys/net/ipv4/ip_forward",
        "sys/net/ipv4/ping_group_range",
        "sys/user/max_user_namespaces",
    ],
)
def test_settings_of_the_kernel_cannot_be_written(box_run: Run, path: str) -> None:
    # Only opened, never written: outside a box this must stay harmless.
    program = python(f"attempt(lambda: os.open('/proc/{path}', os.O_WRONLY))")
    assert said(box_run(program)) in {"denied EROFS", "denied EACCES", "denied EPERM", "denied ENOENT"}


@native_only("an engine mounts /sys and the container's own control groups, read-only")
def test_no_control_file_system_is_mounted(box_run: Run) -> None:
    program = """
control = "cgroup cgroup2 sysfs debugfs tracefs securityfs bpf configfs fusectl nfsd binfmt_misc".split()
for line in open("/proc/self/mountinfo"):
    kind = line.split(" - ")[1].split()[0]
    if kind in control:
        print("BREACH", kind, line.split()[4])
"""
    assert said(box_run(program)) == ""


def test_dev_holds_only_harmless_devices(box_run: Run) -> None:
    known = {
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "fd",
        "stdin",
        "stdout",
        "stderr",
        "shm",
        "pts",
        "ptmx",
    }
    if RUNTIME != "native":
        # Message queues of the container's own.
        known |= {"mqueue", "core"}
    assert set(said(box_run("import os; print(*os.listdir('/dev'))")).split()) <= known


@pytest.mark.parametrize(
    "device",
    [
        "mem",
        "kmem",
        "port",
        "kmsg",
        "kvm",
        "fuse",
        "loop-control",
        "net/tun",
        "vhost-vsock",
        "vsock",
        "userfaultfd",
        "console",
        "sda",
        "vda",
    ],
)
def test_devices_of_the_machine_are_not_there(box_run: Run, device: str) -> None:
    assert said(box_run(python(f"attempt(lambda: os.open('/dev/{device}', os.O_RDONLY))"))) in {
        "denied ENOENT",
        "denied EACCES",
    }


# The root of a container is its engine's: the engine's list of devices is what holds there.
_ROOT = ["/", "/usr"] if RUNTIME == "native" else []


@pytest.mark.parametrize("path", ["/workspace", "/tmp", "/dev/shm", *_ROOT, "/proc"])
def test_device_files_are_dead_on_every_mount_but_dev(box_run: Run, path: str) -> None:
    if RUNTIME == "gvisor":
        # Its kernel has no such option, and would let every user make devices.
        program = python(f"import stat; attempt(lambda: os.mknod('{path}/x', stat.S_IFCHR | 0o666, os.makedev(1, 3)))")
        assert said(box_run(program)) == "denied EPERM"
        return
    program = f"import os; print(bool(os.statvfs({path!r}).f_flag & os.ST_NODEV))"
    assert said(box_run(program)) == "True"


def test_terminals_of_the_machine_are_not_visible(box_run: Run) -> None:
    master, slave = os.openpty()
    try:
        assert said(box_run("import os; print(*os.listdir('/dev/pts'))")).split() in ([], ["ptmx"])
    finally:
        os.close(master)
        os.close(slave)


def test_every_writable_mount_is_memory(box_run: Run) -> None:
    """A box leaves nothing on a disk: what it can write is gone with it."""
    program = """
import os
for line in open("/proc/self/mountinfo"):
    fields, kind = line.split(), line.split(" - ")[1].split()[0]
    if not os.statvfs(fields[4]).f_flag & os.ST_RDONLY and kind not in ("tmpfs", "devpts"):
        print("BREACH", kind, fields[4])
"""
    lines = [line for line in said(box_run(program)).split("\n") if line]
    # A device file is opened through its mount; what it is bound from cannot be replaced. An engine's /proc may be
    # written, and holds nothing.
    harmless = ("/dev/", "/proc") if RUNTIME == "docker" else ("/dev/",)
    assert [line for line in lines if not line.split()[2].startswith(harmless)] == []
