"""Package target: the properties of an image that decide which packages fit, asked of its own interpreters in a box."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tidebox.errors import PackageUnresolvable

# Runs in a box of the image, whose interpreter may be anything from 3.9 on.
PYTHON_QUESTION = """
import json, os, platform, site, sys, sysconfig
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (ValueError, OSError):
    libc = "musl" if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "") else ""
places = site.getsitepackages()
purelib = sysconfig.get_path("purelib")
print(json.dumps({
    "implementation": sys.implementation.name,
    "version": "%d.%d" % sys.version_info[:2],
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "machine": platform.machine(),
    "libc": libc,
    "site": purelib if purelib in places else places[0],
    "places": ":".join(places),
    "namespaces": ":".join(
        f"{place}/{name}"
        for place in places
        if os.path.isdir(place)
        for name in os.listdir(place)
        if name.endswith("-nspkg.pth")
    ),
    "executable": sys.executable,
}))
"""
NODE_QUESTION = (
    "const report = process.report.getReport().header;"
    "console.log(JSON.stringify({arch: process.arch, libc: report.glibcVersionRuntime ? 'glibc' : 'musl'}))"
)
MAX_ANSWER = 64 * 1024

# The glibc versions for which the resolver knows what fits.
_MANYLINUX = (17, 28, *range(31, 41))
_PLACE = re.compile(r"(?:/[A-Za-z0-9._+-]+){1,12}\Z")
_MAX_PLACES = 8
_NEEDED = "packages need a CPython of 3.9 or newer in the image, on Linux with glibc or musl"


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """The Python of an image."""

    version: str
    platform: str
    """As the resolver names it."""
    site: str
    """Directory that packages are installed in."""
    executable: str
    others: str
    """Other directories in which it looks for packages, with colons between."""
    namespaces: str
    """Files of packages it has that claim a name for themselves which several packages share."""
    alone: str = ""
    """Whether its packages are all that programs have: ``yes`` or nothing."""
    root: str = ""
    """The digest of the root file system that it is of; empty for the machine's own. It says all the above of itself
    and makes the bytecode of a layer, so nobody else's programs get what it made."""

    def described(self) -> dict[str, str]:
        """All that makes a difference to a layer."""
        return {
            "version": self.version,
            "platform": self.platform,
            "site": self.site,
            "executable": self.executable,
            "others": self.others,
            "namespaces": self.namespaces,
            "alone": self.alone,
            "root": self.root,
        }


@dataclass(frozen=True, slots=True)
class NodeTarget:
    """The Node of an image."""

    arch: str
    libc: str


def read_python(answer: bytes) -> PythonTarget:
    """Parse the answer of the image's Python; an image can say anything."""
    told = _read(answer)
    version, site, executable = told.get("version", ""), told.get("site", ""), told.get("executable", "")
    places = [place for place in told.get("places", "").split(":") if place not in ("", site)][:_MAX_PLACES]
    namespaces = list(filter(None, told.get("namespaces", "").split(":")))
    well_formed = re.fullmatch(r"3\.\d{1,2}", version) and all(
        _PLACE.match(path) and ".." not in path.split("/") for path in (site, executable, *places, *namespaces)
    )
    if not well_formed or told.get("implementation") != "cpython" or told.get("free_threaded"):
        raise PackageUnresolvable(_NEEDED, field="packages")
    platform = _platform(told.get("machine", ""), told.get("libc", ""))
    return PythonTarget(version, platform, site, executable, ":".join(places), ":".join(namespaces))


def read_node(answer: bytes) -> NodeTarget:
    """Parse the answer of the image's Node."""
    told = _read(answer)
    arch, libc = told.get("arch", ""), told.get("libc", "")
    if not re.fullmatch(r"[a-z0-9]{2,16}", arch) or libc not in ("glibc", "musl"):
        raise PackageUnresolvable("Node packages need a Node in the image", field="packages")
    return NodeTarget(arch, libc)


def _read(answer: bytes) -> dict[str, Any]:
    try:
        told = json.loads(answer[:MAX_ANSWER])
    except ValueError:
        told = None
    if not isinstance(told, dict) or not all(isinstance(value, (str, bool)) for value in told.values()):
        raise PackageUnresolvable("the interpreter of the image does not say which packages fit", field="packages")
    return told


def _platform(machine: str, libc: str) -> str:
    if machine not in ("x86_64", "aarch64", "riscv64"):
        raise PackageUnresolvable(f"there are no packages for {machine[:32]!r}", field="packages")
    if libc == "musl":
        return f"{machine}-unknown-linux-musl"
    found = re.fullmatch(r"glibc 2\.(\d{1,3})", libc)
    minor = max((known for known in _MANYLINUX if found and known <= int(found[1])), default=None)
    if minor is None:
        raise PackageUnresolvable(_NEEDED, field="packages")
    return f"{machine}-manylinux_2_{minor}"
