"""One error tree for everything above the wire.

    TideboxError
    ├── InvalidRequest            the caller asked for something that cannot be
    │   ├── UnknownLanguage
    │   ├── UnknownImage
    │   ├── LimitOutOfRange
    │   ├── InvalidSpecVersion   a version of the specification that is not spoken here
    │   ├── PolicyUnsupported    a policy that nothing here can enforce
    │   ├── PackageUnresolvable  a package that is not in the index, or not for this image
    │   ├── InvalidPackage       a package whose archive must not be unpacked
    │   ├── RangeNotSatisfiable
    │   └── PayloadTooLarge
    ├── Unauthorized              no credential, or a wrong one
    ├── Forbidden                 a known caller who may not do this
    │   ├── CapabilityDenied      a grant that does not cover it
    │   └── PackageForbidden      a package that this caller may not ask for
    ├── NotFound                  nothing of that name that the caller may see
    ├── Expired                   it was there, and its time is over
    │   └── NodeLost              it is on the disk of a server that is lost
    ├── Conflict                  not in the state that thing is in now
    │   ├── IdempotencyConflict   the same idempotency key with another body
    │   └── WrongNode             another server has it
    ├── Busy                      right, but not now: a retry may help
    │   ├── Overloaded            no slot, and no room in the queue
    │   ├── RateLimited           too many requests
    │   ├── QuotaExceeded         the user has as much of it as one user may have
    │   ├── SandboxStarting       the sandbox is being made
    │   ├── QueueExpired          waited for a slot as long as anything may wait
    │   └── ShuttingDown          the server ends
    ├── InvalidImage              an image source that must not be unpacked
    ├── RuntimeUnavailable        this machine cannot run that runtime at all
    │   └── GuaranteeMissing      it could, but without a guarantee of the policy
    ├── ProviderUnavailable       the other server that has the sandbox, or is to make it, cannot do it now
    ├── ProvisionFailed           a box could not be made; names the failing step
    │   ├── StartupTimeout        it did not stand in the time that its start may take
    │   └── FetchFailed           what was to be put into it could not be fetched
    ├── ExecFailed                the program could not be started in the box
    ├── BoxGone                   the box (or the agent in it) died under us
    ├── UnsupportedOperation      the box's agent is too old for this operation
    ├── FileOperationFailed       a file operation in the box was refused
    ├── ConnectFailed             nothing listens in the box where a connection was asked for
    ├── AgentProtocolError        the agent broke the protocol
    ├── ServerProtocolError       the server, of which we are a client, broke the protocol
    ├── StoreUnavailable          what must be kept cannot be
    │   └── StoreInDoubt          it may have been kept: the store did not say
    ├── AuditUnavailable          what happens cannot be recorded, so it must not happen
    └── InternalError             a defect of ours

Each class carries a stable ``code``, whether a retry may help, and the HTTP status a surface answers with.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TideboxError(Exception):
    """Base of every error Tidebox raises on purpose."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidRequest(TideboxError):
    """The request itself is wrong; ``details`` names the field."""

    code = "invalid_request"
    http_status = 400


class UnknownLanguage(InvalidRequest):
    """No such language."""

    code = "unknown_language"


class UnknownImage(InvalidRequest):
    """No image of that name."""

    code = "unknown_image"
    http_status = 404


class LimitOutOfRange(InvalidRequest):
    """A limit outside the range this installation allows."""

    code = "limit_out_of_range"


class InvalidSpecVersion(InvalidRequest):
    """A version of the specification that this server does not speak; ``details['supported']`` has those it does."""

    code = "invalid_spec_version"


class PolicyUnsupported(InvalidRequest):
    """A policy that nothing on this server can enforce, so it is refused and not ignored."""

    code = "policy_unsupported"
    http_status = 422


class PackageUnresolvable(InvalidRequest):
    """Packages that no index has in a form that this image can use; the message names them."""

    code = "package_unresolvable"
    http_status = 422


class InvalidPackage(InvalidRequest):
    """The archive of a package is damaged, hostile or too large; ``details['package']`` names it."""

    code = "invalid_package"
    http_status = 422


class PayloadTooLarge(InvalidRequest):
    """More bytes than this installation accepts; ``details['limit']`` says how many it does."""

    code = "payload_too_large"
    http_status = 413


class RangeNotSatisfiable(InvalidRequest):
    """A part of a file that is not there, or parts that cannot be sent; ``details['size']`` says how long it is."""

    http_status = 416


class Unauthorized(TideboxError):
    """No credential was given, or one that is wrong or expired."""

    code = "unauthorized"
    http_status = 401


class Forbidden(TideboxError):
    """The caller is known and may not do this."""

    code = "forbidden"
    http_status = 403


class CapabilityDenied(Forbidden):
    """The grant, or the policy for those who ask for one, does not cover this."""

    code = "capability_denied"


class PackageForbidden(Forbidden):
    """A package that the policy does not let this caller ask for; ``details['package']`` names it."""

    code = "package_forbidden"


class Expired(TideboxError):
    """It was there, and its time is over; a new one must be asked for."""

    code = "expired"
    http_status = 410


class NodeLost(Expired):
    """The server that has it is lost; ``details['node_id']`` names it. When that one is back, so is this."""

    code = "node_lost"


class NotFound(TideboxError):
    """There is nothing of that name, or nothing that the caller may know of."""

    code = "not_found"
    http_status = 404


class Conflict(TideboxError):
    """The thing is not in a state that allows this."""

    code = "conflict"
    http_status = 409


class IdempotencyConflict(Conflict):
    """The idempotency key was used for another request; ``details['prior_id']`` names what that one made."""

    code = "idempotency_conflict"


class WrongNode(Conflict):
    """Another server has this, and only that one can do it; ``details['node_id']`` names it."""


class Busy(TideboxError):
    """The request is right and cannot be served now; ``details['retry_after']`` are seconds, where known."""

    code = "busy"
    retryable = True
    http_status = 429


class Overloaded(Busy):
    """Every slot is taken and the queue is full."""

    code = "queue_full"


class RateLimited(Busy):
    """More requests than this caller may make in this time."""

    code = "rate_limited"


class QuotaExceeded(Busy):
    """The user has as much of something as one user may have; ``details['quota']`` names it."""

    code = "quota_exceeded"


class SandboxStarting(Busy):
    """The sandbox is being made; ``details['retry_after']`` are seconds."""

    code = "sandbox_starting"
    http_status = 423


class QueueExpired(Busy):
    """It waited for a slot for as long as anything may wait, and was not started."""

    code = "queue_expired"
    http_status = 503


class ShuttingDown(Busy):
    """The server ends: new work is refused, and what did not finish in time was stopped."""

    code = "shutting_down"
    http_status = 503


class InvalidImage(TideboxError):
    """An image source that is damaged or hostile."""

    code = "invalid_image"
    http_status = 400


class RuntimeUnavailable(TideboxError):
    """The runtime cannot work on this machine; the message says what is missing and what helps."""

    code = "runtime_unavailable"
    http_status = 503


class GuaranteeMissing(RuntimeUnavailable):
    """A guarantee of the policy cannot be given here; ``details['guarantees']`` names each."""

    code = "guarantee_missing"


class ProviderUnavailable(TideboxError):
    """The other server that has the sandbox, or is to make it, does not answer or has no room."""

    code = "provider_unavailable"
    retryable = True
    http_status = 503


class ProvisionFailed(TideboxError):
    """A box could not be made; ``details['step']`` names the step that failed."""

    code = "provision_failed"
    retryable = True


class StartupTimeout(ProvisionFailed):
    """The program could not be started in the time that a start may take."""

    code = "startup_timeout"
    http_status = 504


class FetchFailed(ProvisionFailed):
    """A git repository or a package could not be fetched; the message says why."""

    code = "fetch_failed"
    http_status = 502


class ExecFailed(TideboxError):
    """The program could not be started; ``details`` holds kind and errno as the agent reported them."""

    code = "exec_failed"
    http_status = 422


class BoxGone(TideboxError):
    """The box died before it answered."""

    code = "box_gone"
    retryable = True


class UnsupportedOperation(TideboxError):
    """The runtime of the box cannot do that, or the agent in it is too old for it."""

    code = "unsupported_operation"
    http_status = 409


class FileOperationFailed(TideboxError):
    """A file operation in the box failed; the message is the agent's.

    ``errno`` is why the kernel refused it; None where it did not, or the agent does not tell.
    """

    code = "file_operation_failed"
    http_status = 422

    def __init__(self, message: str, /, *, errno: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.errno = errno


class ConnectFailed(TideboxError):
    """A connection inside the box could not be made."""

    code = "connect_failed"
    retryable = True
    http_status = 502


class AgentProtocolError(TideboxError):
    """The agent sent something the protocol does not allow."""

    code = "agent_protocol_error"


class ServerProtocolError(TideboxError):
    """The server sent something the protocol does not allow."""

    code = "server_protocol_error"


class StoreUnavailable(TideboxError):
    """The store does not answer, or cannot keep anything at the moment."""

    code = "store_unavailable"
    retryable = True
    http_status = 503


class StoreInDoubt(StoreUnavailable):
    """The store was told to keep something and did not answer: who needs to know whether it did looks."""


class AuditUnavailable(TideboxError):
    """The audit log cannot be written, so nothing that must be in it is done."""

    code = "audit_unavailable"
    retryable = True
    http_status = 503


class InternalError(TideboxError):
    """Something failed that has no name of its own; the log has the details, the caller does not."""

    retryable = True
