"""The options that say what programs may reach."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tidebox.model.requested_egress import RequestedEgress

_OPTIONS = (
    click.option(
        "--allow-host",
        "allow_hosts",
        multiple=True,
        metavar="HOST",
        help="Let it reach a host, or all below one: '*.example.com' (repeatable).",
    ),
    click.option(
        "--allow-ip",
        "allow_ips",
        multiple=True,
        metavar="IP|CIDR",
        help="Let it reach an address or a network (repeatable).",
    ),
    click.option("--allow-packages", is_flag=True, help="Let it reach the mirrors of pip, npm and apt."),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME",
        help="A secret of SANDBOX_EGRESS_SECRETS, of which it has a placeholder (repeatable).",
    ),
)


def egress_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; it is called with what they make together, as ``egress``."""

    @functools.wraps(command)
    def called(
        *arguments: Any,
        allow_hosts: tuple[str, ...],
        allow_ips: tuple[str, ...],
        allow_packages: bool,
        secrets: tuple[str, ...],
        **options: Any,
    ) -> Any:
        return command(*arguments, egress=_asked(allow_hosts, allow_ips, allow_packages, secrets), **options)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called


def _asked(
    hosts: tuple[str, ...], addresses: tuple[str, ...], packages: bool, secrets: tuple[str, ...]
) -> RequestedEgress | None:
    """Return the egress that the options ask for; None if they ask for none."""
    if not (hosts or addresses or packages or secrets):
        return None
    from tidebox.model.requested_egress import read_requested_egress

    rules = {
        "hosts": list(hosts),
        "cidrs": [item for item in addresses if "/" in item],
        "ips": [item for item in addresses if "/" not in item],
    }
    return read_requested_egress(
        {**(rules if hosts or addresses else {}), "packages": packages, "secrets": list(secrets)}
    )
