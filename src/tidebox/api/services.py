"""The services that surfaces use, put together once by the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidebox.api.auth import Authenticator
from tidebox.api.health import HealthEndpoint
from tidebox.api.log_followers import LogFollowerQuota
from tidebox.api.metrics import ServerMetrics
from tidebox.api.rate_limit import RateLimiter
from tidebox.api.signed_urls import UrlSigner
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.broker import Broker
from tidebox.broker.runs.planning import Planner
from tidebox.broker.runs.stored_run_files import StoredFileManager
from tidebox.broker.sandboxes.grants import Sandboxes
from tidebox.model.languages import BUILT_IN, Languages
from tidebox.model.policy import Policy
from tidebox.model.runtimes import OfferedLanguage, RuntimeCatalog

if TYPE_CHECKING:
    from tidebox.config import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The broker, policy, credentials and limits that surfaces use."""

    settings: Settings
    broker: Broker
    languages: Mapping[str, str]
    """Those that the default runtime has an image for, and the image of each."""
    offered: Callable[[str], Awaitable[Sequence[OfferedLanguage]]]
    """The languages of a runtime that works here, by its name."""
    known_languages: Languages = BUILT_IN
    """All, whether there is an image for them or not."""
    authenticator: Authenticator
    rate_limiter: RateLimiter
    metrics: ServerMetrics
    health: HealthEndpoint
    signer: UrlSigner
    log_followers: LogFollowerQuota
    policy: Policy
    planner: Planner
    runtimes: RuntimeCatalog
    files: StoredFileManager
    audit: Audit
    sandboxes: Sandboxes
