"""Packages in requests: their schema, and the policy of who may ask for which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from tidebox.api.auth import LOCAL_USER
from tidebox.errors import PackageForbidden
from tidebox.model.packages import MAX_PACKAGES, MAX_REQUIREMENT, NO_PACKAGES, Packages, make_packages, policy_of
from tidebox.model.principal import Caller

if TYPE_CHECKING:
    from tidebox.api.services import Services

# What model.packages takes, without extras and markers, in the words of a schema.
_VERSION = r"(?:==|~=|!=|<=|>=|<|>)[0-9][A-Za-z0-9.]{0,30}"
_PYTHON = rf"^[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,60}}[A-Za-z0-9])?(?:{_VERSION})?$"
_NODE = r"^(?:@[a-z0-9][a-z0-9._-]{0,60}/)?[a-z0-9][a-z0-9._-]{0,60}(?:@[0-9^~][0-9A-Za-z.-]{0,30})?$"
PythonPackage = Annotated[str, Field(min_length=1, max_length=MAX_REQUIREMENT, json_schema_extra={"pattern": _PYTHON})]
NodePackage = Annotated[str, Field(min_length=1, max_length=MAX_REQUIREMENT, json_schema_extra={"pattern": _NODE})]


class PackagesRequest(BaseModel):
    """Packages by language, put on top of the image: names of an index, with versions where they matter."""

    model_config = ConfigDict(extra="forbid")

    python: Annotated[list[PythonPackage], Field(max_length=MAX_PACKAGES)] = Field(default_factory=list)
    node: Annotated[list[NodePackage], Field(max_length=MAX_PACKAGES)] = Field(default_factory=list)


def allowed_packages(services: Services, caller: Caller, asked: PackagesRequest | None) -> Packages:
    """Return the packages of a request, if the caller may have them.

    Raises ``InvalidRequest`` and ``PackageForbidden``.
    """
    packages = make_packages(asked.python, asked.node) if asked is not None else NO_PACKAGES
    check_packages(services, caller, packages)
    return packages


def check_packages(services: Services, caller: Caller, packages: Packages) -> None:
    """Refuse packages that the caller may not ask for, and record it in the audit log."""
    if not packages:
        return
    owner = caller.principal.user == LOCAL_USER
    try:
        policy_of(services.settings.packages, owner=owner).check(packages)
    except PackageForbidden as error:
        services.audit.record("sandbox.packages.refused", caller, error.code, packages=packages.shown())
        raise
