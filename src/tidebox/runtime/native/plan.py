"""Native box set-up as data: pure functions from a specification to an ordered list of set-up steps.

A template plan lays an image out once; a box plan puts the root of a box together from that, and adds what is its own.
The spawner executes both and fails closed, naming the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tidebox.model.box import TRUST_FILE
from tidebox.model.launch import SCRATCH

Step = list[object]
Plan = list[Step]

WORKSPACE = "/workspace"
# In a template: where the root of a box is put together, what comes on top of its image, and nothing.
BOX_ROOT, _LAYER, _EMPTY = "/.tidebox/root", "/.tidebox/layer", "/.tidebox/empty"
# The image itself, directories of the machine, and packages on top of both.
_IMAGE, _SHARED, _PACKAGES = "/.tidebox/image", "/.tidebox/shared", "/.tidebox/packages"
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
# What the kernel counts for the whole machine or for a user, each bounded for a box.
MOST_TERMINALS = 64
MOST_BY_USER_NAMESPACE = (("max_inotify_instances", 8), ("max_inotify_watches", 8192))
MOST_BY_RLIMIT = (("sigpending", 1024), ("msgqueue", 819_200))
# Where distributions have the certificates that programs trust.
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_PASSWD = b"""root:x:0:0:root:/:/usr/sbin/nologin
user:x:1000:1000:user:/workspace:/bin/sh
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
"""
_GROUP = b"root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"
_HOSTS = b"127.0.0.1 localhost tidebox\n::1 localhost\n"
_NSSWITCH = b"passwd: files\ngroup: files\nhosts: files\n"
# Of boxes whose network leads out: the resolver is theirs alone, and answers at once or soon.
_OUTWARD_FILES = (
    ("resolv.conf", b"nameserver 127.0.0.1\noptions timeout:10 attempts:2\n"),
    ("nsswitch.conf", _NSSWITCH.replace(b"hosts: files", b"hosts: files dns")),
)

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
    """The properties of the machine that matter to a plan."""

    directories: tuple[str, ...]
    """Directories that boxes see of it: system directories, what is mounted in those, and interpreters that live
    elsewhere; those that contain others come before them."""
    files: tuple[str, ...]
    """Files that they see of it besides: interpreters that are one file, and files that something is mounted on."""
    system_links: tuple[tuple[str, str], ...]
    """System directories that are links, with their targets."""
    etc: tuple[tuple[str, str | None], ...]
    """Paths in /etc that boxes have a copy of; with the target where it is a link."""
    masked_files: tuple[str, ...]
    masked_directories: tuple[str, ...]
    memfd_noexec: bool
    links: tuple[tuple[str, str], ...] = ()
    """Names to put on the box's PATH, each with the path of the real program."""
    packaged: tuple[tuple[str, str], ...] = ()
    """Paths in /etc that boxes have a copy of as long as the file is as its package brought it, each with its MD5."""
    launchers: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """Packages on top of an image."""

    path: str
    """Path of their files on this machine."""
    directories: frozenset[str]
    """In which directories of the machine that boxes see they have files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxShape:
    """The mount state of a box: what cannot be changed once it stands."""

    workspace_bytes: int
    workspace_inodes: int
    tmp_bytes: int
    shm_bytes: int
    executable: bool
    """Whether files in /workspace and /tmp may be executed."""
    scratch: str = ""
    """``exec`` or ``noexec`` where there is a file system at /scratch, by whether files in it may be."""


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """Which files a box can have for itself, though their content is the image's, on this machine."""

    overlay: bool
    """Those of the image."""
    devices: bool
    """Those in /dev."""


def template_plan(
    facts: HostFacts,
    rootfs: str | None,
    executable: bool,
    own_devices: bool,
    layers: Sequence[LayerFacts] = (),
    *,
    egress: bool = False,
    scratch: bool = False,
) -> Plan:
    """The steps that lay out an image for its boxes: ``rootfs`` is its directory, None for the machine's own system.

    With ``egress`` names are asked for of the resolver in their network; with ``scratch`` they have /scratch.

    The template stands on a root with nothing but that. ``own_devices`` says that boxes are given theirs.
    """
    plan: Plan = [["private"], ["stage"], ["root_tmpfs"]]
    places = ("/proc", "/dev", BOX_ROOT, _EMPTY, f"{_LAYER}/.tidebox/empty")
    plan += [["mkdir", "/new" + path, 0o755] for path in places]
    plan += [["file", f"/new{_LAYER}/.tidebox/{name}", content] for name, content in facts.launchers]
    plan += [["file", f"/new{_LAYER}/etc/{name}", content] for name, content in _OUTWARD_FILES if egress]
    plan += [["mkdir", f"/new{_LAYER}{SCRATCH}", 0o755]] if scratch else []
    plan += _host_image(facts) if rootfs is None else [_share(rootfs, _IMAGE)]
    plan += [_share(layer.path, _packages(number)) for number, layer in enumerate(layers)]
    plan += _devices(("null",) if own_devices else DEVICES)
    # A proc mount may be made in a box only while a whole one is in sight; the box's own covers it.
    plan += [["proc", "/new/proc", ""], ["enter"]]
    if not executable and facts.memfd_noexec:
        # A box's files that cannot be executed could still be through a memfd. Pid namespaces made below this one
        # inherit it.
        plan += [["write", "/proc/sys/vm/memfd_noexec", "2"]]
    return [*plan, ["read_only_root"]]


def _host_image(facts: HostFacts) -> Plan:
    """An image with the places for the machine's directories, and those beside it: one file system cannot have both."""
    image = "/new" + _IMAGE
    plan: Plan = [["mkdir", image + "/etc/ssl", 0o755]]
    plan += [["symlink", link, image + path] for path, link in facts.system_links]
    for path, link in facts.etc:
        plan.append(["symlink", link, image + path] if link else ["copy", "/old" + path, image + path])
    plan.append(["copy_packaged", "/old", image, [list(item) for item in facts.packaged]])
    for name, content in (("passwd", _PASSWD), ("group", _GROUP), ("hosts", _HOSTS), ("nsswitch.conf", _NSSWITCH)):
        plan.append(["file", f"{image}/etc/{name}", content])
    for name in (".tidebox", "dev", "proc", "tmp", "workspace", "run", "var/tmp", "home", "root", "opt/tidebox/bin"):
        plan.append(["mkdir", f"{image}/{name}", 0o755])
    plan += [["symlink", target, f"{image}/opt/tidebox/bin/{name}"] for name, target in facts.links]
    for place, path in _shared(facts):
        if not any(path.startswith(parent + "/") for parent in facts.directories):
            plan.append(["file", image + path, b""] if path in facts.files else ["mkdir", image + path, 0o755])
        plan.append(_share(path, place))
    return plan


def host_root_plan(facts: HostFacts, target: str) -> Plan:
    """The steps that make the image of the machine's own system at ``target``, but for what is shared with it."""
    image = "/new" + _IMAGE

    def moved(argument: object) -> object:
        if not isinstance(argument, str):
            return argument
        if argument.startswith("/old"):
            return argument.removeprefix("/old")
        return target + argument.removeprefix(image) if argument.startswith(image) else argument

    return [[moved(argument) for argument in step] for step in _host_image(facts) if step[0] != "bind"]


def _shared(facts: HostFacts) -> list[tuple[str, str]]:
    """Pair the place in a template with each directory and file of the machine that boxes see."""
    return [(f"{_SHARED}/{number}", path) for number, path in enumerate((*facts.directories, *facts.files))]


def _packages(number: int) -> str:
    return f"{_PACKAGES}/{number}"


def _share(path: str, place: str) -> Step:
    return ["bind", "/old" + path, "/new" + place, ["ro", "nosuid", "nodev"]]


def _devices(names: tuple[str, ...]) -> Plan:
    plan: Plan = [["tmpfs", "/new/dev", ["nosuid", "noexec"], "mode=0755,size=64k"]]
    plan += [["bind", "/old/dev/" + name, "/new/dev/" + name, []] for name in names]
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


def box_plan(
    facts: HostFacts,
    shape: BoxShape,
    *,
    single: bool,
    host_root: bool,
    own: OwnFiles,
    layers: Sequence[LayerFacts] = (),
) -> Plan:
    """The steps that make a process in new namespaces of a template a box of its own.

    Where it is to have a ``single`` program nobody needs a /proc that can be written to. ``host_root`` says that the
    image is the machine's own system. ``layers`` can be on top of it only where files of the image can be its own.
    """
    owner = f"uid={USER_ID},gid={USER_ID}"
    attributes = _attributes(shape.executable)
    half = max(shape.workspace_inodes // 2, 64)
    workspace = f"{owner},mode=0755,size={shape.workspace_bytes},nr_inodes={shape.workspace_inodes}"
    shared_memory = f"{owner},mode=1777,size={shape.shm_bytes},nr_inodes={half}"
    plan: Plan = [
        ["cgroup_namespace"],
        ["hostname", HOSTNAME],
        *_box_root(facts, host_root, own, layers),
        ["proc", BOX_ROOT + "/proc", "hidepid=2"],
        *_counts(),
        ["cover", BOX_ROOT + "/dev/null", [f"{BOX_ROOT}/proc/{name}" for name in facts.masked_files]],
        ["cover", BOX_ROOT + "/.tidebox/empty", [f"{BOX_ROOT}/proc/{name}" for name in facts.masked_directories]],
        ["tmpfs", BOX_ROOT + WORKSPACE, attributes, workspace],
        ["tmpfs", BOX_ROOT + "/tmp", attributes, f"{owner},mode=1777,size={shape.tmp_bytes},nr_inodes={half}"],
        ["tmpfs", BOX_ROOT + "/dev/shm", ["nosuid", "nodev", "noexec"], shared_memory],
        ["devpts", BOX_ROOT + "/dev/pts", MOST_TERMINALS],
    ]
    if shape.scratch:
        scratch = f"{owner},mode=0755,size={shape.workspace_bytes},nr_inodes={shape.workspace_inodes}"
        plan.append(["tmpfs", BOX_ROOT + SCRATCH, _attributes(shape.scratch == "exec"), scratch])
    if single:
        plan.append(["read_only", BOX_ROOT + "/proc"])
    # Not pivot_root, which has to wait for every processor to let go of the old root. Around the new one is nothing but
    # the same image, and who has no capability does not leave it.
    return [*plan, ["chroot", BOX_ROOT]]


def _attributes(executable: bool) -> list[str]:
    return ["nosuid", "nodev"] if executable else ["nosuid", "nodev", "noexec"]


def trust_plan(certificate: bytes) -> Plan:
    """The steps that have the programs of one box trust a certificate besides those of its image."""
    return [
        ["tmpfs", "/run", ["nosuid", "nodev", "noexec"], "mode=0755,size=1m,nr_inodes=16"],
        ["trust", list(_BUNDLES), TRUST_FILE, certificate],
        ["read_only", "/run"],
    ]


def stage_plan(facts: HostFacts, *, host_root: bool, overlay: bool) -> Plan:
    """The steps that make a root like that of a box in a template, for what its programs will find loaded."""
    return [
        *_box_root(facts, host_root, OwnFiles(overlay=overlay, devices=False), []),
        ["proc", BOX_ROOT + "/proc", ""],
        ["tmpfs", BOX_ROOT + WORKSPACE, ["nosuid", "nodev", "noexec"], "mode=0755,size=64m"],
        ["tmpfs", BOX_ROOT + "/tmp", ["nosuid", "nodev", "noexec"], "mode=1777,size=64m"],
    ]


def _box_root(facts: HostFacts, host_root: bool, own: OwnFiles, layers: Sequence[LayerFacts]) -> Plan:
    """The image, so that locks and watches on its files are the box's own: a file system over it for each box."""
    shared = _shared(facts) if host_root else []
    if own.overlay:
        plan = overlays(facts, host_root, layers)
        plan += [["bind_tree", place, BOX_ROOT + path] for place, path in shared if path in facts.files]
    else:
        plan = [["bind_tree", _IMAGE, BOX_ROOT]]
        plan += [["bind_tree", place, BOX_ROOT + path] for place, path in shared]
        plan.append(["bind_tree", _LAYER + "/.tidebox", BOX_ROOT + "/.tidebox"])
    plan.append(["attach_devices", BOX_ROOT + "/dev"] if own.devices else ["bind_tree", "/dev", BOX_ROOT + "/dev"])
    return plan


def overlays(facts: HostFacts, host_root: bool, layers: Sequence[LayerFacts] = ()) -> Plan:
    """The file systems of a box over those of the image: what a machine may refuse."""
    on_top = list(enumerate(layers))
    plan: Plan = [["overlay", BOX_ROOT, [_LAYER, *(_packages(number) for number, _ in on_top), _IMAGE]]]
    for place, path in _shared(facts) if host_root else ():
        if path not in facts.files:
            above = [_packages(number) + path for number, layer in on_top if path in layer.directories]
            plan.append(["overlay", BOX_ROOT + path, [*above, place, _EMPTY]])
    return plan


def _counts() -> Plan:
    return [["write", f"{BOX_ROOT}/proc/sys/user/{name}", str(most)] for name, most in MOST_BY_USER_NAMESPACE]


def contains(directories: tuple[str, ...], path: str) -> bool:
    """Whether ``path`` lies in one of ``directories``."""
    return any(PurePosixPath(path).is_relative_to(directory) for directory in directories)
