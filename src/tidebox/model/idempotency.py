"""The same request, sent twice, is done once.

A key belongs to one user and one endpoint. Within its time it stands for one request body, whose first answer every
later one gets; the same key with another body is a mistake of the client's. After its time it is as if never used.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tidebox.errors import IdempotencyConflict, InvalidRequest
from tidebox.model.timestamps import iso_time

MAX_KEY_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that is to be done once."""

    endpoint: str
    user: str
    key: str
    fingerprint: str

    def __post_init__(self) -> None:
        if not 0 < len(self.key) <= MAX_KEY_LENGTH or not self.key.isprintable():
            raise InvalidRequest(
                f"an idempotency key has 1 to {MAX_KEY_LENGTH} printable characters", field="Idempotency-Key"
            )

    @property
    def scope(self) -> tuple[str, str, str]:
        """The key that identifies a claim."""
        return self.endpoint, self.user, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A claim whose request was done: what it made, and the answer as it was then."""

    claim: Claim
    object_id: str
    response: bytes
    created_at: float


def settle(claim: Claim, prior: Answered) -> Answered:
    """The answer to a repeated request; raises where the body is not the one the key was first sent with."""
    if prior.claim.fingerprint != claim.fingerprint:
        raise IdempotencyConflict(
            "Idempotency-Key replay with different body",
            prior_id=prior.object_id,
            key=claim.key,
            prior_created_at=iso_time(prior.created_at),
            idempotency_key_echo=claim.key,
            idempotency_status="conflict",
        )
    return prior


def fingerprint(body: Any) -> str:
    """A digest of a parsed JSON body that does not depend on how the body was written down."""
    try:
        canonical = json.dumps(_canonical(body), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the request body is not plain JSON") from error
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _canonical(value: Any) -> Any:
    """1 and 1.0 are one number in JSON."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return value
