"""Python packages: resolved by uv to wheels with hashes, for the interpreter of the image and not for our own."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from tidebox.errors import PackageUnresolvable, RuntimeUnavailable
from tidebox.model.packages import python_name
from tidebox.runtime.layers import Lock, Locked
from tidebox.runtime.packaging.target import PythonTarget
from tidebox.runtime.packaging.tools import PackageTools, Said, Stop

_SECONDS = 120.0
_MAX_LOCK_BYTES = 16 << 20
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\Z")
_VERSION = re.compile(r"[A-Za-z0-9.!+_-]{1,100}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def resolve(
    requirements: Sequence[str],
    target: PythonTarget,
    directory: Path,
    tools: PackageTools,
    stop: Stop,
    preferred: Lock | None = None,
) -> Lock:
    """The packages that meet the requirements; raises ``PackageUnresolvable`` with what uv says of them.

    Where the requirements can be met with the versions of ``preferred``, these are taken.
    """
    (directory / "requirements.in").write_text("\n".join(requirements) + "\n")
    names = ", ".join(sorted({python_name(item) for item in requirements}))
    said = Said(1, b"", "")
    if preferred is not None:
        pins = "".join(f"{item.name}=={item.version}\n" for item in preferred.packages)
        (directory / "constraints.txt").write_text(pins)
        said = _compile(directory, target, tools, stop, names, "--constraints", "constraints.txt")
    if said.code != 0:
        said = _compile(directory, target, tools, stop, names)
    if said.code != 0:
        reason = said.reason(said.errors.removeprefix("error: ").replace("cause: ", ""), _tells) or "uv failed"
        raise PackageUnresolvable(f"cannot resolve {names}: {reason}", field="packages", packages=names)
    return Lock("python", target.described(), _read(directory, target))


def _tells(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(("Resolved", "No solution found", "warning:", "hint:"))


def _compile(directory: Path, target: PythonTarget, tools: PackageTools, stop: Stop, names: str, *more: str) -> Said:
    command = [
        *(_uv(), "pip", "compile", "requirements.in", "--format", "pylock.toml", "-o", "pylock.toml", *more),
        *("--python-version", target.version, "--python-platform", target.platform),
        # Ours is only looked at: what is resolved for is said above.
        *("--python", getattr(sys, "_base_executable", None) or sys.executable, "--no-python-downloads"),
        # Wheels only: a source distribution is a program, and even its metadata would be made by running it.
        *("--no-build", "--no-cache"),
        *("--no-header", "--no-annotate", "--quiet", "--color", "never"),
    ]
    return tools.run(command, directory, stop, purpose=names, seconds=_SECONDS)


def _uv() -> str:
    import uv

    try:
        return str(uv.find_uv_bin())
    except FileNotFoundError:
        raise RuntimeUnavailable("packages need the program uv, which comes with tidebox: install it again") from None


def _read(directory: Path, target: PythonTarget) -> tuple[Locked, ...]:
    path = directory / "pylock.toml"
    if path.stat().st_size > _MAX_LOCK_BYTES:
        raise PackageUnresolvable("the lock is too large", field="packages")
    try:
        packages = tomllib.loads(path.read_text())["packages"]
        return tuple(_locked(package, target, directory) for package in packages)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise PackageUnresolvable("uv wrote a lock that cannot be read", field="packages") from error


def _locked(package: dict[str, Any], target: PythonTarget, directory: Path) -> Locked:
    name, version = package["name"], package.get("version", "")
    if not _NAME.match(name) or not _VERSION.match(version):
        raise PackageUnresolvable(f"not a package of an index: {name[:80]!r}", field="packages")
    wheels = [(_rank(_file_name(wheel), target), wheel) for wheel in package.get("wheels", ())]
    if not wheels:
        raise PackageUnresolvable(
            f"{name} {version} has no wheel for Python {target.version} on {target.platform}, "
            "and nothing is built from source",
            field="packages",
            package=name,
        )
    wheel = max(wheels, key=lambda item: item[0])[1]
    digest = wheel.get("hashes", {}).get("sha256", "")
    if not _SHA256.match(digest):
        raise PackageUnresolvable(f"the index gives no SHA-256 of {name} {version}", field="packages", package=name)
    source = wheel["url"] if "url" in wheel else (directory / wheel["path"]).resolve().as_uri()
    return Locked(name, version, f"sha256:{digest}", source)


def _file_name(wheel: dict[str, Any]) -> str:
    if "name" in wheel:
        return str(wheel["name"])
    place = urlsplit(wheel["url"]).path if "url" in wheel else wheel["path"]
    return PurePosixPath(unquote(place)).name


def _rank(name: str, target: PythonTarget) -> tuple[int, int, str]:
    """Rank how closely a wheel fits: uv lists only those that do."""
    python, abi, platform = name.removesuffix(".whl").split("-")[-3:]
    exact = "cp" + target.version.replace(".", "")
    return (2 * (platform != "any") + (abi != "none"), exact in python.split("."), name)
