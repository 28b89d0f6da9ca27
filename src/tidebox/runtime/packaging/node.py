"""Node packages: resolved and fetched by npm, which runs no script of theirs, and unpacked by us."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidebox.errors import FetchFailed, PackageUnresolvable, RuntimeUnavailable
from tidebox.model.packages import node_name
from tidebox.runtime.layers import Lock, Locked
from tidebox.runtime.packaging.fetch import check_digest, digest_of, too_large
from tidebox.runtime.packaging.target import NodeTarget
from tidebox.runtime.packaging.tools import PackageTools, Said, Stop
from tidebox.runtime.packaging.tree import Tree, check_commands

_SECONDS = 180.0
_AT_ONCE = 50
_MOST_NAMED = 8
_MAX_MANIFEST = 1 << 20
_NAME = r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-zA-Z0-9~_-][a-zA-Z0-9._~-]*"
_PLACE = re.compile(rf"node_modules/{_NAME}(?:/node_modules/{_NAME}){{0,20}}\Z", re.ASCII)
_WHOLE_NAME = re.compile(_NAME + r"\Z", re.ASCII)
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,100}\Z", re.ASCII)
_COMMAND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,100}\Z", re.ASCII)
_COMMANDS = "usr/local/bin"
_MAX_LOCK_BYTES = 16 << 20
_GUARD = Path(__file__).with_name("npm_guard.cjs")
# The guard holds with every npm. Those that know these options refuse by themselves, too, and say it better.
_REGISTRIES_ONLY = ("--allow-git=none", "--allow-remote=none", "--allow-file=none", "--allow-directory=none")
_NO_GIT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_SSH_COMMAND": "/bin/false", "GIT_TERMINAL_PROMPT": "0"}


def resolve(requirements: Sequence[str], target: NodeTarget, directory: Path, tools: PackageTools, stop: Stop) -> Lock:
    """The packages that meet the requirements; raises ``PackageUnresolvable`` with what npm says of them."""
    (directory / "package.json").write_text('{"private": true}')
    names = sorted({node_name(item) for item in requirements})
    npm = Npm(directory, tools, stop, ", ".join(names))
    registries = _registries(npm)
    said = npm.run(
        *("install", "--package-lock-only", "--lockfile-version=3", "--omit-lockfile-registry-resolved=false"),
        *("--no-audit", "--no-fund", "--omit=dev", *_REGISTRIES_ONLY, "--", *requirements),
        registries=registries,
    )
    if said.code != 0:
        raise PackageUnresolvable(
            f"cannot resolve {', '.join(names)}: {_reason(said)}", field="packages", packages=", ".join(names)
        )
    described = {"arch": target.arch, "libc": target.libc, "direct": " ".join(names)}
    return Lock("node", described, _read(directory / "package-lock.json", target, registries))


def _registries(npm: Npm) -> frozenset[str]:
    """Scheme, host and port of each registry that npm is set to use: of all packages, or of those of a scope."""
    said = npm.run("config", "list")
    try:
        settings = json.loads(said.output)
        urls = [value for name, value in settings.items() if name == "registry" or name.endswith(":registry")]
        return frozenset(_origin(url) for url in urls)
    except (ValueError, TypeError, AttributeError) as error:
        raise RuntimeUnavailable("npm does not say which registry it uses") from error


def _origin(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


class Npm:
    """npm in a directory of its own, for some packages."""

    def __init__(self, directory: Path, tools: PackageTools, stop: Stop, purpose: str) -> None:
        found = shutil.which("npm", path=tools.environment.get("PATH"))
        if found is None:
            raise RuntimeUnavailable("Node packages need npm on this machine")
        self._program = found
        self._directory = directory
        self._tools = tools
        self._stop = stop
        self._purpose = purpose

    def run(self, verb: str, *arguments: str, registries: Collection[str] = ()) -> Said:
        """Run a command of npm; where ``registries`` are given it asks these for metadata, and nobody for more."""
        command = [
            *(self._program, verb, "--ignore-scripts", "--json", "--loglevel=error", "--git=/bin/false"),
            *(f"--cache={self._directory / 'cache'}", "--logs-max=0", "--replace-registry-host=always"),
            # It would wait for a minute before it believes that an archive is damaged.
            *("--fetch-retries=2", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000"),
            *arguments,
        ]
        guarded = {**_NO_GIT, "NODE_OPTIONS": f"--require {json.dumps(str(_GUARD))}"}
        if registries:
            guarded["TIDEBOX_REGISTRIES"] = " ".join(sorted(registries))
        return self._tools.run(
            command, self._directory, self._stop, purpose=self._purpose, seconds=_SECONDS, variables=guarded
        )


def _reason(said: Said) -> str:
    try:
        error = json.loads(said.output)["error"]
        text = f"{error['summary']} {error.get('detail', '').partition(chr(10))[0]}"
    except (ValueError, TypeError, KeyError, AttributeError):
        text = said.errors
    return said.reason(text, lambda line: bool(line.strip())) or "npm failed"


def _read(path: Path, target: NodeTarget, registries: Collection[str]) -> tuple[Locked, ...]:
    try:
        if path.stat().st_size > _MAX_LOCK_BYTES:
            raise PackageUnresolvable("the lock is too large", field="packages")
        packages: dict[str, Any] = json.loads(path.read_bytes())["packages"]
        found = [
            _locked(place, entry, registries)
            for place, entry in packages.items()
            if place and _is_wanted(entry, target)
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise PackageUnresolvable("npm wrote a lock that cannot be read", field="packages") from error
    return tuple(found)


def _is_wanted(entry: dict[str, Any], target: NodeTarget) -> bool:
    # What is bundled comes in the archive of another.
    return not entry.get("inBundle") and all(
        _allows(entry.get(field), value)
        for field, value in (("os", "linux"), ("cpu", target.arch), ("libc", target.libc))
    )


def _allows(given: Any, value: str) -> bool:
    if not isinstance(given, list) or not given:
        return True
    wanted = [word for word in given if not word.startswith("!")]
    return f"!{value}" not in given and (not wanted or value in wanted)


def _locked(place: str, entry: dict[str, Any], registries: Collection[str]) -> Locked:
    name = entry.get("name") or place.rpartition("node_modules/")[2]
    version, resolved, integrity = entry.get("version", ""), entry.get("resolved", ""), entry.get("integrity", "")
    fits = _PLACE.match(place) and _WHOLE_NAME.match(name) and _VERSION.match(version)
    if not fits or entry.get("link") or _origin(resolved) not in registries:
        raise PackageUnresolvable(f"{name[:80]} is not a package of a registry", field="packages", package=name[:80])
    return Locked(name, version, _digest(name, integrity), f"{name}@{version}", place)


def _digest(name: str, integrity: str) -> str:
    """As ``sha512:`` and hexadecimal digits."""
    for word in integrity.split():
        kind, _, value = word.partition("-")
        if kind in ("sha512", "sha256"):
            try:
                return f"{kind}:{base64.b64decode(value.partition('?')[0], validate=True).hex()}"
            except binascii.Error:
                break
    raise PackageUnresolvable(f"the registry gives no digest of {name}", field="packages", package=name)


def fetch_all(
    packages: Sequence[Locked], directory: Path, tools: PackageTools, stop: Stop, *, max_bytes: int
) -> list[Path]:
    """The archives of ``packages``, in their order."""
    (directory / "package.json").write_text('{"private": true}')
    npm = Npm(directory, tools, stop, ", ".join(sorted({package.name for package in packages})[:_MOST_NAMED]))
    wanted = sorted({package.source for package in packages})
    by_digest: dict[str, Path] = {}
    total = 0
    for start in range(0, len(wanted), _AT_ONCE):
        before = set(directory.glob("*.tgz"))
        said = npm.run("pack", "--", *wanted[start : start + _AT_ONCE])
        if said.code != 0:
            raise FetchFailed(f"packages could not be fetched: {_reason(said)}", step="packages")
        for archive in set(directory.glob("*.tgz")) - before:
            total += archive.stat().st_size
            if total > max_bytes:
                raise too_large(", ".join(sorted(item.name for item in packages)[:_MOST_NAMED]), max_bytes)
            with archive.open("rb") as file:
                for kind in ("sha512", "sha256"):
                    file.seek(0)
                    by_digest[f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"] = archive
    return [_archive(package, by_digest) for package in packages]


def _archive(package: Locked, by_digest: Mapping[str, Path]) -> Path:
    archive = by_digest.get(package.digest)
    if archive is None:
        # Says so: nothing that came has this digest.
        check_digest(package, digest_of(package))
    assert archive is not None
    return archive


def add_package(tree: Tree, archive: Path, package: Locked, direct: frozenset[str]) -> None:
    """Unpack a package where ``require`` and ``import`` find it from the workspace."""
    where = package.place.encode()

    def place(name: bytes) -> bytes | None:
        # The directory that everything of an archive is in has any name.
        _, _, path = name.partition(b"/")
        return where + b"/" + path if path else None

    def finish(root: Path) -> None:
        if package.place == f"node_modules/{package.name}" and package.name in direct:
            _link_commands(tree, root, package)

    tree.add(archive, "tar", package, place, finish)


def _link_commands(tree: Tree, root: Path, package: Locked) -> None:
    manifest = root / package.place / "package.json"
    try:
        if manifest.stat().st_size > _MAX_MANIFEST:
            return
        given = json.loads(manifest.read_bytes()).get("bin", {})
    except (OSError, ValueError, AttributeError):
        return
    commands = {package.name.rpartition("/")[2]: given} if isinstance(given, str) else given
    if not isinstance(commands, dict):
        return
    check_commands(commands, package)
    for name, path in commands.items():
        if not isinstance(path, str) or not _COMMAND.match(name):
            continue
        parts = [part for part in path.split("/") if part not in ("", ".")]
        target = root.joinpath(package.place, *parts)
        if ".." in parts or not target.is_file():
            continue
        tree.count(1, 0, package.shown)
        target.chmod(0o755)
        (root / _COMMANDS).mkdir(parents=True, exist_ok=True)
        os.symlink(f"/{package.place}/{'/'.join(parts)}", root / _COMMANDS / name)
