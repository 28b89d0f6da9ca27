"""Packages of runs and sessions: since a version of the specification."""

from __future__ import annotations

from tidebox.api import packages
from tidebox.api.interpreter.requests import RunRequest, SessionRequest
from tidebox.api.services import Services
from tidebox.errors import InvalidRequest
from tidebox.model.packages import Packages
from tidebox.model.policy import PACKAGES_SINCE
from tidebox.model.principal import Caller


def allowed_packages(services: Services, caller: Caller, body: RunRequest | SessionRequest) -> Packages:
    """Return the packages of a request, if the caller and its version may have them.

    Raises ``InvalidRequest`` and ``PackageForbidden``.
    """
    if body.packages is not None and body.spec_version < PACKAGES_SINCE:
        raise InvalidRequest(f"packages need spec_version {PACKAGES_SINCE}", field="packages", since=PACKAGES_SINCE)
    return packages.allowed_packages(services, caller, body.packages)
