"""Why an exec could not be started, in the terms of core.exec.failed."""

from __future__ import annotations

import errno
import os

from tidebox.agent import child
from tidebox.wire.messages import ExecFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidebox.wire.messages import ExecRequest

_KINDS = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "bad_cwd",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.ENOEXEC: "not_executable",
    errno.EISDIR: "not_executable",
    errno.ETXTBSY: "not_executable",
    errno.E2BIG: "bad_args",
    errno.ELOOP: "bad_args",
    errno.ENAMETOOLONG: "bad_args",
    errno.EFAULT: "bad_args",
    errno.EMFILE: "resource_limit",
    errno.ENFILE: "resource_limit",
    errno.EAGAIN: "resource_limit",
    errno.ENOMEM: "out_of_memory",
}
_STEP_KINDS = {child.STEP_USER: "user_setup_failed", child.STEP_CWD: "bad_cwd"}


class CannotStart(Exception):
    """Why an exec was not started, in the terms of core.exec.failed."""

    def __init__(self, kind: str, number: int | None, message: str, stage: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.number = number
        self.message = message
        self.stage = stage

    def answer(self) -> ExecFailed:
        """The message that ends the exec."""
        name = errno.errorcode.get(self.number) if self.number is not None else None
        return ExecFailed(kind=self.kind, errno=self.number, errno_name=name, message=self.message, stage=self.stage)


def failure(request: ExecRequest, number: int, step: str = child.STEP_PROCESS, kind: str | None = None) -> CannotStart:
    """The failure of one step with an errno."""
    subject = f'spawn "{request.cmd}"'
    if step == child.STEP_CWD:
        subject = "chdir" if request.cwd is None else f'chdir "{request.cwd}"'
    elif step == child.STEP_USER:
        subject = "user" if request.user is None else f'user "{request.user}"'
    message = f"{subject}: {os.strerror(number)} (os error {number})"
    kind = kind or _STEP_KINDS.get(step) or _KINDS.get(number, "other")
    return CannotStart(kind, number, message, stage_of(request, step))


def stage_of(request: ExecRequest, step: str) -> str:
    """The step in the words of the protocol."""
    if not request.tty:
        return "Command::spawn"
    return "execvp" if step == child.STEP_EXEC else "fork"
