"""``GET /me``: whom the server takes the caller for."""

from __future__ import annotations

from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel

from tidebox.api.answers import example
from tidebox.api.route_dependencies import CallerDep, errors
from tidebox.model.principal import ADMIN_ROLE, Principal

router = APIRouter(tags=["discovery"])


class MeAnswer(BaseModel):
    """A user."""

    user_id: str
    roles: list[str]
    admin: bool

    @classmethod
    def of(cls, principal: Principal) -> Self:
        """``principal`` as they see themselves."""
        return cls(user_id=principal.user, roles=sorted(principal.roles), admin=principal.is_admin)


_EXAMPLE = MeAnswer.of(Principal("user_123", frozenset({ADMIN_ROLE})))


@router.get("/me", responses={200: example(_EXAMPLE), **errors()}, summary="Who am I")
async def show_me(caller: CallerDep) -> MeAnswer:
    """The user that the credential of this request belongs to, and what they may do."""
    return MeAnswer.of(caller.principal)
