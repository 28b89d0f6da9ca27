"""The git repository that a request takes files from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tidebox.broker.storage.git_fetch import MAX_DEPTH, MAX_PATCH_BYTES
from tidebox.model.git_source import GitSource

_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_URL = rf"^(?:https?|git)://[A-Za-z0-9.-]+(?::(?:{_PORT}))?/+[!-\"$-.0->@-~][!-~]*$"
_REF = r"^(?!.*(?:\.\.|//))[A-Za-z0-9][A-Za-z0-9._/@+-]{0,254}$"


def _number(value: Any) -> Any:
    """Refuse what only looks like a number: true is not 1, and "5" is not 5."""
    if isinstance(value, (bool, str)):
        raise ValueError("give a number")
    return value


Number = BeforeValidator(_number)


class GitRequest(BaseModel):
    """A repository that the server fetches, outside the box, from one of the hosts that it allows."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"url": "https://github.com/pallets/flask.git", "ref": "3.1.0"}},
    )

    url: Annotated[
        str,
        Field(
            min_length=1,
            max_length=2048,
            description="Without user name and password.",
            json_schema_extra={"pattern": _URL},
        ),
    ]
    ref: Annotated[str, Field(max_length=255, json_schema_extra={"pattern": _REF})] | None = Field(
        None, description="A branch, a tag or a whole commit id; by default the repository's HEAD."
    )
    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH, description="How many commits are fetched."), Number] = 1
    patch: Annotated[
        str | None, Field(max_length=MAX_PATCH_BYTES, description="A unified diff, applied to what was fetched.")
    ] = None

    def source(self) -> GitSource:
        """The same for the broker."""
        return GitSource(url=self.url, ref=self.ref, depth=self.depth, patch=self.patch)
