"""Packages that a program asks for by name: what may be asked for, by whom, and where a script says it by itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidebox.errors import FetchFailed, InvalidPackage, InvalidRequest, PackageForbidden, PackageUnresolvable

MAX_PACKAGES = 64
"""Of one language in one request; what these need in turn is not counted here."""
MAX_REQUIREMENT = 256
_MAX_LINE = 4096
OFF, ANY = "off", "any"
PACKAGE_ERRORS = (PackageUnresolvable, InvalidPackage, FetchFailed)
"""Why packages that were asked for may be none."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"(?:===|==|~=|!=|<=|>=|<|>) ?[A-Za-z0-9.*+!_-]+"
_VERSIONS = rf"{_VERSION}(?: ?, ?{_VERSION})*"
# Names of an index, never places: no URL, path or option of the resolver can be written like this. White space is
# single spaces by then: there is one way to match a text. Compiled when they are first used, because every program that
# runs boxes loads them.
_PYTHON = (
    # What ends like this is a file to uv and npm.
    r"(?![A-Za-z0-9._-]*\.(?i:whl|zip|tgz|tbz|tlz|txz|tar|tar\.[a-z0-9]+)(?![A-Za-z0-9._-]))"
    rf"(?P<name>{_NAME})(?: ?\[ ?{_NAME}(?: ?, ?{_NAME})* ?\])?"
    rf"(?: ?{_VERSIONS}| ?\( ?{_VERSIONS} ?\))?(?: ?;[A-Za-z0-9_.'\"<>=!~ ()-]+)?\Z"
)
_NODE = (
    r"(?!.*\.(?i:tgz|tar|tar\.gz)(?:@|\Z))(?!node_modules(?:@|\Z))"
    r"(?P<name>(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9][a-z0-9._~-]*)(?:@(?!\.)[A-Za-z0-9.*+^~<>=| -]{1,100})?\Z"
)
_COMMENT = r"(?:^|\s)#.*"
_BLOCK_BEGIN, _BLOCK_END = "# /// script", "# ///"


@dataclass(frozen=True, slots=True)
class Packages:
    """Requirements by language, each as its own tools write them, in no order and none twice."""

    python: tuple[str, ...] = ()
    node: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.python or self.node)

    def __or__(self, other: Packages) -> Packages:
        return make_packages((*self.python, *other.python), (*self.node, *other.node))

    def shown(self) -> dict[str, list[str]]:
        """As requests have them."""
        return {"python": list(self.python), "node": list(self.node)}

    def names(self) -> list[tuple[str, str]]:
        """Each language with the name of a package, as its index knows it."""
        python = [("python", python_name(item)) for item in self.python]
        return python + [("node", node_name(item)) for item in self.node]


NO_PACKAGES = Packages()


def make_packages(python: Iterable[str] = (), node: Iterable[str] = ()) -> Packages:
    """Packages that were asked for; raises ``InvalidRequest`` naming what is no requirement."""
    found = Packages(_checked(python, _PYTHON), _checked(node, _NODE))
    for language, items in (("python", found.python), ("node", found.node)):
        if len(items) > MAX_PACKAGES:
            raise InvalidRequest(
                f"more than {MAX_PACKAGES} packages of one language", field="packages", language=language
            )
    return found


def packages_of(given: Packages | Sequence[str] | Mapping[str, Sequence[str]] | None) -> Packages:
    """Parse the ``packages`` argument of the library; a list is of Python packages."""
    if given is None:
        return NO_PACKAGES
    if isinstance(given, Packages):
        return given
    if isinstance(given, str):
        raise InvalidRequest("give a list of packages, not a text", field="packages")
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - {"python", "node"})
        if unknown:
            raise InvalidRequest(f"packages are of python or node, not {unknown[0]!r}", field="packages")
        return make_packages(given.get("python", ()), given.get("node", ()))
    return make_packages(given)


def python_name(requirement: str) -> str:
    """The name of a Python package in its normal form, from a requirement or a name."""
    match = re.match(_PYTHON, _spaced(requirement), re.ASCII)
    return re.sub(r"[-_.]+", "-", match["name"] if match else requirement).lower()


def node_name(requirement: str) -> str:
    """The name of a Node package, from a requirement."""
    match = re.match(_NODE, requirement.strip(), re.ASCII)
    return match["name"] if match else requirement


def _spaced(text: str) -> str:
    # Not all white space: a line break is no part of a requirement.
    return " ".join(filter(None, text.replace("\t", " ").split(" ")))


def _checked(given: Iterable[str], form: str) -> tuple[str, ...]:
    found = set()
    for item in given:
        if not isinstance(item, str):
            raise InvalidRequest("a package is named by a text", field="packages")
        text = _spaced(item[: MAX_REQUIREMENT + 1])
        if len(item) > MAX_REQUIREMENT or not re.match(form, text, re.ASCII):
            raise InvalidRequest(
                f"not a package of an index: {text[:80]!r} (one is like pandas or 'pandas>=2')",
                field="packages",
                package=text[:80],
            )
        found.add(text)
    return tuple(sorted(found))


def read_requirements(text: str) -> tuple[str, ...]:
    """The requirements in a requirements file; raises ``InvalidRequest`` with the line that is none."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        requirement = _spaced(re.sub(_COMMENT, "", line[:_MAX_LINE]))
        if not requirement:
            continue
        if not re.match(_PYTHON, requirement, re.ASCII):
            raise InvalidRequest(
                f"line {number} of the requirements is not a package of an index: {requirement[:80]!r}",
                field="requirements",
                line=number,
            )
        found.append(requirement)
    return tuple(found)


def script_packages(source: bytes) -> Packages:
    """The packages that a Python script names in its inline metadata (PEP 723, ``# /// script``)."""
    if _BLOCK_BEGIN.encode() not in source:
        return NO_PACKAGES
    blocks = _blocks(source.decode("utf-8", "replace").replace("\r\n", "\n").split("\n"))
    if not blocks:
        return NO_PACKAGES
    if len(blocks) > 1:
        raise InvalidRequest("the script has more than one block of metadata", field="packages")
    # Not everybody who runs a program needs it.
    import tomllib

    try:
        metadata = tomllib.loads("\n".join(line[2:] for line in blocks[0]))
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"the metadata of the script is not TOML: {error}", field="packages") from None
    dependencies = metadata.get("dependencies", [])
    if not isinstance(dependencies, list):
        raise InvalidRequest("dependencies in the metadata of the script must be a list", field="packages")
    return make_packages(dependencies)


def _blocks(lines: Sequence[str]) -> list[list[str]]:
    """The lines of each block of metadata: from its beginning to the last end before a line that is no comment."""
    found = []
    number = 0
    while number < len(lines):
        number += 1
        if lines[number - 1] != _BLOCK_BEGIN:
            continue
        block = []
        while number < len(lines) and (lines[number] == "#" or lines[number].startswith("# ")):
            block.append(lines[number])
            number += 1
        ends = [place for place, line in enumerate(block) if line == _BLOCK_END]
        if ends:
            found.append(block[: ends[-1]])
    return found


@dataclass(frozen=True, slots=True)
class PackagePolicy:
    """Which packages may be asked for: any, none, or those of these names."""

    allowed: frozenset[tuple[str, str]] | None = None
    """Languages and names; None for any."""

    def check(self, packages: Packages) -> None:
        """Refuse what may not be asked for, naming it."""
        if self.allowed is None:
            return
        for language, name in packages.names():
            if (language, name) not in self.allowed:
                reason = "is not among those" if self.allowed else "cannot be asked for:"
                what = "that may be asked for here" if self.allowed else "packages are turned off for this user"
                raise PackageForbidden(f"the package {name} {reason} {what}", field="packages", package=name)


def policy_of(setting: tuple[str, ...] | None, *, owner: bool) -> PackagePolicy:
    """The policy for the owner of the installation, who holds its key, or for anybody else."""
    if setting is None:
        return PackagePolicy(None if owner else frozenset())
    if setting == (ANY,):
        return PackagePolicy(None)
    if setting == (OFF,):
        return PackagePolicy(frozenset())
    return PackagePolicy(frozenset(itertools.chain.from_iterable(map(_meant_by, setting))))


def _meant_by(entry: str) -> Iterator[tuple[str, str]]:
    """The packages that an entry of a list allows: ``python:`` or ``node:`` and a name, or a name in both."""
    language, separator, name = entry.partition(":")
    if not separator:
        language, name = "", entry
    # Node's names are taken to the letter: lodash.merge and lodash-merge are two packages.
    if language in ("", "node"):
        yield "node", name
    if language in ("", "python") and not name.startswith("@"):
        yield "python", python_name(name)
