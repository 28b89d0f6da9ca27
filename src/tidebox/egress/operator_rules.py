"""The operator's egress rules, put together from settings: allow-list, package mirrors, secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tidebox.egress import secrets
from tidebox.egress.mirrors import find_mirrors
from tidebox.model.injection import NO_SECRETS
from tidebox.model.package_mirrors import Mirrors
from tidebox.model.requested_egress import EgressRules, RequestedEgress


def operator_rules(
    allowlist: RequestedEgress | None, secrets_file: Path | None, environment: Mapping[str, str], *, embedded: bool
) -> EgressRules:
    """The rules; raises ``InvalidRequest`` that names the setting which cannot be used.

    ``environment`` is that in which pip, npm and apt are asked for their mirrors. ``embedded`` says that the caller
    is the operator: then there need be no list.
    """
    known = secrets.describe(secrets_file) if secrets_file is not None else NO_SECRETS
    found: list[Mirrors] = []

    def mirrors() -> Mirrors:
        # They are asked for when somebody wants them: the tools take their time to answer.
        if not found:
            found.append(find_mirrors(environment))
        return found[0]

    # A server asks when it starts or never: while it serves nobody waits for tools.
    has_mirrors = embedded or (allowlist is not None and allowlist.packages)
    rules = EgressRules(secrets=known, embedded=embedded, find_mirrors=mirrors if has_mirrors else None)
    return rules if allowlist is None else replace(rules, server=rules.list_of(allowlist))
