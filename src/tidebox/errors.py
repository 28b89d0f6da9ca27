"""One error tree for everything above the wire.

    TideboxError
    ├── InvalidRequest            the caller asked for something that cannot be
    │   ├── UnknownLanguage
    │   ├── UnknownImage
    │   └── LimitOutOfRange
    ├── InvalidImage              an image source that must not be unpacked
    ├── RuntimeUnavailable        this machine cannot run that runtime at all
    │   └── GuaranteeMissing      it could, but without a guarantee of the policy
    ├── ProvisionFailed           a box could not be made; names the failing step
    ├── ExecFailed                the program could not be started in the box
    ├── BoxGone                   the box (or the agent in it) died under us
    ├── UnsupportedOperation      the box's agent is too old for this operation
    ├── FileOperationFailed       a file operation in the box was refused
    ├── ConnectFailed             nothing listens in the box where a connection was asked for
    └── AgentProtocolError        the agent broke the protocol

Each class carries a stable ``code``, whether a retry may help, and the HTTP status a surface answers with.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TideboxError(Exception):
    """Base of every error Tidebox raises on purpose."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, **details: Any) -> None:
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


class ProvisionFailed(TideboxError):
    """A box could not be made; ``details['step']`` names the step that failed."""

    code = "provision_failed"
    retryable = True


class ExecFailed(TideboxError):
    """The program could not be started; ``details`` holds kind and errno as the agent reported them."""

    code = "exec_failed"
    http_status = 422


class BoxGone(TideboxError):
    """The box died before it answered."""

    code = "box_gone"
    retryable = True


class UnsupportedOperation(TideboxError):
    """The agent in the box is too old for the operation."""

    code = "unsupported_operation"
    http_status = 409


class FileOperationFailed(TideboxError):
    """A file operation in the box failed; the message is the agent's."""

    code = "file_operation_failed"
    http_status = 422


class ConnectFailed(TideboxError):
    """A connection inside the box could not be made."""

    code = "connect_failed"
    retryable = True
    http_status = 502


class AgentProtocolError(TideboxError):
    """The agent sent something the protocol does not allow."""

    code = "agent_protocol_error"
