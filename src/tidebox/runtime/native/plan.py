"""What a native box is made of, as data: pure functions from a specification to an ordered list of set-up steps.

A template plan builds an image's read-only root once; a box plan adds what is a box's own. The spawner executes both
and fails closed, naming the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath

Step = list[object]
Plan = list[Step]

WORKSPACE = "/workspace"
USER_ID = 1000
HOSTNAME = "tidebox"

# Of the machine's own /etc a box sees only what programs need to start; never accounts, keys or the network's
# configuration.
ETC_PATTERNS = (
    "alternatives",
    "ca-certificates",
    "fonts",
    "inputrc",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "perl",
    "protocols",
    "python3*",
    "services",
    "ssl/certs",
    "terminfo",
    "timezone",
)
SYSTEM_DIRECTORIES = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_PASSWD = b"""root:x:0:0:root:/:/usr/sbin/nologin
user:x:1000:1000:user:/workspace:/bin/sh
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
"""
_GROUP = b"root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"
_HOSTS = b"127.0.0.1 localhost tidebox\n::1 localhost\n"
_NSSWITCH = b"passwd: files\ngroup: files\nhosts: files\n"

# Parts of /proc that describe the machine or its kernel rather than the box. What only the machine's root may read
# needs no mask: nobody in a box is that root.
MASKED_FILES = (
    "cmdline",
    "diskstats",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "modules",
    "partitions",
    "sched_debug",
    "swaps",
    "sysrq-trigger",
    "timer_list",
)
MASKED_DIRECTORIES = ("acpi", "asound", "bus", "driver", "fs", "irq", "scsi")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What of the machine matters to a plan."""

    system_directories: tuple[tuple[str, str | None], ...]
    """Those that exist; the second item is the target where it is a symbolic link. The same for ``etc_shared``."""
    etc_shared: tuple[tuple[str, str | None], ...]
    etc_copied: tuple[tuple[str, bytes], ...] = field(repr=False)
    extra_prefixes: tuple[str, ...]
    """Directories of interpreters that live outside the system directories."""
    masked_files: tuple[str, ...]
    masked_directories: tuple[str, ...]
    memfd_noexec: bool
    links: tuple[tuple[str, str], ...] = ()
    """Names to put on the box's PATH, each with the path of the real program."""
    launchers: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxShape:
    """The mount state of a box: what cannot be changed once it stands."""

    workspace_bytes: int
    workspace_inodes: int
    tmp_bytes: int
    shm_bytes: int
    executable: bool
    """Whether files in /workspace and /tmp may be executed."""


def template_plan(facts: HostFacts, rootfs: str | None, executable: bool) -> Plan:
    """The steps that build the root of an image: ``rootfs`` is its directory, None for the machine's own system."""
    plan: Plan = [["private"], ["stage"]]
    plan += _host_root(facts) if rootfs is None else [["root_bind", rootfs]]
    plan += _devices()
    plan += [
        ["tmpfs", "/new/.tidebox", ["nosuid", "nodev"], "mode=0755,size=1m"],
        ["mkdir", "/new/.tidebox/empty", 0o555],
    ]
    plan += [["file", f"/new/.tidebox/{name}", content] for name, content in facts.launchers]
    plan += [["restrict", "/new/.tidebox", ["ro"]]]
    # A proc mount may be made in a box only while a whole one is in sight; the box's own covers it.
    plan += [["proc", "/new/proc", ""], ["enter"]]
    if not executable and facts.memfd_noexec:
        # A box's files that cannot be executed could still be through a memfd. Pid namespaces made below this one
        # inherit it.
        plan += [["write", "/proc/sys/vm/memfd_noexec", "2"]]
    if rootfs is None:
        plan += [["read_only_root"]]
    return plan


def _host_root(facts: HostFacts) -> Plan:
    plan: Plan = [["root_tmpfs"]]
    plan += [["mkdir", "/new/etc/ssl", 0o755]]
    for path, link in (*facts.system_directories, *facts.etc_shared):
        plan.append(["symlink", link, "/new" + path] if link else _system_bind(path))
    # Copied, not bound: every mount is one more to copy for each box.
    plan += [["file", "/new" + path, content] for path, content in facts.etc_copied]
    for name, content in (("passwd", _PASSWD), ("group", _GROUP), ("hosts", _HOSTS), ("nsswitch.conf", _NSSWITCH)):
        plan.append(["file", "/new/etc/" + name, content])
    plan += [_system_bind(prefix) for prefix in facts.extra_prefixes]
    for name in ("dev", "proc", "tmp", "workspace", "run", "var/tmp", "home", "root", ".tidebox", "opt/tidebox/bin"):
        plan.append(["mkdir", "/new/" + name, 0o755])
    plan += [["symlink", target, "/new/opt/tidebox/bin/" + name] for name, target in facts.links]
    return plan


def _system_bind(path: str) -> Step:
    return ["bind", "/old" + path, "/new" + path, ["ro", "nosuid", "nodev"]]


def _devices() -> Plan:
    plan: Plan = [["tmpfs", "/new/dev", ["nosuid", "noexec"], "mode=0755,size=64k"]]
    plan += [["bind", "/old/dev/" + name, "/new/dev/" + name, []] for name in DEVICES]
    plan += [["mkdir", "/new/dev/pts", 0o755], ["mkdir", "/new/dev/shm", 0o755]]
    for target, name in (
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    ):
        plan.append(["symlink", target, "/new/dev/" + name])
    plan.append(["restrict", "/new/dev", ["ro", "nosuid", "noexec"]])
    return plan


def box_plan(facts: HostFacts, shape: BoxShape, single: bool) -> Plan:
    """The steps that make a process in new namespaces of a template a box of its own.

    Where it is to have a ``single`` program nobody needs a /proc that can be written to.
    """
    own = f"uid={USER_ID},gid={USER_ID}"
    attributes = ["nosuid", "nodev"] if shape.executable else ["nosuid", "nodev", "noexec"]
    half = max(shape.workspace_inodes // 2, 64)
    workspace = f"{own},mode=0755,size={shape.workspace_bytes},nr_inodes={shape.workspace_inodes}"
    shared_memory = f"{own},mode=1777,size={shape.shm_bytes},nr_inodes={half}"
    plan: Plan = [
        ["cgroup_namespace"],
        ["hostname", HOSTNAME],
        ["proc", "/proc", "hidepid=2"],
        ["cover", "/dev/null", ["/proc/" + name for name in facts.masked_files]],
        ["cover", "/.tidebox/empty", ["/proc/" + name for name in facts.masked_directories]],
        ["tmpfs", WORKSPACE, attributes, workspace],
        ["tmpfs", "/tmp", attributes, f"{own},mode=1777,size={shape.tmp_bytes},nr_inodes={half}"],
        ["tmpfs", "/dev/shm", ["nosuid", "nodev", "noexec"], shared_memory],
        ["devpts", "/dev/pts"],
    ]
    return [*plan, ["read_only", "/proc"]] if single else plan


def contains(directories: tuple[str, ...], path: str) -> bool:
    """Whether ``path`` lies in one of ``directories``."""
    return any(PurePosixPath(path).is_relative_to(directory) for directory in directories)
